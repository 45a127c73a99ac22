"""Score solutions in files, and keep the best known ones."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import msgspec

from tvm_sched_runtime.errors import InputError, SchedulerError, TvmSchedError
from tvm_sched_runtime.files import read_bytes

from .best_known import BestKnown, Known
from .kinds import Proof
from .kinds.kind import NO_FILES
from .run_files import Result
from .suite import Case, Suite

_ENDINGS = (".json.gz", ".json")

ROUNDING = 1e-3
"""Relative amount by which a bound with evidence may be weaker than one without."""


def score(suite: Suite, folder: Path, method: str = "") -> Iterator[tuple[Case, Result, bytes]]:
    """Score all solutions of a folder, ``FAMILY/INSTANCE.json`` or ``.json.gz``; a wrong one's result has the error.

    Parameters
    ----------
    method : str
        Name of the method; default: the folder's name.

    Yields
    ------
    (Case, Result, bytes)
        The instance, the result, and the solution.

    Raises
    ------
    InputError
        The folder holds no solution of the suite's instances.

    Examples
    --------
    >>> from pathlib import Path
    >>> from tvm_sched_bench import score
    >>> Path("mine/small").mkdir(parents=True)
    >>> schedule.save(f"mine/{case.name}.json")
    >>> [(scored.value, scored.error) for _, scored, _ in score(suite, Path("mine"))]
    [(3750, '')]
    """
    solutions = list(_solutions(suite, folder))
    if not solutions:
        raise InputError(f"{folder} holds no solution: none of its files is called INSTANCE.json after an instance")
    for case, file in solutions:
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
    """Check solutions that are better than the best known ones, and keep them; return their instances.

    Raises
    ------
    InputError, SchedulerError
        The other implementation refuses a solution that the package accepted, or prices it differently.

    Examples
    --------
    >>> from tvm_sched_bench import keep
    >>> [kept.name for kept in keep(best, [(case, result, schedule.to_json())])], best.of(case).value
    (['small/fork'], 3750.0)
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
    """Check a solution and its bound; return the other implementation's name, and a line on an unproved claim."""
    checked = case.kind.check(case.task, solution, proof, case.name, files)
    if not checked.by or case.kind.holds(proof, checked):
        return checked.by, ""
    claim = ""
    if proof.evidence is not None:
        claim = f"{case.name}: the bound says {proof.bound:.15g}, and its evidence proves {checked.proved:.15g} only"
    return f"{checked.by}, {case.kind.measure} alone", claim


def check_kept(best: BestKnown, cases: Iterable[Case]) -> Iterator[tuple[Case, Known, str]]:
    """Check the kept solutions and evidence again with the other implementation, and record the outcome.

    Yields
    ------
    (Case, Known, str)
        Each instance with a kept solution, its record, and a line if the bound claims more than its evidence proves.

    Raises
    ------
    InputError, SchedulerError
        The other implementation refuses a kept solution or differs from the package, or best.json has another value.

    Examples
    --------
    >>> from tvm_sched_bench import check_kept, keep
    >>> kept = keep(best, [(case, result, schedule.to_json())])
    >>> [(checked.name, error) for checked, _, error in check_kept(best, suite.cases)]
    [('small/fork', '')]
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
    """Outcome of `prove_kept` for an instance."""

    case: Case
    before: Known
    now: Known
    """Equal if nothing was replaced, or only the evidence of the same bound."""
    replaced: bool = False
    """Whether a new bound was kept with its evidence."""
    refused: str = ""
    """Why the kept solution or evidence is refused; empty if it is not."""


def prove_kept(best: BestKnown, cases: Iterable[Case], iterations: int = 2000) -> Iterator[Proving]:
    """Compute bounds of the kept solutions again, with evidence; keep those that are proved and no weaker.

    A proved bound also replaces an unproved one that is stronger by at most `ROUNDING`. If the kept solution is refused,
    nothing changes.

    Parameters
    ----------
    iterations : int
        Iterations of searches for bounds that do not end by themselves.

    Yields
    ------
    Proving
        Outcome for each instance with a kept solution.

    Examples
    --------
    >>> from tvm_sched_bench import keep, prove_kept
    >>> kept = keep(best, [(case, result, schedule.to_json())])
    >>> [proving.case.name for proving in prove_kept(best, suite.cases)]
    ['small/fork']
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
        checked = case.kind.check(case.task, solution, proof, case.name, {"solution": files["solution"]})
    except (InputError, SchedulerError) as error:
        return Proving(case, known, known, refused=str(error))
    try:
        old = Proof(known.bound, known.bound_by, best.evidence(case))
        was_proved = case.kind.holds(old, case.kind.check(case.task, solution, old, case.name, files))
    except InputError as error:
        refused = str(error)
    stronger = case.kind.better(known.bound, proof.bound)
    instead = not was_proved and case.kind.ratio(known.bound, proof.bound) <= 1 + ROUNDING
    if not case.kind.holds(proof, checked) or not (stronger or instead):
        return Proving(case, known, known, refused=refused)
    now = Known(known.digest, known.value, known.method, proof.bound, proof.by, checked.by)
    best.add(case, now, solution, proof.evidence)
    return Proving(case, known, now, True, refused)


def raise_bounds(best: BestKnown, suite: Suite, results: Iterable[Result]) -> list[Case]:
    """Keep the bounds of results that are stronger than the best known ones; return their instances.

    These bounds have no evidence (see `prove_kept`), and the old evidence is deleted. So a bound with evidence stays
    unless the new one is stronger by more than `ROUNDING`.

    Examples
    --------
    >>> from tvm_sched_bench import keep, raise_bounds
    >>> kept = keep(best, [(case, result, schedule.to_json())])
    >>> [raised.name for raised in raise_bounds(best, suite, [result])]
    []
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
