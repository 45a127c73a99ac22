"""Check problem, schedule and evidence together."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

from . import bisection, enumeration, joined, ports
from .alternative_bound import relaxed_of, resolved
from .derivation import bound_of
from .document import MALFORMED, Refused, count, read, without
from .groups import Groups
from .replay import Replay


class Verdict(NamedTuple):
    """The replayed latency, the bound that the evidence proves, and the certificate's bound, in nanoseconds.

    ``certified_ns`` is None if the schedule has no certificate.
    """

    latency_ns: int
    proved_ns: int
    certified_ns: int | None

    @property
    def all_proved(self) -> bool:
        """Whether the certificate's bound is proved."""
        return self.certified_ns is not None and self.proved_ns >= self.certified_ns

    @property
    def lines(self) -> list[str]:
        """The result as lines of text."""
        gap = 1 - self.proved_ns / self.latency_ns if self.latency_ns else 0.0
        claim = f"certificate claims the bound {self.certified_ns} ns"
        proof = f"the {claim if self.certified_ns is not None else 'schedule has no certificate'}, "
        proof += f"the evidence proves {self.proved_ns} ns"
        return [f"latency {self.latency_ns} ns, replayed", proof, f"gap proved: {gap:.2%}"]


COLD = "143f1eeea6807ac3"
"""Digest of the workload of one cold run (``docs/formats/workload.md``)."""


def check(problem_file: str | Path, schedule_file: str | Path, evidence_file: str | Path) -> Verdict:
    """Replay the schedule and prove the bound; raise `Refused` if one of the files is wrong."""
    document, digest = read(problem_file, "tvm_sched.problem")
    schedule, _ = read(schedule_file, "tvm_sched.schedule")
    evidence, _ = read(evidence_file, "tvm_sched.evidence")
    try:
        for name, named in (("schedule", schedule["problem"]), ("evidence", evidence["problem"])):
            if named != digest:
                saved = "a file written by hand is to be saved once by tvm_sched: Problem.load(path).save(path)"
                raise Refused(f"the {name} is of problem {named}; the digest of {problem_file} is {digest}; {saved}")
        resident, certificate = sorted(evidence.get("resident", [])), schedule.get("certificate") or {}
        if not resident and evidence["workload"] != COLD:
            raise Refused(f"the evidence is of workload {evidence['workload']}, but of a cold run ({COLD})")
        runs = [sorted(request["resident"]) for request in certificate.get("requests", [])]
        if certificate and runs != ([resident] if resident else []):
            raise Refused(
                "the runs of the schedule (certificate.requests) are not the one run of the evidence (resident)"
            )
        latency = replays(document, schedule, resident)[-1].latency
        bound = proved(document, evidence, resident)
        if count(evidence["proved_ns"]) != bound:
            raise Refused(f"proved_ns of the evidence is {evidence['proved_ns']}, but its last lemma says {bound} ns")
        claimed = count(certificate["latency_ns"]) if certificate else latency
        certified = count(certificate["lower_bound_ns"]) if certificate else None
    except MALFORMED as error:
        raise Refused(f"a file is not as its format says: {type(error).__name__} {error}") from None
    if claimed != latency or (certified or 0) > latency:
        raise Refused(f"the certificate says {claimed} ns, at least {certified}; replayed, it takes {latency} ns")
    if bound > latency:
        raise Refused(f"the evidence proves {bound} ns, but the schedule takes {latency} ns: please report this")
    return Verdict(latency, bound, certified)


def replays(document: dict[str, Any], schedule: dict[str, Any], resident: list[str]) -> list[Replay]:
    """Replay a schedule in a cold run and, if parameters are resident, in a warm one as well, which it precedes."""
    if document["costs"].get("concurrency") is not None and "variants" in document:
        raise Refused("variants together with costs.concurrency are not covered by this checker")
    # With variants the schedule is for one choice; the bound holds for every choice.
    sets = schedule.get("joined") or []
    chosen = resolved(document, schedule.get("choice") or {}, sets)
    partly = {names[0] for names in sets if not {*names} <= {*resident}}
    runs = [set[str](), {*resident} - partly] if resident else [set[str]()]
    return [Replay(chosen, schedule["placements"], schedule["transfers"], names) for names in runs]


def proved(document: dict[str, Any], evidence: dict[str, Any], resident: list[str]) -> int:
    """Return the bound in nanoseconds that the lemmas prove of the runs of a problem in which parameters are resident."""
    document = joined.loading_at_once(without(document, resident))
    relaxed = relaxed_of(document, evidence)
    basis = resolved(document, {}) if relaxed is None else relaxed.problem
    searches = {"ports": ports.Ports().least, "enumeration": enumeration.Enumeration().least}
    rules = {**bisection.OF_SCHEDULES, **searches} if relaxed is None else {"alternatives": Groups(relaxed).least}
    return bound_of(basis, evidence["lemmas"], rules | {"joined": joined.least}, relaxed is None)
