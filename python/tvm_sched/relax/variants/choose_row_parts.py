"""Choose the number of parts by rows (`split_rows`) whose quick schedule is fastest."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import tvm

from tvm_sched_runtime.errors import InfeasibleError, UnsplittableError
from tvm_sched_runtime.problem import Problem, Request, Workload

from ...progress import Progress
from ...schedulers import solve
from ..ir.attributes import get_problem

WORK = 1.0
"""Seconds of work of `anytime` for each number of parts."""

MOST_PARTS = 8
"""Largest number of parts that is tried."""

Made = TypeVar("Made")


def with_best_parts(
    make: Callable[[int], Made],
    problem_of: Callable[[Made], Problem],
    devices: int,
    requests: Callable[[Problem], Sequence[Request]] = lambda problem: (),
    progress: Progress | None = None,
) -> Made:
    """Return what ``make`` returns for the number of parts with the fastest schedule in a second of `anytime`'s work.

    The numbers are 1, 2, 4 and 8, as long as the model can be computed in so many parts, and up to the first power of two
    that is at least twice the number of devices: with more parts kernels become less efficient, and no device is used
    better. One device takes 1 part.
    """
    best, least = make(1), math.inf
    if devices == 1:
        return best
    for parts in _numbers(devices):
        if progress is not None:
            progress(f"{parts} parts by rows", 0, 0)
        try:
            made = make(parts) if parts > 1 else best
        except (
            UnsplittableError
        ):  # libraries compute kernels, or there are fewer rows; so more parts are impossible, too
            return best
        problem = problem_of(made)
        try:
            workload = Workload(requests=tuple(requests(problem)))
            schedule = solve(problem, workload, "anytime", {"work": WORK}, progress=progress)
        except InfeasibleError:
            continue
        assert schedule.certificate is not None
        if schedule.certificate.status == "interrupted":
            raise KeyboardInterrupt
        if schedule.certificate.latency_ns < least:
            best, least = made, schedule.certificate.latency_ns
    return best


def _numbers(devices: int) -> list[int]:
    numbers = [1]
    while numbers[-1] < min(2 * devices, MOST_PARTS):
        numbers.append(2 * numbers[-1])
    return numbers


@tvm.transform.module_pass(opt_level=0, name="tvm_sched.ChooseRowParts")
class ChooseRowParts:
    """Run the passes that make a problem for several numbers of parts by rows, and keep the fastest module.

    Parameters
    ----------
    passes_of : callable
        Returns the passes for a number of parts.
    devices : int
    progress : callable, optional
        Called with the current task, the number of finished parts, and the number of parts.

    Examples
    --------
    >>> from tvm_sched.relax.passes import ChooseRowParts
    >>> ChooseRowParts(lambda parts: [], devices=2).info.name
    'tvm_sched.ChooseRowParts'
    """

    def __init__(
        self, passes_of: Callable[[int], Sequence[Any]], devices: int, progress: Progress | None = None
    ) -> None:
        self.passes_of, self.devices, self.progress = passes_of, devices, progress

    def transform_module(self, mod: tvm.IRModule, ctx: tvm.transform.PassContext) -> tvm.IRModule:
        """Transform a module."""
        return with_best_parts(
            lambda parts: tvm.transform.Sequential(self.passes_of(parts))(mod),
            get_problem,
            self.devices,
            progress=self.progress,
        )
