"""Latency of a schedule if each GPU has its own queue of loads and buses are shared fairly instead of exclusively.

SortingHat's first ablation (Section 4.4): "per-GPU queues instead of per-PCIe bus". Here the loads of a device keep their
order among themselves, all that is on a bus at one time has an equal part of its bandwidth, and so have direct reads and
copies that cross it. Links and switches carry one copy at a time, in the schedule's order. ``docs/model.md`` says why turns
are no worse.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from dataclasses import dataclass

from tvm_sched_runtime.errors import InputError
from tvm_sched_runtime.problem import HOST, Problem
from tvm_sched_runtime.schedule import Schedule, ScheduleIndex, resolved

_DONE = 1e-6
"""Nanoseconds of a job that count as done: error of rounding of sums."""


def fair_latency(problem: Problem, schedule: Schedule) -> float:
    """Return the seconds to the end of the last kernel.

    Raises
    ------
    InputError
        Parameters are evicted, or a device has stages or several streams: neither has been thought of here.
    ScheduleError
        The schedule breaks one of rules 1 to 4 of ``docs/model.md``.

    Examples
    --------
    >>> from tvm_sched_bench.testing import fair_latency
    >>> fair_latency(problem, schedule)
    3.75e-06
    """
    index = ScheduleIndex.of(*resolved(problem, schedule))
    _ = index.times  # refuses what breaks a rule
    if index.evicted or any(index.stage) or any(index.stream):
        raise InputError("fair buses are for schedules without evictions, stages and several streams; give another one")
    return _latency(list(_jobs(index))) / 1e9


@dataclass
class _Job:
    """A kernel, load or copy: first it shares its buses, then it goes on by itself."""

    is_kernel: bool
    queues: list[Hashable]
    """Queues in which it must be the first before it may start."""
    needs: list[tuple[int, int]]
    makes: list[tuple[int, int]]
    buses: tuple[int, ...]
    """Channels of buses that it crosses."""
    shared: float
    own: float
    """Nanoseconds that are left of each part, with the buses to itself."""

    @property
    def over(self) -> bool:
        """Whether nothing is left of it."""
        return self.shared <= _DONE and self.own <= _DONE


def _jobs(index: ScheduleIndex) -> Iterator[_Job]:
    """Return the jobs of a schedule, in its order."""
    scenario = index.scenario
    problem = scenario.problem
    on_bus = _bus_channels(problem)
    transfers = zip(index.transfer_kind, index.transfer_item, index.transfer_source, index.transfer_device, strict=True)
    for kind, item, source, device in transfers:
        if kind == ScheduleIndex.HOST_READ:
            continue
        load = kind == ScheduleIndex.LOAD
        time = scenario.load_ns(item, device) if load else scenario.copy_ns(item, source, device)
        channels = () if scenario.is_resident(item) else problem.route(source, device).channels
        buses = tuple(channel for channel in channels if channel in on_bus)
        queues: list[Hashable] = [channel for channel in channels if channel not in on_bus]
        queues.append(("loads", device) if load else ("copies", source, device))
        held = load or (problem.reads_host_in_place(source) and problem.graph.index.producer[item] < 0)
        needs = [] if held else [(item, source)]
        yield _Job(False, queues, needs, [(item, device)], buses, *((time, 0.0) if buses else (0.0, time)))
    graph = problem.graph.index
    for o, device, direct in zip(index.operator, index.device, index.direct, strict=True):
        in_place = direct or problem.reads_host_in_place(device)
        needs = [(t, device) for t in graph.inputs[o] if graph.producer[t] >= 0 or not in_place]
        time = int((problem.costs.direct_ns if direct else problem.costs.operator_ns)[o, device])
        read = problem.host_read_ns(o, device) if direct else 0
        buses = problem.route(HOST, device).channels if read else ()
        yield _Job(
            True, [("kernels", device)], needs, [(t, device) for t in graph.outputs[o]], buses, read, time - read
        )


def _bus_channels(problem: Problem) -> set[int]:
    """Channels between host memory and devices."""
    devices = range(len(problem.topology.devices))
    pairs = [pair for d in devices for pair in ((HOST, d), (d, HOST))]
    return {channel for a, b in pairs if (route := problem.topology.route(a, b)) for channel in route.channels}


def _latency(waiting: list[_Job]) -> float:
    """Return the nanoseconds to the end of the last kernel, by steps from each end of a job to the next."""
    queues: dict[Hashable, list[_Job]] = {}
    for job in waiting:
        for queue in job.queues:
            queues.setdefault(queue, []).append(job)
    there: set[tuple[int, int]] = set()
    active: list[_Job] = []
    now = latency = 0.0
    while waiting or active:
        first = [job for job in waiting if all(queues[queue][0] is job for queue in job.queues)]
        ready = [job for job in first if there.issuperset(job.needs)]
        active += ready
        started = set(map(id, ready))
        waiting = [job for job in waiting if id(job) not in started]
        now += _advance(active)
        for job in [job for job in active if job.over]:
            active.remove(job)
            there.update(job.makes)
            for queue in job.queues:
                queues[queue].pop(0)
            if job.is_kernel:
                latency = now
    return latency


def _advance(active: list[_Job]) -> float:
    """Let all jobs go on until a part of one ends; how long that takes."""
    sharing: dict[int, int] = {}
    for job in active:
        for bus in job.buses if job.shared > _DONE else ():
            sharing[bus] = sharing.get(bus, 0) + 1
    slowness = [max(sharing[bus] for bus in job.buses) if job.shared > _DONE else 1 for job in active]
    step = min(job.shared * slow if job.shared > _DONE else job.own for job, slow in zip(active, slowness, strict=True))
    for job, slow in zip(active, slowness, strict=True):
        if job.shared > _DONE:
            job.shared -= step / slow
        else:
            job.own -= step
    return step
