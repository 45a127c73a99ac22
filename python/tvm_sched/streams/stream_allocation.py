"""Assign the operators of a device to streams; the algorithms are in ``cpp/search/launches.cc``."""

from __future__ import annotations

from typing import NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt

from tvm_sched_runtime.errors import InputError
from tvm_sched_runtime.problem import Problem, Workload
from tvm_sched_runtime.schedule import Schedule, ScheduleIndex, evaluate
from tvm_sched_runtime.schedule.native_objects import native_problem

ALLOCATORS = ("one", "opara", "nimble", "wavefront", "fewest")
"""Names of the allocators."""


def allocate_streams(problem: Problem, schedule: Schedule, method: str = "opara") -> Schedule:
    """Allocate a stream to each operator; devices and launch order stay.

    Parameters
    ----------
    schedule : Schedule
        A schedule without stages and with a topological launch order.
    method : str
        ``"one"``: a single stream. ``"opara"``: the stream of the first predecessor that has no follower yet (Opara,
        Algorithm 1). ``"nimble"``: chains of a maximum matching on the minimum equivalent graph, which a second matching
        joins where a chain begins behind the end of another; they separate independent operators (Nimble, Section 4.2, and
        its authors' program, ``AutoStream``). ``"wavefront"``: separates operators of one depth (Rammer). ``"fewest"``: the
        fewest streams that separate independent operators (Dilworth), by a maximum matching on the transitive closure.
        ``"best"``: the one of these with the least simulated latency, then the fewest synchronisations.

    Raises
    ------
    InputError
        Unknown method, or the schedule has stages, which fix the streams.

    Examples
    --------
    >>> from tvm_sched.streams import allocate_streams
    >>> on_one = solve(problem, method="single")
    >>> [placement.stream for placement in allocate_streams(problem, on_one).placements]
    [0, 1, 0]
    """
    if method != "best" and method not in ALLOCATORS:
        raise InputError(f"there is no stream allocator {method!r}; there are {', '.join((*ALLOCATORS, 'best'))}")
    if any(placement.stage for placement in schedule.placements):
        raise InputError("the schedule has stages, and with them the streams of their operators; none can be allocated")
    if method == "best":
        candidates = [allocate_streams(problem, schedule, name) for name in ALLOCATORS]
        return min(candidates, key=lambda s: (latency_ns(problem, s), count_synchronizations(problem, s)))
    operators, devices, _ = launches_of(problem, schedule)
    streams = np.from_dlpack(native_problem(problem).allocate_streams(method, operators, devices))
    placements = tuple(
        msgspec.structs.replace(placement, stream=stream)
        for placement, stream in zip(schedule.placements, streams.tolist(), strict=True)
    )
    return priced_anew(problem, schedule.replace(placements=placements))


def limit_streams(problem: Problem, schedule: Schedule, most: int) -> Schedule:
    """Limit each device to ``most`` streams: stream ``k`` becomes ``k % most``.

    Any streams may be joined, since the operators of one run in the order of the schedule.

    Raises
    ------
    InputError
        ``most`` is below 1.

    Examples
    --------
    >>> from tvm_sched.streams import allocate_streams, limit_streams
    >>> streams = limit_streams(problem, allocate_streams(problem, solve(problem, method="single")), 1)
    >>> {placement.stream for placement in streams.placements}
    {0}
    """
    if most < 1:
        raise InputError(f"most is {most}; a device has at least 1 stream")
    placements = tuple(
        msgspec.structs.replace(placement, stream=placement.stream % most) for placement in schedule.placements
    )
    return priced_anew(problem, schedule.replace(placements=placements))


def priced_anew(problem: Problem, schedule: Schedule) -> Schedule:
    """Update the latency in a schedule's certificate, if it has one; the bound holds for all schedules."""
    certificate = schedule.certificate
    if certificate is None:
        return schedule
    latency, requests = evaluate(problem, schedule, Workload(certificate.requests))
    return schedule.replace(certificate=msgspec.structs.replace(certificate, latency_ns=latency, requests=requests))


def count_synchronizations(problem: Problem, schedule: Schedule) -> int:
    """Count the least waits between streams of a device that keep the order of operators.

    They are the edges between streams of one device in the transitive reduction of data dependences and stream orders.

    Examples
    --------
    >>> from tvm_sched.streams import allocate_streams, count_synchronizations
    >>> count_synchronizations(problem, allocate_streams(problem, solve(problem, method="single")))
    1
    """
    return native_problem(problem).count_synchronizations(*launches_of(problem, schedule))


class Launches(NamedTuple):
    """Operators in launch order, each after all that it reads, with their devices and streams."""

    operators: npt.NDArray[np.int64]
    devices: npt.NDArray[np.int64]
    streams: npt.NDArray[np.int64]


def launches_of(problem: Problem, schedule: Schedule) -> Launches:
    """Return the launches of a schedule; raise `InputError` if their order is not topological."""
    index = ScheduleIndex.of(problem, schedule)
    if sorted(index.operator) != list(range(len(problem.graph.operators))):
        raise InputError("the schedule does not place each operator of the problem once")
    place = {o: i for i, o in enumerate(index.operator)}
    before = problem.graph.index.predecessors
    late = next((o for o, i in place.items() if any(place[p] > i for p in before[o])), None)
    if late is not None:
        name = problem.graph.operators[late].name
        raise InputError(f"operator {name!r} stands before one that it reads from; streams need a topological order")
    operators, devices, _, streams, _ = (np.ascontiguousarray(row) for row in index.placements)
    return Launches(operators, devices, streams)


def latency_ns(problem: Problem, schedule: Schedule) -> int:
    """Return the latency of a schedule (ns) in the runs of its certificate."""
    return evaluate(problem, schedule, Workload(schedule.certificate.requests if schedule.certificate else ()))[0]
