"""The scheduler `efficient-mip`: model parallelism alone, as SortingHat's Section 4.2 compares with it."""

from __future__ import annotations

import time
from math import inf

import msgspec

from tvm_sched_runtime.errors import InfeasibleError
from tvm_sched_runtime.problem import FORBIDDEN, HOST, Problem, Scenario, Workload
from tvm_sched_runtime.schedule import ENDED, INTERRUPTED, TIME_OVER, Schedule
from tvm_sched_runtime.search_budget import despite_interrupt, ending_at, seconds_left

from ...progress import report_progress
from ..common.events import Event, Move, Run
from ..common.merging import ListedSchedule, merge_events
from ..common.milp import ENOUGH, Effort, ProgramOptions
from ..common.submodels import submodels_of
from ..scheduler_registry import register
from .instance import Instance, evaluate
from .program import SolvedPlacement, place

HEURISTIC_SHARE = 0.5
"""Part of a submodel's time after which the heuristic ends, and the solver begins."""

ROUNDS, EVALUATIONS = 3, 1000
"""Effort of the heuristic in one submodel."""

TRANSFER_FACTOR = 0.5
"""Factor on transfer times. A copy between devices is two transfers through host memory; with both at twice the speed it
takes as long as one copy."""


class EfficientMipOptions(ProgramOptions, frozen=True, forbid_unknown_fields=True):
    """Options of `efficient-mip`: those of `ProgramOptions`."""


@register("efficient-mip", options=EfficientMipOptions, answers_interrupt=True)
def efficient_mip(problem: Problem, workload: Workload, options: EfficientMipOptions) -> Schedule:
    """Tarnawski et al. (NeurIPS 2020): model parallelism; submodels apart, all copies at one speed through host memory.

    The comparison follows SortingHat's Section 4.2. The submodels are SortingHat's. The latency program of Tarnawski et al.
    places each with ``q`` contiguous subgraphs a device, from time 0 on idle devices, at twice the transfer speed. The
    program has one latency for each operator, the mean over devices, and one bandwidth, the mean of the buses. It does not
    model when parameters arrive. The schedule then loads each parameter directly into each device that reads it, in the
    order of use, and copies take the machine's routes. A submodel affects the next one only by the memory that it takes.

    Each submodel gets an equal share of the time that is left, of which the heuristic uses up to half. After Ctrl-C or
    ``total_time_limit`` the heuristic places the remaining submodels.

    Raises
    ------
    InfeasibleError
        The search ended without a schedule that fits into the devices' memory.
    """
    scenario = workload.scenario(problem)
    deadline, status = time.monotonic() + min(options.total_time_limit, seconds_left()), ENDED
    groups = submodels_of(scenario, options.dominators, options.operators, options.model_weights)
    listed = ListedSchedule(scenario)
    events: list[Event] = []
    room = [float(device.memory) for device in scenario.topology.devices]
    known: dict[bytes, tuple[float, SolvedPlacement]] = {}
    try:
        for i, operators in enumerate(groups):
            report_progress("submodels", i, len(groups))
            now = time.monotonic()
            seconds = (deadline - now) / (len(groups) - i)
            status = TIME_OVER if seconds <= 0 and status is ENDED else status
            effort = options.effort(seconds)
            try:
                with ending_at(now + seconds):
                    runs = _place_submodel(scenario, operators, room, options.q, effort if seconds > 0 else None, known)
            except KeyboardInterrupt:
                deadline, status = 0.0, INTERRUPTED
                with ending_at(0.0):
                    runs = _place_submodel(scenario, operators, room, options.q, None, known)
            for run in runs:
                events += [*_loads(scenario, run), run]
    except InfeasibleError:
        return listed.schedule()
    report_progress("submodels", len(groups), len(groups))
    merged, stopped = despite_interrupt(lambda: merge_events(scenario, events))
    status = INTERRUPTED if stopped else status
    if not merged.fits:
        listed.refuse(merged)
        return listed.schedule()
    submodel = {o: i for i, group in enumerate(groups) for o in group}
    return merged.index.to_schedule([submodel[o] for o in range(len(submodel))], certificate=status)


