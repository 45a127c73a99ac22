"""The scheduler `deepplan`: one device computes; its parameters are loaded, copied through neighbours, or read directly."""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import accumulate

import msgspec

from tvm_sched_runtime.errors import InfeasibleError
from tvm_sched_runtime.problem import FORBIDDEN, HOST, Problem, Scenario, Workload
from tvm_sched_runtime.schedule import ENDED, INTERRUPTED, TIME_OVER, Schedule
from tvm_sched_runtime.search_budget import OutOfTime, check_time, seconds_left

from ..progress import report_progress
from .common.events import Move, Run
from .common.merging import LIMITLESS, PricedSchedule
from .common.one_device import device_names
from .common.partial import PartialSchedule
from .scheduler_registry import register

CANDIDATES = 3
"""Number of loading plans, best first, for which direct reads are tried."""


class DeepPlanOptions(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Options of `deepplan`.

    Parameters
    ----------
    device : str
        The device that computes; empty chooses the best.
    direct_host_access : bool
        Whether layers may read their parameters in host memory.
    parallel_transmission : bool
        Whether parameters may come through neighbours.
    """

    device: str = ""
    direct_host_access: bool = True
    parallel_transmission: bool = True


@register("deepplan", options=DeepPlanOptions, answers_interrupt=True)
def deepplan(problem: Problem, workload: Workload, options: DeepPlanOptions) -> Schedule:
    """DeepPlan (EuroSys 2023): one device computes, with direct host access and parallel transmission layer by layer.

    Loads run ahead of the kernels, in the order of use. *Parallel transmission* cuts the parameters, in the order of use,
    into one stretch for each bus, with bytes in proportion to bandwidth. The first stretch is loaded directly. Each other
    one is loaded into a neighbour on another bus and copied on over a link. *Direct host access*: if a kernel waits for its
    parameters, the layer up to it that loses least by direct reads switches to them, provided that the run ends no later.
    Direct reads are tried for the three best pairs of a device and its neighbours; the simulator chooses the best.
    O(layers x operators).

    The paper uses profiles to weigh a layer's loss against the saved wait. Here the rules of `docs/model.md` price each
    change, so direct reads wait for the bus, and loads wait for direct reads.

    Raises
    ------
    InfeasibleError
        No single device can run all operators within its memory.
    InputError
        The device does not exist.
    """
    scenario = workload.scenario(problem)
    names = device_names(scenario, "deepplan", options.device)
    devices = [d for d, name in enumerate(names) if options.device in ("", name)]
    plans = _plans_without_direct_reads(scenario, devices, options)
    best, status = plans[0][0], ENDED
    if options.direct_host_access:
        for i, (_, plan) in enumerate(plans):
            try:
                priced = PricedSchedule.of(_choose_direct(plan, i, len(plans)).to_index())
            except KeyboardInterrupt:
                status = INTERRUPTED
                break
            except OutOfTime:
                status = TIME_OVER
                break
            best = min(best, priced, key=lambda priced: (not priced.fits, priced.latency_ns))
    return best.index.to_schedule(certificate=status)


def _plans_without_direct_reads(
    scenario: Scenario, devices: list[int], options: DeepPlanOptions
) -> list[tuple[PricedSchedule, _LoadingPlan]]:
    """Return the best `CANDIDATES` plans without optional direct reads that fit into memory, the fastest first.

    Raises
    ------
    InfeasibleError
        There is none.
    """
    best: list[tuple[PricedSchedule, _LoadingPlan]] = []
    misfit: PricedSchedule | None = None
    for d in devices:
        for plan in _loading_plans(scenario, d, options):
            if best and seconds_left() <= 0:
                return best
            priced = PricedSchedule.of(plan.run().to_index())
            if priced.fits:
                best = sorted([*best, (priced, plan)], key=lambda entry: entry[0].latency_ns)[:CANDIDATES]
            elif misfit is None or priced.shortfall < misfit.shortfall:
                misfit = priced
    if best:
        return best
    if misfit is None:
        raise InfeasibleError("no single device can run the model: each lacks a latency for some operator")
    raise InfeasibleError(
        f"no single device can run the model: {misfit.device!r} is short of {misfit.shortfall} bytes of memory"
    )


@dataclass(frozen=True)
class _LoadingPlan:
    """A plan for the transfer of each layer's tensors to the device that computes."""

    scenario: Scenario
    device: int
    direct: frozenset[int]
    """Operators that read host memory."""
    through: dict[int, int]
    """Neighbour through which each tensor is loaded; others are loaded directly."""

    def run(self) -> PartialSchedule:
        """Build the schedule: each bus loads in the order of use, with direct reads when their kernels are due."""
        scenario, d, index = self.scenario, self.device, self.scenario.graph.index
        state = PartialSchedule(scenario, LIMITLESS)
        waiting = self._queues()
        for o in index.order:
            direct = o in self.direct
            if direct:
                own, due = waiting.get(HOST, deque()), self._due(state, o)
                while own and self._bus_free(state) < due:
                    self._bring(state, own.popleft())
            for t in state.needs(o, d, direct):
                queue = waiting[self.through.get(t, HOST)]
                while state.at(t, d) is None:
                    self._bring(state, queue.popleft())
            state.append(Run(o, d, direct))
        return state

    def _queues(self) -> dict[int, deque[int]]:
        """Return the tensors to load by the neighbour through which they come, in the order of use."""
        queues: dict[int, deque[int]] = {}
        if not self.scenario.reads_host_in_place(self.device):
            for t in _needed(self.scenario, self.direct):
                queues.setdefault(self.through.get(t, HOST), deque()).append(t)
        return queues

    def _due(self, state: PartialSchedule, o: int) -> int:
        """Return when an operator could start if its host tensors were on the device."""
        index = self.scenario.graph.index
        arrivals = [state.at(t, self.device) or 0 for t in index.inputs[o] if index.producer[t] >= 0]
        return max([state.device_free[self.device], *arrivals])

    def _bus_free(self, state: PartialSchedule) -> int:
        free = state.channel_free
        return max(free[c] for c in self.scenario.route(HOST, self.device).channels)

    def _bring(self, state: PartialSchedule, t: int) -> None:
        neighbour = self.through.get(t)
        if neighbour is not None:
            state.append(Move(t, HOST, neighbour))
        state.append(Move(t, HOST if neighbour is None else neighbour, self.device))


def _needed(scenario: Scenario, direct: frozenset[int]) -> list[int]:
    """Return the host tensors that operators read on the device, in the order of use."""
    index = scenario.graph.index
    return list(dict.fromkeys(t for o in index.order if o not in direct for t in index.host_inputs[o]))


def _loading_plans(scenario: Scenario, d: int, options: DeepPlanOptions) -> Iterator[_LoadingPlan]:
    """Yield plans without optional direct reads: no neighbour, then one on each of 1, 2, ... other buses."""
    costs = scenario.costs
    loaded, direct = costs.operator_ns[:, d] != FORBIDDEN, costs.direct_ns[:, d] != FORBIDDEN
    if not (loaded | direct).all():
        return
    without_neighbours = _LoadingPlan(scenario, d, frozenset((~loaded).nonzero()[0].tolist()), {})
    yield without_neighbours
    neighbours = _neighbours(scenario, d) if options.parallel_transmission else []
    for count in range(1, len(neighbours) + 1):
        yield replace(without_neighbours, through=_assign_neighbours(scenario, without_neighbours, neighbours[:count]))


def _neighbours(scenario: Scenario, d: int) -> list[int]:
    """Return the neighbour with the fastest link on each other bus, fastest first."""
    transits = PartialSchedule(scenario).transits(d)
    on_bus: dict[int, int] = {}
    for s in sorted(transits, key=lambda s: (-scenario.route(s, d).bandwidth, s)):
        on_bus.setdefault(scenario.route(HOST, s).channels[0], s)
    return list(on_bus.values())


def _assign_neighbours(scenario: Scenario, plan: _LoadingPlan, neighbours: list[int]) -> dict[int, int]:
    """Cut the tensors in the order of use into one stretch for each route, with bytes in proportion to its bandwidth."""
    speeds = [scenario.route(HOST, plan.device).bandwidth]
    speeds += [min(scenario.route(HOST, s).bandwidth, scenario.route(s, plan.device).bandwidth) for s in neighbours]
    needed, size = _needed(scenario, plan.direct), scenario.graph.index.size
    total = sum(size[t] for t in needed)
    ends = [total * share / sum(speeds) for share in accumulate(speeds)]
    through, before = {}, 0
    for t in needed:
        route = sum(before + size[t] / 2 > end for end in ends[:-1])
        if route:
            through[t] = neighbours[route - 1]
        before += size[t]
    return through


def _choose_direct(plan: _LoadingPlan, number: int, count: int) -> PartialSchedule:
    """Switch layers to direct reads if a kernel waits for its parameters and the run ends no later."""
    index, d = plan.scenario.graph.index, plan.device
    direct_ns, loaded_ns = plan.scenario.costs.direct_ns[:, d].tolist(), plan.scenario.costs.operator_ns[:, d].tolist()
    state = plan.run()
    waits = _stalled_operators(state)
    seen: list[tuple[int, int]] = []
    for i, o in enumerate(index.order):
        report_progress("layers", number * len(index.order) + i, count * len(index.order))
        check_time()
        if direct_ns[o] != FORBIDDEN and o not in plan.direct:
            heapq.heappush(seen, (direct_ns[o] - loaded_ns[o], o))
        while seen and o in waits:
            candidate = replace(plan, direct=plan.direct | {heapq.heappop(seen)[1]})
            after = candidate.run()
            if after.latency <= state.latency:  # at equal latency the bus becomes free for other loads
                plan, state, waits = candidate, after, _stalled_operators(after)
    report_progress("layers", (number + 1) * len(index.order), count * len(index.order))
    return state


def _stalled_operators(state: PartialSchedule) -> set[int]:
    """Return the operators before which the device is idle."""
    stalled, before = set(), 0
    for event, end, start in zip(state.events, state.ends, state.starts, strict=True):
        if isinstance(event, Run):
            if start > before:
                stalled.add(event.operator)
            before = end
    return stalled
