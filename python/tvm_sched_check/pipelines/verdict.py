"""Check problem, plan and evidence together."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from ..document import MALFORMED, Problem, Refused, count, read
from .bound import bound_of
from .plan import Plan


class Verdict(NamedTuple):
    """The cost of the bottleneck stage, the proved bound, and the certificate's bound, in nanoseconds.

    ``certified_ns`` is None if the plan has no certificate. The bound is for at most ``stages`` stages on ``devices``.
    """

    cost_ns: int
    proved_ns: int
    certified_ns: int | None
    stages: int
    devices: list[str]

    @property
    def all_proved(self) -> bool:
        """Whether the certificate's bound is proved."""
        return self.certified_ns is not None and self.proved_ns >= self.certified_ns

    @property
    def lines(self) -> list[str]:
        """The result as lines of text."""
        gap = 1 - self.proved_ns / self.cost_ns if self.cost_ns else 0.0
        claim = f"the certificate claims the bound {self.certified_ns} ns"
        of = f"for at most {self.stages} stages on {', '.join(self.devices)}"
        claim = "the plan has no certificate" if self.certified_ns is None else claim
        proof = f"{claim}, the evidence proves {self.proved_ns} ns {of}"
        return [f"the bottleneck stage costs {self.cost_ns} ns, priced again", proof, f"gap proved: {gap:.2%}"]


def check(problem_file: str | Path, plan_file: str | Path, evidence_file: str | Path) -> Verdict:
    """Price the plan and prove the bound; raise `Refused` if one of the files is wrong."""
    document, digest = read(problem_file, "tvm_sched.problem")
    plan, _ = read(plan_file, "tvm_sched.pipeline")
    evidence, _ = read(evidence_file, "tvm_sched.pipeline_evidence")
    try:
        for name, named in (("plan", plan["problem"]), ("evidence", evidence["problem"])):
            if named != digest:
                saved = "a file written by hand is to be saved once by tvm_sched: Problem.load(path).save(path)"
                raise Refused(f"the {name} is of problem {named}; the digest of {problem_file} is {digest}; {saved}")
        if document["costs"].get("concurrency") is not None:  # has no effect here: a stage runs one operator at a time
            document["costs"].pop("concurrency")
        problem, certificate = Problem(document), plan.get("certificate") or {}
        cost, bound = Plan(problem, plan["stages"]).cost, bound_of(problem, evidence)
        claimed = count(certificate["cost_ns"]) if certificate else cost
        certified = count(certificate["lower_bound_ns"]) if certificate else None
        used = {stage["device"] for stage in plan["stages"]}
        if not used <= set(evidence["devices"]) or len(used) > evidence["stages"]:
            raise Refused("the evidence is of fewer stages than the plan has, or of other devices")
    except MALFORMED as error:
        raise Refused(f"a file is not as its format says: {type(error).__name__} {error}") from None
    if claimed != cost or (certified or 0) > cost:
        raise Refused(f"the certificate says {claimed} ns, at least {certified}; the bottleneck stage costs {cost} ns")
    if bound > cost:
        raise Refused(f"the evidence proves {bound} ns, but the plan costs {cost} ns: please report this")
    return Verdict(cost, bound, certified, evidence["stages"], evidence["devices"])
