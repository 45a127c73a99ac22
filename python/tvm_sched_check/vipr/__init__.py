"""Write the bound of evidence as a VIPR certificate, which a checker that others wrote verifies (``docs/proofs/vipr.md``)."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from ..document import Problem, Refused, read
from .schedule_program import ScheduleProgram


class Certificate(NamedTuple):
    """The lines of a certificate, and what it proves."""

    lines: Iterable[str]
    ns: int
    """The bound in nanoseconds that the certificate proves."""
    evidence_ns: int
    """What the evidence proves."""
    left_out: int
    """The number of lemmas that are not translated."""


def certificate(problem_file: str | Path, evidence_file: str | Path) -> Certificate:
    """Translate the evidence of a schedule's bound; raise `Refused` if a file is wrong.

    The certificate is about the schedules that take at most what the evidence proves: all others are longer anyway.
    """
    document, digest = read(problem_file, "tvm_sched.problem")
    evidence, _ = read(evidence_file, "tvm_sched.evidence")
    try:
        if evidence["problem"] != digest:
            raise Refused(f"the evidence is of problem {evidence['problem']}; the digest of {problem_file} is {digest}")
        if "relaxed" in evidence:
            document = document | {key: evidence["relaxed"][key] for key in ("graph", "costs")}
        elif "variants" in document:
            raise Refused("the problem has variants, but the evidence has no relaxed problem")
        program = ScheduleProgram(Problem(document), evidence["proved_ns"])
        results = [program.prove(lemma) for lemma in evidence["lemmas"]]
        bound = program.bound()
    except (LookupError, TypeError, ValueError, AttributeError, ArithmeticError) as error:
        raise Refused(f"a file is not as its format says: {type(error).__name__} {error}") from None
    names = (f"{prefix}_{n}: {name}" for prefix, of in (("C", program.problem.o), ("device", program.problem.d)) for name, n in of.items())
    comments = [f"Bound of problem {digest}: no schedule takes less than {bound} ns.", *names]
    lines = program.program.lines(comments, program.latency, bound)
    return Certificate(lines, bound, evidence["proved_ns"], results.count(None))
