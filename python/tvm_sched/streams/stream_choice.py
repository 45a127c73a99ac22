"""Streams and launch order of a schedule: by a named method, or the best of all methods by predicted latency; verified."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

from tvm_sched_runtime.errors import InputError, did_you_mean
from tvm_sched_runtime.problem import Problem
from tvm_sched_runtime.schedule import Schedule
from tvm_sched_runtime.schedule.schedule import weighted_mean
from tvm_sched_runtime.schedule.thread_blocks import knows_blocks, simulate_blocks
from tvm_sched_runtime.schedule.verifier import verify, violations

from .launch_order import LAUNCH_ORDERS, order_launches
from .stream_allocation import ALLOCATORS, allocate_streams, latency_ns, limit_streams

T = TypeVar("T")
_LIMITS = (2, 4, 8, 16)
BEST = "best"
"""Name for the method of least predicted latency; the schedule as it is counts, too."""


def check_methods(streams: str | None = None, launch_order: str | None = None) -> None:
    """Check names of methods before the long work; None means `BEST`.

    Raises
    ------
    InputError
        A name is unknown; the message lists the known ones.

    Examples
    --------
    >>> from tvm_sched.streams import check_methods
    >>> check_methods(streams="opara", launch_order="best")
    >>> check_methods(streams="many")
    Traceback (most recent call last):
        ...
    tvm_sched_runtime.errors.InputError: streams is 'many'; allowed are one, opara, nimble, wavefront, ...
    """
    for what, name, known in (("streams", streams, ALLOCATORS), ("launch_order", launch_order, LAUNCH_ORDERS)):
        if name not in (None, BEST, *known):
            raise InputError(
                f"{what} is {name!r}{did_you_mean(str(name), known)}; allowed are {', '.join((*known, BEST))}"
            )


def choose_streams(problem: Problem, schedule: Schedule, method: str | None = None) -> Schedule:
    """Set the streams of a schedule by a method (`allocate_streams`), by default `best_streams`.

    Raises
    ------
    InputError
        Unknown method; or a method is named, and the schedule has stages, or costs without concurrency, so that streams have
        no effect.
    ScheduleError
        With these streams the schedule breaks a rule of ``docs/model.md``, such as a device's memory.

    Examples
    --------
    >>> from tvm_sched.cost_model import occupancy
    >>> from tvm_sched.streams import choose_streams
    >>> both = Problem(graph, topology, occupancy(graph, topology))
    >>> [placement.stream for placement in choose_streams(both, solve(both, method="single"), "opara").placements]
    [0, 1, 0]
    """
    check_methods(streams=method)
    if method in (None, BEST):
        return best_streams(problem, schedule)
    if method != ALLOCATORS[0] and problem.costs.concurrency is None:
        raise InputError(
            f"streams of {method!r} would have no effect: the costs ({problem.costs.source or 'of the file'}) do not say "
            "how long operators take together. Costs of the model 'occupancy' do, and those that the topology 'cpu' measures"
        )
    chosen = allocate_streams(problem, schedule, str(method))
    verify(problem, chosen)
    return chosen


def choose_launch_order(problem: Problem, schedule: Schedule, method: str | None = None) -> Schedule:
    """Set the launch order of a schedule by a method (`order_launches`), by default `best_launch_order`.

    Raises
    ------
    InputError
        Unknown method; or a method is named, and the schedule has stages.
    ScheduleError
        In this order the schedule breaks a rule of ``docs/model.md``, such as a device's memory.

    Examples
    --------
    >>> from tvm_sched.streams import choose_launch_order
    >>> ordered = choose_launch_order(problem, solve(problem, method="single"), "depth-first")
    >>> [placement.operator for placement in ordered.placements]
    ['right', 'left', 'join']
    """
    check_methods(launch_order=method)
    if method in (None, BEST):
        return best_launch_order(problem, schedule)
    chosen = order_launches(problem, schedule, str(method))
    verify(problem, chosen)
    return chosen


def best_streams(problem: Problem, schedule: Schedule) -> Schedule:
    """Return the schedule with the streams of least predicted latency: its own, or those of an allocator.

    If streams have overheads, ``"fewest"`` on 2, 4, 8 and 16 streams is also tried (`limit_streams`). The schedule stays as
    it is if no allocator is better, it has stages, its launch order is not topological, or the costs lack concurrency.

    Examples
    --------
    >>> from tvm_sched.cost_model import occupancy
    >>> from tvm_sched.streams import best_streams
    >>> both = Problem(graph, topology, occupancy(graph, topology))
    >>> [placement.stream for placement in best_streams(both, solve(both, method="single")).placements]
    [0, 1, 0]
    """
    if problem.costs.concurrency is None or _has_stages(schedule):
        return schedule
    fastest = _fastest(problem, schedule, allocate_streams, ALLOCATORS)
    if not any(device.stream_overhead for device in problem.topology.devices):
        return fastest
    try:
        wide = allocate_streams(problem, schedule, "fewest")
    except InputError:  # the launch order is not topological: no allocator, so nothing to limit
        return fastest
    return _fastest(problem, fastest, lambda _, __, most: limit_streams(problem, wide, most), _LIMITS)


def best_launch_order(problem: Problem, schedule: Schedule) -> Schedule:
    """Return the schedule in the launch order of least predicted latency: its own, or another.

    It stays as it is if no order is better, it has stages, or no device has several streams.

    Examples
    --------
    >>> from tvm_sched.streams import best_launch_order
    >>> best_launch_order(problem, schedule).placements == schedule.placements
    True
    """
    if _has_stages(schedule) or not any(placement.stream for placement in schedule.placements):
        return schedule
    return _fastest(problem, schedule, order_launches, LAUNCH_ORDERS)


def _has_stages(schedule: Schedule) -> bool:
    return any(placement.stage for placement in schedule.placements)


def _predicted_ns(problem: Problem, schedule: Schedule) -> int:
    """Predict the latency by thread blocks if they are known, since launch order hardly matters to the simulator.

    Costs with contention are fitted to measured pairs, which include effects between blocks: there the simulator decides.
    """
    together = problem.costs.concurrency
    if (together is not None and together.contends) or not knows_blocks(problem, schedule):
        return latency_ns(problem, schedule)
    requests = schedule.certificate.requests if schedule.certificate else ()
    if not requests:
        return simulate_blocks(problem, schedule).latency_ns
    runs = [simulate_blocks(problem, schedule, request.resident).latency_ns for request in requests]
    return weighted_mean(requests, runs)


def _fastest(
    problem: Problem, schedule: Schedule, change: Callable[[Problem, Schedule, T], Schedule], methods: Sequence[T]
) -> Schedule:
    """Return the fastest feasible schedule among this one and those of the methods."""
    best, least = schedule, _predicted_ns(problem, schedule)
    for method in methods:
        try:
            candidate = change(problem, schedule, method)
        except InputError:  # its launch order is not topological, which these methods need
            return schedule
        latency = _predicted_ns(problem, candidate)
        if latency < least and not violations(problem, candidate, limit=1):
            best, least = candidate, latency
    return best
