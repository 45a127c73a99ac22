"""Call the search algorithms of ``cpp/search`` on a problem, and convert their answers to schedules."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np

from tvm_sched_runtime.errors import InfeasibleError
from tvm_sched_runtime.problem import Scenario
from tvm_sched_runtime.schedule import ScheduleIndex
from tvm_sched_runtime.schedule.native_objects import native_problem
from tvm_sched_runtime.search_budget import check_time

from ...progress import report_progress
from .events import Run
from .partial import PartialSchedule

if TYPE_CHECKING:
    from tvm_sched_runtime.schedule.native_problem import IosLimits, NativeSchedule

ListMethod = Literal["heft", "peft"]
"""Rules of list scheduling."""

Mapping = Literal["paths", "records", "records-anywhere"]
"""How HIOS chooses devices: HIOS-LP, HIOS-MR, or HIOS-MR with the first operator on any device."""

SCALES = (1.0, 0.9, 0.75, 0.6)
"""Fractions of the memory to try in a schedule or its repair: the memory over time is known only afterwards."""


CACHED_PLACES = 128_000
"""Tensors times devices of which a core's cache holds the times; annealing of more is slower in proportion."""


class Speed(NamedTuple):
    """Operators that annealing prices in a second on one idle core of a server: without stages, and with them."""

    alone: int
    in_stages: int

    @staticmethod
    def of(scenario: Scenario) -> Speed:
        """Return the usual speed for problems of this kind."""
        if is_contention_free(scenario):
            return Speed(40_000_000, 20_000_000)
        places = len(scenario.graph.tensors) * len(scenario.topology.devices)
        cached = min(1.0, CACHED_PLACES / max(places, 1))
        loads = any(scenario.graph.index.host_inputs)
        alone, in_stages = (12_000_000, 12_000_000) if loads else (22_000_000, 15_000_000)
        return Speed(int(cached * alone), int(cached * in_stages))


class Effort(NamedTuple):
    """Limits of a search: the number of operators to price, which does not depend on the machine.

    ``goal`` is a lower bound of the latency in nanoseconds, ``stage`` the largest number of operators of a stage, and
    ``deadline`` the `time.monotonic` at which the search ends in any case.
    """

    operators: int
    seed: int
    goal: int
    stage: int
    deadline: float

    @staticmethod
    def of(scenario: Scenario, seconds: float, deadline: float, seed: int, goal: int, stage: int = 1) -> Effort:
        """Return the work of about this many seconds on an idle machine."""
        speed = Speed.of(scenario)
        operators = min(seconds * (speed.in_stages if stage > 1 else speed.alone), _MOST_OPERATORS)
        return Effort(int(operators), seed, goal, stage, deadline)


_MOST_OPERATORS = 1 << 62
"""A work without end, as an integer of C++."""


def is_contention_free(scenario: Scenario) -> bool:
    """Return whether nothing has to be loaded and no copy waits for another."""
    return not any(scenario.graph.index.host_inputs) and not scenario.topology.channels


def list_order(scenario: Scenario, method: ListMethod) -> ScheduleIndex:
    """Return the schedule of HEFT or PEFT, without regard to memory."""
    return _index(scenario, native_problem(scenario).list_schedule(method))


def hios(scenario: Scenario, mapping: Mapping, window: int, streams: int) -> ScheduleIndex:
    """Return HIOS's schedule with stages of up to ``window`` operators on ``streams`` streams, without regard to memory."""
    return _index(scenario, _call(native_problem(scenario).hios, mapping, window, streams, progress=_reporter(mapping)))


class TooManyStates(NamedTuple):
    """A block that IOS refuses: number of operators, and about log2 of its number of states."""

    operators: int
    log2_states: int


class Profiled(NamedTuple):
    """Number of distinct stages whose time IOS needs, and nanoseconds to measure each once."""

    stages: int
    time_ns: int


def ios(scenario: Scenario, device: int, limits: IosLimits) -> tuple[ScheduleIndex, Profiled] | TooManyStates:
    """Return the schedule of IOS, or the block that has more states than ``limits`` allow.

    Blocks are the scenario's submodels; without these IOS finds them.
    """
    blocks = scenario.submodel_operators or []
    block_of = np.zeros(sum(map(len, blocks)), dtype=np.int64)
    for number, operators in enumerate(blocks):
        block_of[operators] = number
    result = _call(native_problem(scenario).ios, device, limits, block_of, progress=_reporter("states"))
    if result.too_many_states:
        return TooManyStates(result.block_operators, result.log2_states)
    return _index(scenario, result.schedule), Profiled(result.profiled_stages, result.profiled_ns)