def _place_submodel(
    scenario: Scenario,
    operators: list[int],
    room: list[float],
    q: int,
    effort: Effort | None,
    known: dict[bytes, tuple[float, SolvedPlacement]],
) -> list[Run]:
    """Place the operators of a submodel, in the order of the program's times, and take their memory from ``room``."""
    if not operators:
        return []
    index, devices = scenario.graph.index, range(len(room))
    number = {o: i for i, o in enumerate(operators)}
    instance = Instance(
        accelerator=[_finite_mean_ns(scenario, o) for o in operators],
        cpu=[inf] * len(operators),
        size=[float(sum(index.size[t] for t in (*index.host_inputs[o], *index.outputs[o]))) for o in operators],
        transfer=[_transfer(scenario, sum(index.size[t] for t in index.outputs[o])) for o in operators],
        edges=[(number[p], number[o]) for o in operators for p in index.predecessors[o] if p in number],
        capacity=list(room),
        q=q,
    )
    placement = _place_cached(instance, effort, known)
    ends = evaluate(instance, placement.subgraph)
    assert ends is not None
    position = {o: i for i, o in enumerate(instance.order)}
    order = sorted(
        instance.operators, key=lambda i: (ends.start[placement.subgraph[i]], placement.subgraph[i], position[i])
    )
    runs = []
    for i in order:
        d = instance.accelerator_of(placement.subgraph[i])
        runs.append(Run(operators[i], d, bool(scenario.costs.operator_ns[operators[i], d] == FORBIDDEN)))
        for e in devices:
            room[e] -= sum(index.size[t] for t in index.host_inputs[operators[i]]) if e == d else 0
    return runs


def _place_cached(
    instance: Instance, effort: Effort | None, known: dict[bytes, tuple[float, SolvedPlacement]]
) -> SolvedPlacement:
    """Place an instance; ``known`` has the placements of equal instances with their seconds.

    Equal layers have equal instances; the free memory is part of an instance only if it may be short.
    """
    ample = sum(instance.size) <= min(instance.capacity)
    memory = None if ample else (instance.size, instance.capacity)
    key = msgspec.msgpack.encode((instance.accelerator, instance.transfer, instance.edges, instance.q, memory))
    seconds = effort.time_limit if effort is not None else 0.0
    if key in known:
        had, placement = known[key]
        if placement.optimal or had >= ENOUGH * seconds:
            return placement
    known[key] = seconds, place(instance, effort, ROUNDS, EVALUATIONS, seconds=HEURISTIC_SHARE * seconds_left())
    return known[key][1]


def _finite_mean_ns(scenario: Scenario, o: int) -> list[float]:
    """Return the mean latency of an operator over all devices that run it, with direct host access only if needed."""
    rows = zip(scenario.costs.operator_ns[o].tolist(), scenario.costs.direct_ns[o].tolist(), strict=True)
    times = [loaded if loaded != FORBIDDEN else direct for loaded, direct in rows]
    finite = [time for time in times if time != FORBIDDEN]
    return [sum(finite) / len(finite) if time != FORBIDDEN else inf for time in times]


def _transfer(scenario: Scenario, size: int) -> float:
    """Return the time of a transfer between any device and host memory, at twice the mean speed of the buses."""
    topology = scenario.topology
    routes = [route for d in range(len(topology.devices)) if (route := topology.route(HOST, d))]
    return sum(route.nanoseconds(size) for route in routes) / len(routes) * TRANSFER_FACTOR if routes else 0.0


def _loads(scenario: Scenario, run: Run) -> list[Move]:
    """Return the loads of an operator's host tensors; merging the schedule drops repeated loads."""
    if run.direct or scenario.reads_host_in_place(run.device):
        return []
    return [Move(t, HOST, run.device) for t in scenario.graph.index.host_inputs[run.operator]]
