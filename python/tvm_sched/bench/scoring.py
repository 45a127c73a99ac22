"""Score solutions in files, and keep the best known ones."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import msgspec

from ..errors import InputError, SchedulerError, TvmSchedError
from ..files import read_bytes
from .best_known import BestKnown, Known
from .kinds import Proof
from .kinds.kind import NO_FILES
from .run_files import Result
from .suite import Case, Suite

_ENDINGS = (".json.gz", ".json")

ROUNDING = 1e-3
"""By how much a bound may be weaker for the sake of evidence."""


def score(suite: Suite, folder: Path, method: str = "") -> Iterator[tuple[Case, Result, bytes]]:
    """Judge all solutions of a folder, ``FAMILY/INSTANCE.json`` or ``.json.gz``; a wrong one's result says why.

    Parameters
    ----------
    suite : Suite
    folder : Path
    method : str
        Whose they are; the folder's name when empty.

    Yields
    ------
    (Case, Result, bytes)
        The instance, what the solution is worth, and the solution.

    Raises
    ------
    InputError
        The folder holds no solution of the suite's instances.
    """
    found = list(_solutions(suite, folder))
    if not found:
        raise InputError(f"{folder} holds no solution: none of its files is called INSTANCE.json after an instance")
    for case, file in found:
        proof, content = case.proof, b""
        value, error = None, ""
        try:
            content = read_bytes(file)
            value = case.kind.worth(case.task, content, str(file))
        except TvmSchedError as wrong:
            error = str(wrong)
        name = method or folder.resolve().name
        yield (
            case,
            Result(case.name, case.kind.name, case.digest, name, 0, 0.0, value, proof.bound, proof.by, 0.0, error),
            content,
        )


def _solutions(suite: Suite, folder: Path) -> Iterator[tuple[Case, Path]]:
    for case in suite.cases:
        files = [folder / f"{case.name}{ending}" for ending in _ENDINGS]
        yield from ((case, file) for file in files if file.is_file())


def keep(best: BestKnown, judged: Iterable[tuple[Case, Result, bytes]]) -> list[Case]:
    """Check solutions that are better than the best known ones, and keep them; the instances of which some were.

    Raises
    ------
    InputError, SchedulerError
        The other implementation refuses a solution that the package has accepted, or differs from it.
    """
    changed = []
    for case, result, solution in judged:
        known = best.of(case)
        if result.value is None or not case.kind.better(result.value, known.value if known else None):
            continue
        proof = case.proof
        if known is not None and case.kind.better(proof.bound, known.bound):
            proof = Proof(known.bound, known.bound_by, best.evidence(case))
        checked, _ = _checked(case, solution, proof)
        best.add(
            case,
            Known(result.digest, result.value, result.method, proof.bound, proof.by, checked),
            solution,
            proof.evidence,
        )
        changed.append(case)
    return changed


def _checked(case: Case, solution: bytes, proof: Proof, files: Mapping[str, str] = NO_FILES) -> tuple[str, str]:
    """Which other implementation has checked a solution and its bound, and what the bound claims without proof."""
    found = case.kind.check(case.task, solution, proof, case.name, files)
    if not found.by or case.kind.holds(proof, found):
        return found.by, ""
    claim = ""
    if proof.evidence is not None:
        claim = f"{case.name}: the bound says {proof.bound:.15g}, and its evidence proves {found.proved:.15g} only"
    return f"{found.by}, {case.kind.measure} alone", claim


def check_kept(best: BestKnown, cases: Iterable[Case]) -> Iterator[tuple[Case, Known, str]]:
    """Check the kept solutions once more by the other implementation, with the kept evidence, and note what it has checked.

    Yields
    ------
    (Case, Known, str)
        The instances that have a kept solution, what is known of them, and, where the kept bound claims more than its
        evidence proves, a line that says so.

    Raises
    ------
    InputError, SchedulerError
        The other implementation refuses a kept solution, or differs from the package; a solution is not worth what
        best.json says.
    """
    for case in cases:
        known = best.of(case)
        if known is None:
            continue
        solution = best.solution(case)
        worth = case.kind.worth(case.task, solution, case.name)
        if not math.isclose(worth, known.value, rel_tol=1e-9):
            raise InputError(
                f"{case.name}: the kept solution is worth {worth:.15g}, and best.json says {known.value:.15g}"
            )
        proof = Proof(known.bound, known.bound_by, best.evidence(case))
        checked, claim = _checked(case, solution, proof, best.files(case))
        if checked != known.checked:
            known = msgspec.structs.replace(known, checked=checked)
            best.note(case, known)
        yield case, known, claim


@dataclass(frozen=True)
class Proving:
    """What `prove_kept` has come to for an instance.

    Parameters
    ----------
    case : Case
    before, now : Known
        Equal where nothing is kept, or new evidence of the same bound.
    replaced : bool
        Whether a bound was kept with its evidence.
    refused : str
        Why the kept solution or evidence is refused; empty where neither is.
    """

    case: Case
    before: Known
    now: Known
    replaced: bool = False
    refused: str = ""


def prove_kept(best: BestKnown, cases: Iterable[Case], iterations: int = 2000) -> Iterator[Proving]:
    """Find bounds of the kept solutions anew, with evidence; keep those that are proved and no weaker.

    A bound whose evidence does not prove it, or is refused, gives way to one that is proved although it is weaker by up to
    `ROUNDING`. Where the kept solution is refused nothing is changed.

    Parameters
    ----------
    best : BestKnown
    cases : iterable of Case
    iterations : int
        Of searches for bounds that have no end.

    Yields
    ------
    Proving
        Of the instances that have a kept solution.
    """
    for case in cases:
        known = best.of(case)
        if known is not None:
            yield _proved_anew(best, case, known, iterations)


def _proved_anew(best: BestKnown, case: Case, known: Known, iterations: int) -> Proving:
    files = best.files(case)
    old, was_proved, refused = Proof(known.bound, known.bound_by), False, ""
    try:
        solution = best.solution(case)
        proof = case.kind.prove(case.task, known.value, old, iterations)
        found = case.kind.check(case.task, solution, proof, case.name, {"solution": files["solution"]})
    except (InputError, SchedulerError) as error:
        return Proving(case, known, known, refused=str(error))
    try:
        old = Proof(known.bound, known.bound_by, best.evidence(case))
        was_proved = case.kind.holds(old, case.kind.check(case.task, solution, old, case.name, files))
    except InputError as error:
        refused = str(error)
    stronger = case.kind.better(known.bound, proof.bound)
    instead = not was_proved and case.kind.ratio(known.bound, proof.bound) <= 1 + ROUNDING
    if not case.kind.holds(proof, found) or not (stronger or instead):
        return Proving(case, known, known, refused=refused)
    now = Known(known.digest, known.value, known.method, proof.bound, proof.by, found.by)
    best.add(case, now, solution, proof.evidence)
    return Proving(case, known, now, True, refused)


def raise_bounds(best: BestKnown, suite: Suite, results: Iterable[Result]) -> list[Case]:
    """Keep the bounds of results that say more than the best known ones; the instances of which some did.

    These are methods' words: the evidence of a bound that was kept before goes with it, see `prove_kept`. So a bound with
    evidence stays where the other one says no more than `ROUNDING` beyond it.
    """
    changed = []
    for result in results:
        case = suite.case(result.instance)
        known = best.of(case) if case is not None else None
        if case is None or known is None or result.digest != known.digest or not result.bound_by:
            continue
        least = 1 + ROUNDING if best.evidence(case) is not None else 1.0
        if case.kind.better(known.bound, result.bound) and case.kind.ratio(result.bound, known.bound) > least:
            solution = best.solution(case)
            checked, _ = _checked(case, solution, Proof(result.bound, result.bound_by))
            new = Known(known.digest, known.value, known.method, result.bound, result.bound_by, checked)
            best.add(case, new, solution, None)
            changed.append(case)
    return changed
