"""Write the bound of evidence as a VIPR certificate, for a checker that others wrote (``docs/proofs/vipr.md``)."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from tvm_sched_check.alternative_bound import relaxed_of
from tvm_sched_check.document import MALFORMED, Problem, Refused, count, read, without

from .schedule_program import ScheduleProgram


class Written(NamedTuple):
    """What a certificate proves."""

    proved_ns: int
    """The bound in nanoseconds that the certificate proves."""
    evidence_ns: int
    """What the evidence proves."""
    left_out: int
    """The number of lemmas without a translation: their rule has none, or its cases are too many."""
    constraints: int
    """The number of constraints: what the certificate assumes of schedules."""
    derivations: int
    """The number of derived rows."""

    @property
    def all_proved(self) -> bool:
        """Whether the certificate proves all that the evidence does."""
        return self.proved_ns >= self.evidence_ns

    @property
    def lines(self) -> list[str]:
        """The result as lines of text."""
        less = f"; {self.left_out} lemmas have no translation" if self.left_out else ""
        return [
            f"the certificate proves {self.proved_ns} ns, the evidence {self.evidence_ns} ns{less}",
            f"{self.constraints} constraints, {self.derivations} derivations",
        ]


def write(problem_file: str | Path, evidence_file: str | Path, certificate_file: str | Path) -> Written:
    """Translate the evidence of a schedule's bound and write the certificate; raise `Refused` if a file is wrong.

    The certificate is about the schedules that take at most what the evidence proves: all others are longer anyway.
    """
    document, digest = read(problem_file, "tvm_sched.problem")
    evidence, _ = read(evidence_file, "tvm_sched.evidence")
    try:
        if evidence["problem"] != digest:
            raise Refused(f"the evidence is of problem {evidence['problem']}; the digest of {problem_file} is {digest}")
        document = without(document, evidence.get("resident", []))
        if document["costs"].get("concurrency") is not None and "variants" in document:
            raise Refused("variants together with costs.concurrency are not covered by this checker")
        relaxed, horizon = relaxed_of(document, evidence), count(evidence["proved_ns"])
        if horizon != evidence["lemmas"][-1]["ns"]:
            raise Refused(
                f"proved_ns of the evidence is {horizon}, but its last lemma says {evidence['lemmas'][-1]['ns']} ns"
            )
        translated = ScheduleProgram(Problem(document) if relaxed is None else relaxed.problem, horizon)
        proved = [translated.prove(lemma) for lemma in evidence["lemmas"]]
        bound = translated.bound()
    except MALFORMED as error:
        raise Refused(f"a file is not as its format says: {type(error).__name__} {error}") from None
    named = (("operator", translated.problem.o), ("device", translated.problem.d))
    names = (f"{what} {number}: {name!r}" for what, numbers in named for name, number in numbers.items())
    what = f"problem {digest}"
    if relaxed is not None:
        what = f"the relaxed problem of the evidence, and so with no choice of alternatives of {what},"
    comments = [f"No schedule of {what} takes less than {bound} ns.", *names]
    program = translated.program
    try:
        _write_lines(certificate_file, program.lines(comments, translated.latency, bound))
    except OSError as error:
        raise Refused(f"{certificate_file}: cannot be written ({error.strerror})") from None
    constraints, derived = map(len, program.used())
    return Written(bound, horizon, proved.count(None), constraints, derived)


def _write_lines(path: str | Path, lines: Iterable[str]) -> None:
    """Write a file as a whole or not at all: Ctrl-C or a full disk leave what was there before."""
    target = os.path.realpath(path)
    whole = os.path.isfile(target) or not os.path.exists(target)  # else a pipe, or the terminal
    new = f"{target}.{os.getpid()}.new" if whole else target
    try:
        with open(new, "w", encoding="ascii", errors="backslashreplace") as file:
            file.writelines(f"{line}\n" for line in lines)
        if whole:
            os.replace(new, target)
    except BaseException:
        if whole:
            Path(new).unlink(missing_ok=True)
        raise