def anneal(scenario: Scenario, start: ScheduleIndex, effort: Effort) -> ScheduleIndex:
    """Anneal the order, devices and stages of ``start``; return the best schedule, ``start`` if no other is better.

    Loads and copies are placed anew, each before its reader. Memory is ignored.
    """
    from tvm_sched_runtime.schedule.native_problem import AnnealingEffort  # loads the library

    operators, devices = (np.array(column, dtype=np.int64) for column in (start.operator, start.device))
    joins = np.array([a == b > 0 for a, b in pairwise([0, *start.stage])], dtype=np.int64)
    work = AnnealingEffort(
        operators=effort.operators, seed=effort.seed, goal_ns=effort.goal, stage_operators=effort.stage
    )
    begin = time.monotonic()

    def clock(done: int, total: int) -> float:
        report_progress("annealing", done, total)
        return (time.monotonic() - begin) / max(effort.deadline - begin, 1e-9)

    annealed = _index(scenario, _call(native_problem(scenario).anneal, operators, devices, joins, work, progress=clock))
    if start.scenario != scenario:  # with other lags or resident parameters
        start = ScheduleIndex(scenario, start.placements, start.transfers)
    return min(start, annealed, key=lambda index: index.objective_ns)


def anneal_several(starts: Sequence[ScheduleIndex], effort: Effort) -> ScheduleIndex:
    """Anneal several starts, each in its own scenario, by successive halving; return the best schedule.

    After Karnin, Koren and Somekh, *Almost optimal exploration in multi-armed bandits* (ICML 2013), but each round has twice
    the work of the one before, so that the last start gets more than half of all.
    """
    schedules = list(starts)
    rounds = max(len(schedules) - 1, 0).bit_length() + 1
    now, seconds = time.monotonic(), effort.deadline - time.monotonic()
    for r in range(rounds):
        share = 2**r / (2**rounds - 1) / len(schedules)
        annealed = []
        for i, start in enumerate(schedules):
            now += share * seconds
            part = effort._replace(operators=int(share * effort.operators), seed=effort.seed + i, deadline=now)
            annealed.append(anneal(start.scenario, start, part))
        annealed.sort(key=lambda index: index.objective_ns)
        schedules = annealed[: (len(annealed) + 1) // 2]
    return schedules[0]


def _call(function: Callable[..., Any], *arguments: Any, progress: Callable[[int, int], Any]) -> Any:
    """Call C++ with a callback, and re-raise the callback's exception (Ctrl-C, `OutOfTime`), which the boundary would wrap."""
    raised: list[BaseException] = []

    def guarded(done: int, total: int) -> Any:
        try:
            return progress(done, total)
        except BaseException as error:
            raised.append(error)
            raise

    try:
        return function(*arguments, guarded)
    except BaseException as error:
        if raised:
            raise raised[0] from None
        if isinstance(error, RuntimeError) and not str(error):
            # Ctrl-C between the boundary and the first line of the callback, which can catch nothing there.
            raise KeyboardInterrupt from None
        raise


def _reporter(what: str) -> Callable[[int, int], None]:
    def report(done: int, total: int) -> None:
        report_progress(what, done, total)
        check_time()

    return report


def _index(scenario: Scenario, native: NativeSchedule | None) -> ScheduleIndex:
    if native is None:
        raise InfeasibleError("an operator has no device that can run it and that all its inputs can reach")
    return ScheduleIndex.of_native(scenario, native)


def fit_into_memory(index: ScheduleIndex) -> ScheduleIndex:
    """Return the schedule if it fits into memory, else one with the same devices and order that fits.

    Raises
    ------
    InfeasibleError
        No repair succeeds; the message names the device that is short of memory.
    """
    scenario, short = index.scenario, shortfall(index)
    if short[0] <= 0:
        return index
    runs = [Run(*run) for run in zip(index.operator, index.device, index.direct, strict=True)]
    for scale in () if any(index.stage) else SCALES:
        state = PartialSchedule(scenario, scale)
        if not _place_runs(state, runs):
            continue
        repaired = state.to_index()
        if shortfall(repaired)[0] <= 0:
            return repaired
    raise InfeasibleError(
        f"memory does not suffice: device {short[1]!r} is short of {short[0]} bytes in the schedule of this method, which "
        "ignores memory; use 'anytime', devices with more memory, or more of them"
    )


def _place_runs(state: PartialSchedule, runs: Sequence[Run]) -> bool:
    """Append operators in their order with their missing tensors; return False if memory does not suffice."""
    for run in runs:
        if not state.needs(*run):
            state.append(run)
            continue
        extension = state.extension(*run)
        if extension is None:
            return False
        state.place(extension)
    return state.fits()


def shortfalls(index: ScheduleIndex) -> list[int]:
    """Return the bytes that each device's memory lacks; 0 or less if it suffices."""
    devices = index.scenario.topology.devices
    return [int(peak) - device.memory for peak, device in zip(index.peak_memory, devices, strict=True)]


def shortfall(index: ScheduleIndex) -> tuple[int, str]:
    """Return the bytes missing on the device that lacks most, and its name; 0 or less if all fits."""
    names = (device.name for device in index.scenario.topology.devices)
    return max(zip(shortfalls(index), names, strict=True))
