"""Run all methods on all instances for the same time, each in its own process with a hard time limit."""

from __future__ import annotations

import multiprocessing
import time
import traceback
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection

from tvm_sched_runtime.errors import InputError, TvmSchedError

from .kinds import Answer, Proof
from .run_files import Circumstances, Result, Run
from .suite import Case

_LOOK = 0.1
"""Seconds between two checks of a process; Ctrl-C ends it within this time."""


@dataclass(frozen=True)
class RunLimits:
    """Limits of a method's runs.

    Examples
    --------
    >>> from tvm_sched_bench import RunLimits
    >>> RunLimits(seconds=1.0, overtime=2.0).most
    5.0
    """

    seconds: float
    """Time limit of methods that have one."""
    seeds: int = 1
    """Runs of a random method, with seeds from 0."""
    overtime: float = 30.0
    """A process is killed after ``3 * seconds + overtime`` seconds; its result is then an error."""

    def __post_init__(self) -> None:
        if not 0 < self.seconds < float("inf"):
            raise InputError(f"seconds is {self.seconds}; a finite number above 0 is allowed")
        if self.seeds < 1:
            raise InputError(f"seeds is {self.seeds}; 1 or more are allowed")

    @property
    def most(self) -> float:
        """Seconds after which a process is killed."""
        return 3 * self.seconds + self.overtime


def run(
    cases: Sequence[Case],
    limits: RunLimits,
    into: Run,
    methods: Sequence[str] = (),
    tell: Callable[[Case, Result], None] = lambda case, result: None,
) -> None:
    """Run all methods that have no result yet; keep each result at once.

    Parameters
    ----------
    into : Run
        Folder of results.
    methods : sequence of str
        Names; default: all. Each kind runs the ones that it has.
    tell : callable
        Called with each new result.

    Raises
    ------
    InputError
        No kind has one of the methods, or the folder is of another run.

    Examples
    --------
    >>> from pathlib import Path
    >>> from tvm_sched_bench import Run, RunLimits, run
    >>> run(suite.cases, RunLimits(seconds=1.0), Run(Path("out")), methods=["heft"])
    >>> [result.value for result in Run(Path("out")).results]
    [3750.0]
    """
    known = {method for case in cases for method in case.kind.methods()}
    if unknown := [name for name in methods if name not in known]:
        raise InputError(f"no instance's kind has a method {unknown[0]!r}; there are {', '.join(sorted(known))}")
    into.begin(Circumstances.here(limits.seconds, limits.seeds))
    for case in cases:
        wanted = [(m, s) for m in case.kind.methods() if not methods or m in methods for s in _seeds(case, m, limits)]
        done = {(r.method, r.seed) for r in into.results if r.instance == case.name and r.digest == case.digest}
        if missing := [each for each in wanted if each not in done]:
            for method, seed in missing:
                tell(case, _run_one(case, method, seed, limits, into))


def _seeds(case: Case, method: str, limits: RunLimits) -> Iterator[int]:
    yield from range(limits.seeds if case.kind.is_random(method) else 1)


def _run_one(case: Case, method: str, seed: int, limits: RunLimits, into: Run) -> Result:
    proof, begin = case.proof, time.monotonic()
    answer = _in_process(case, method, seed, limits)
    error, value, solution, seconds = "", None, None, time.monotonic() - begin
    if isinstance(answer, Answer):
        value, solution, seconds = answer.value, answer.solution, answer.seconds
        proof = _stronger(case, proof, answer.proof)
    else:
        error = answer
    before = [
        r.value
        for r in into.results
        if (r.instance, r.digest, r.method) == (case.name, case.digest, method) and r.value is not None
    ]
    result = Result(
        case.name,
        case.kind.name,
        case.digest,
        method,
        seed,
        limits.seconds,
        value,
        proof.bound,
        proof.by,
        seconds,
        error,
    )
    best = value is not None and all(case.kind.better(value, other) for other in before)
    into.add(result, solution, best)
    return result


def _stronger(case: Case, ours: Proof, theirs: Proof | None) -> Proof:
    """Return the stronger of the bounds of package and method."""
    return theirs if theirs is not None and case.kind.better(ours.bound, theirs.bound) else ours


def _in_process(case: Case, method: str, seed: int, limits: RunLimits) -> Answer | str:
    """Run a method in a forked process; return its answer or an error."""
    receive, send = multiprocessing.Pipe(duplex=False)
    process = multiprocessing.get_context("fork").Process(
        target=_solve, args=(send, case, method, limits.seconds, seed), daemon=True
    )
    with warnings.catch_warnings():
        # Python 3.12 warns of forks beside threads; here the other thread only waits for Ctrl-C.
        warnings.simplefilter("ignore", DeprecationWarning)
        process.start()
    send.close()
    try:
        waited, last = 0.0, time.monotonic()
        while not receive.poll(_LOOK):
            # Pauses in which this process was stopped too, as when a machine sleeps, do not count.
            now = time.monotonic()
            waited, last = waited + min(now - last, 10 * _LOOK), now
            if waited > limits.most:
                return f"ended after {limits.most:g} s, where it was given {limits.seconds:g}"
        answer: Answer | str = receive.recv()
        return answer
    except EOFError:
        process.join()
        return f"its process ended with status {process.exitcode}"
    finally:
        process.kill()
        process.join()
        receive.close()


def _solve(send: Connection, case: Case, method: str, seconds: float, seed: int) -> None:
    """Run the method and send its answer; this runs in the forked process."""
    try:
        answer: Answer | str = case.kind.solve(case.task, method, seconds, seed)
    except TvmSchedError as error:
        answer = str(error)
    except Exception as error:  # an error of the method, shown in the table
        place = traceback.extract_tb(error.__traceback__)[-1]
        answer = f"{type(error).__name__}: {error} ({place.filename.rpartition('/')[2]}:{place.lineno})"
    send.send(answer)
