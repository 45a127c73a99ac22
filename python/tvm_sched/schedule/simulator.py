"""Prices schedules by the rules of ``docs/model.md``; the work is done in ``cpp/simulate``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt

from ..errors import ScheduleError
from ..problem import Problem
from ._compiled import compiled, operator_bytes, placements_array, transfers_array
from .residency import Resident, resident_parameters, when_warm
from .resolve import resolved
from .rules import describe
from .schedule import Schedule, ScheduleIndex
from .timeline import Event, Timeline

Array = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Times:
    """When each part of a schedule runs, in nanoseconds.

    Attributes
    ----------
    start_ns, end_ns : array of int64
        Of each placement, in the schedule's order: the kernel.
    transfer_start_ns, transfer_end_ns : array of int64
        Of each transfer, in the schedule's order; a host_read starts with its operator and ends with its bus time.
    latency_ns : int
        End of the last kernel.
    peak_memory : array of int64
        Most bytes that each device holds at once. It can be above the device's memory: `verify` judges that.
    """

    start_ns: Array
    end_ns: Array
    transfer_start_ns: Array
    transfer_end_ns: Array
    latency_ns: int
    peak_memory: Array


def price(problem: Problem, index: ScheduleIndex) -> Times:
    """Times and peak memory of a schedule in integers; for schedulers that price many.

    Linear in operators, transfers and tensors read.

    Raises
    ------
    ScheduleError
        The schedule breaks one of rules 1 to 4 of ``docs/model.md``, so that it has no times. Memory is not judged.
    """
    native = compiled(problem)
    placements, transfers = placements_array(index), transfers_array(index)
    count = placements.shape[1]
    times = np.empty((2, count + transfers.shape[1]), dtype=np.int64)
    peak = np.empty(len(problem.topology.devices), dtype=np.int64)
    try:
        latency = native.simulate(placements, transfers, times, peak)
    except ValueError:
        raise _error(problem, index) from None
    except (IndexError, OverflowError, RuntimeError) as error:  # an index or a sum that is out of range
        raise ScheduleError(f"the schedule cannot be priced: {error}") from None
    return Times(times[0, :count], times[1, :count], times[0, count:], times[1, count:], latency, peak)


def _error(problem: Problem, index: ScheduleIndex) -> ScheduleError:
    rows = compiled(problem).violations(placements_array(index), transfers_array(index), 1)
    return ScheduleError(describe(problem, index, rows[0]).message)


def simulate(
    problem: Problem, schedule: Schedule, resident: Resident = 0.0, *, other_problem: bool = False
) -> Timeline:
    """The timeline that a schedule has by ``docs/model.md``; of a problem with variants, it is that of what was chosen.

    Parameters
    ----------
    problem, schedule
    resident : float or collection of str
        Parameters that are on the devices when the run begins: a part of the bytes of those that the schedule moves,
        or names. Their transfers take no time and are not in the timeline.
    other_problem : bool
        Allow a schedule that was made for another problem, such as one of other latencies.

    Raises
    ------
    ScheduleError
        The schedule was made for another problem, names what the problem lacks, or breaks one of rules 1 to 4. Memory is
        not judged: see `verify`.
    InputError
        ``resident`` is no part from 0 to 1 and no list of parameters.
    """
    if schedule.problem != problem.digest and not other_problem:
        raise ScheduleError(
            f"the schedule was made for problem {schedule.problem!r}, and this is {problem.digest!r}; simulate(..., "
            "other_problem=True) prices it all the same"
        )
    problem, schedule = resolved(problem, schedule)
    index = ScheduleIndex.of(problem, schedule)
    names = resident_parameters(problem, schedule, resident)
    if not names:
        return timeline(problem, schedule, price(problem, index), index)
    times = price(problem, when_warm(problem, index, names))
    full = timeline(problem, schedule, times, index)
    count = len(schedule.placements)
    moves = tuple(e for e in full.events[count:] if e.kind == "host_read" or e.name not in names)
    return msgspec.structs.replace(full, events=full.events[:count] + moves)


def timeline(problem: Problem, schedule: Schedule, times: Times, index: ScheduleIndex | None = None) -> Timeline:
    """The timeline of a schedule whose times are known."""
    index = ScheduleIndex.of(problem, schedule) if index is None else index
    starts = times.start_ns.tolist() + times.transfer_start_ns.tolist()
    ends = times.end_ns.tolist() + times.transfer_end_ns.tolist()
    kernels, transfers = _kernels(schedule, problem, index), _transfers(schedule, problem, index)
    kinds = ["kernel"] * len(kernels.names) + [t.kind for t in schedule.transfers]
    names, lanes = kernels.names + transfers.names, kernels.lanes + transfers.lanes
    events = tuple(map(Event, kinds, names, lanes, starts, ends, kernels.bytes + transfers.bytes))
    return Timeline("simulated", problem.digest, events, times.latency_ns)


class _Columns(NamedTuple):
    """What a timeline says of events besides their times."""

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


def memory_profile(problem: Problem, schedule: Schedule) -> list[list[tuple[int, int]]]:
    """For each device: the bytes it holds over time, as (time in nanoseconds, bytes from then on).

    Raises
    ------
    ScheduleError
        As `simulate`.
    """
    problem, schedule = resolved(problem, schedule)
    index = ScheduleIndex.of(problem, schedule)
    price(problem, index)  # says which rule is broken, with names
    rows = np.from_dlpack(compiled(problem).memory_profile(placements_array(index), transfers_array(index)))
    profile: list[list[tuple[int, int]]] = [[] for _ in problem.topology.devices]
    for device, time, held in rows.tolist():
        profile[device].append((time, held))
    return profile
