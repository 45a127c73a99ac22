"""Price schedules by the rules of ``docs/model.md``; the simulator is in ``cpp/simulate``."""

from __future__ import annotations

from typing import NamedTuple

import msgspec

from ..checks import require_kind
from ..errors import ScheduleError
from ..problem import Problem
from .indexed import ScheduleIndex, Times
from .native_objects import operator_bytes
from .residency import Resident, resolved_in_run
from .schedule import Schedule
from .timeline import Event, Timeline


def simulate(
    problem: Problem, schedule: Schedule, resident: Resident = 0.0, *, other_problem: bool = False
) -> Timeline:
    """Simulate a schedule by the rules of ``docs/model.md``; with variants, of the chosen alternatives.

    Parameters
    ----------
    resident : float or collection of str, optional
        Parameters that are on the devices when the run begins: a fraction of the bytes of the parameters that the schedule
        moves, or names; default: none. Their transfers take no time and are not in the timeline.
    other_problem : bool
        Allow a schedule of another problem, such as one with other latencies.

    Raises
    ------
    ScheduleError
        The schedule is of another problem, names something that the problem lacks, or breaks one of rules 1 to 4. Memory is
        not checked: see `verify`.
    InputError
        ``resident`` is neither a fraction from 0 to 1 nor a list of parameters.

    Examples
    --------
    >>> from tvm_sched_runtime.schedule import simulate
    >>> timeline = simulate(problem, schedule)
    >>> timeline.latency_ns, [event.name for event in timeline.events if event.kind == "kernel"]
    (3750, ['right', 'left', 'join'])
    >>> simulate(problem, schedule, resident=["w"]).latency_ns
    3250
    """
    require_kind("problem", problem, Problem, "a Problem")
    require_kind("schedule", schedule, Schedule, "a Schedule")
    if schedule.problem != problem.digest and not other_problem:
        raise ScheduleError(
            f"the schedule was made for problem {schedule.problem!r}, and this is {problem.digest!r}; simulate(..., "
            "other_problem=True) prices it all the same"
        )
    scenario, schedule = resolved_in_run(problem, schedule, resident)
    full = timeline(scenario.problem, schedule, ScheduleIndex.of(scenario, schedule).times)
    names = scenario.resident - {t.tensor for t in schedule.transfers if t.evict}
    if not names:
        return full
    count = len(schedule.placements)
    moves = tuple(e for e in full.events[count:] if e.kind == "host_read" or e.name not in names)
    return msgspec.structs.replace(full, events=full.events[:count] + moves)


def timeline(problem: Problem, schedule: Schedule, times: Times) -> Timeline:
    """Return the timeline of a schedule whose times are known."""
    index = ScheduleIndex.of(problem, schedule)
    starts = times.start_ns.tolist() + times.transfer_start_ns.tolist()
    ends = times.end_ns.tolist() + times.transfer_end_ns.tolist()
    kernels, transfers = _kernels(schedule, problem, index), _transfers(schedule, problem, index)
    kinds = ["kernel"] * len(kernels.names) + [t.kind for t in schedule.transfers]
    names, lanes = kernels.names + transfers.names, kernels.lanes + transfers.lanes
    events = tuple(map(Event, kinds, names, lanes, starts, ends, kernels.bytes + transfers.bytes))
    return Timeline("simulated", problem.digest, events, times.latency_ns)


class _Columns(NamedTuple):
    """Return the fields of a timeline's events other than their times."""

    names: list[str]
    lanes: list[tuple[str, ...]]
    bytes: list[int]


def _kernels(schedule: Schedule, problem: Problem, index: ScheduleIndex) -> _Columns:
    size = operator_bytes(problem)
    lane = {key: (f"{key[0]}/{key[1]}",) for key in {(p.device, p.stream) for p in schedule.placements}}
    return _Columns(
        [p.operator for p in schedule.placements],
        [lane[p.device, p.stream] for p in schedule.placements],
        [size[o] for o in index.operator],
    )


def _transfers(schedule: Schedule, problem: Problem, index: ScheduleIndex) -> _Columns:
    size, channels = problem.graph.index.size, problem.topology.channels
    pairs = list(zip(index.transfer_source, index.transfer_device, strict=True))
    lanes: dict[tuple[int, int], tuple[str, ...]] = {}
    for source, target in set(pairs):
        route = problem.topology.route(source, target)
        lanes[source, target] = () if route is None else tuple(channels[c] for c in route.channels)
    return _Columns(
        [t.operator or t.tensor for t in schedule.transfers],
        [lanes[pair] for pair in pairs],
        [
            problem.host_bytes(item) if kind == ScheduleIndex.HOST_READ else size[item]
            for kind, item in zip(index.transfer_kind, index.transfer_item, strict=True)
        ],
    )


def memory_profile(problem: Problem, schedule: Schedule, resident: Resident = 0.0) -> list[list[tuple[int, int]]]:
    """Return for each device the bytes that it holds over time, as (time in nanoseconds, bytes from then on).

    ``resident`` is as in `simulate`.

    Raises
    ------
    ScheduleError
        As `simulate`.

    Examples
    --------
    >>> from tvm_sched_runtime.schedule import memory_profile
    >>> memory_profile(problem, schedule)[1]
    [(250, 4000), (350, 8000), (1350, 4000), (1450, 0)]
    """
    scenario, schedule = resolved_in_run(problem, schedule, resident)
    index = ScheduleIndex.of(scenario, schedule)
    _ = index.times  # says which rule is broken, with names
    profile: list[list[tuple[int, int]]] = [[] for _ in scenario.topology.devices]
    for device, time, held in index.memory_profile().tolist():
        profile[device].append((time, held))
    return profile
