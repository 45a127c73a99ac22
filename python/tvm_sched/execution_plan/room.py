"""Stages without barriers: an operator starts beside operators of earlier stages if the device has room for all."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from tvm_sched_runtime.problem import Problem
from tvm_sched_runtime.schedule import ScheduleIndex

if TYPE_CHECKING:
    from .steps import Step

_ROUNDING = 1e-9


def wait_for_room(problem: Problem, at: ScheduleIndex, kernels: list[Step]) -> None:
    """Make kernels on devices with stages wait for earlier ones until the kernels that may still run leave room.

    On each other stream, one of the earlier kernels that are not known to have ended may still run. Kernels of the same
    stage are excepted: they share the device. The room is cores if a device divides its threads among streams, else each
    resource of the costs. A kernel first waits for the streams that are planned to end first. So operators that do not fit
    at the same time stay apart, and other operators need no barrier.

    Parameters
    ----------
    kernels : list of Step
        Kernels by placement, with their waits; further waits are added.
    """
    staged = {d for d, stage in zip(at.device, at.stage, strict=True) if stage}
    parts = _parts(problem, at)
    position = {id(step): k for k, step in enumerate(kernels)}
    over: list[set[int]] = []  # of each kernel: the kernels that have ended when it begins
    launched: dict[int, list[int]] = {}
    for k, step in enumerate(kernels):
        known: set[int] = set()
        for before in (*step.waits, *step.after):
            if (other := position.get(id(before), k)) < k:
                known |= over[other] | {other}
        over.append(known)
        if step.device not in staged:
            continue
        unfinished: dict[str, list[int]] = {}
        for other in launched.get(step.device, ()):
            same_stage = at.stage[k] and at.stage[other] == at.stage[k]
            if not same_stage and other not in known and kernels[other].queue != step.queue:
                unfinished.setdefault(kernels[other].queue, []).append(other)
        for last in _waited_for(unfinished, parts, parts[k], kernels):
            step.after.append(kernels[last])
            known |= over[last] | {last}
        launched.setdefault(step.device, []).append(k)


def _parts(problem: Problem, at: ScheduleIndex) -> list[npt.NDArray[np.float64]]:
    """Return for each placement its fraction of its device's cores, or of each resource."""
    together = problem.costs.concurrency
    assert together is not None, "stages need it"
    parts = []
    for o, d, used in zip(at.operator, at.device, at.threads(), strict=True):
        threads = together.threads[d] if together.threads else 0
        parts.append(np.array([used / threads]) if threads else together.utilisation[o, d])
    return parts


def _waited_for(
    unfinished: dict[str, list[int]],
    parts: list[npt.NDArray[np.float64]],
    own: npt.NDArray[np.float64],
    kernels: list[Step],
) -> list[int]:
    """Return the last kernels of streams to wait for until ``own`` fits beside the other streams."""
    largest = {queue: np.max([parts[k] for k in steps], axis=0) for queue, steps in unfinished.items()}
    chosen = []
    for queue in sorted(unfinished, key=lambda queue: (kernels[unfinished[queue][-1]].end_ns, unfinished[queue][-1])):
        if bool((sum(largest.values(), own) <= 1 + _ROUNDING).all()):
            break
        chosen.append(unfinished[queue][-1])
        del largest[queue]
    return chosen
