"""Scheduler `exact`: submodels at dominators, each solved with CP-SAT from the state that the one before left."""

from __future__ import annotations

import time
from dataclasses import dataclass

import msgspec
import numpy as np

from ...errors import InfeasibleError, InputError
from ...problem import HOST, Problem
from ...schedule import Schedule, ScheduleIndex
from ...schedule.simulate import price
from ..greedy import list_schedule, priorities
from ..partial import PartialSchedule, Run
from ..registry import register, report_progress
from ..single import SingleOptions, single
from .model import Limits, solve_submodel
from .submodels import split
from .variables import Submodel

WORK_PER_SECOND = 0.5
"""Deterministic seconds of CP-SAT in a second of the clock, roughly, on one core of a server."""


class ExactOptions(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Options of `exact`.

    Parameters
    ----------
    dominators : int
        Dominators in a submodel; 0 puts them together up to ``operators``.
    operators : int
        Most operators in a submodel.
    submodel_time_limit : float
        Seconds for one submodel on an idle machine. What is limited is the solver's deterministic work, so that a busy
        machine takes longer and gives the same schedule; ten times as many seconds by the clock end it all the same.
    time_limit : float
        Seconds in all, by the clock; what is left when it has passed is scheduled by list scheduling.
    workers : int
        Threads of the solver. Any number gives the same schedule again as long as no clock limit strikes.
    seed : int
    """

    dominators: int = 0
    operators: int = 24
    submodel_time_limit: float = 4.0
    time_limit: float = 120.0
    workers: int = 1
    seed: int = 0

    def __post_init__(self) -> None:
        for name, least in (("dominators", 0), ("operators", 1), ("workers", 1), ("seed", 0)):
            if getattr(self, name) < least:
                raise InputError(f"{name} is {getattr(self, name)}; {least} or more is allowed")
        for name in ("submodel_time_limit", "time_limit"):
            if not getattr(self, name) >= 0:
                raise InputError(f"{name} is {getattr(self, name)}; 0 or more seconds are allowed")


@register("exact", options=ExactOptions)
def exact(problem: Problem, options: ExactOptions) -> Schedule:
    """Submodels at the dominators, each solved by constraint programming; never worse than list scheduling or `single`.

    Each submodel decides with CP-SAT's interval variables the device and mode of each operator, the bus and transit device
    of each parameter (parallel transmission), the peer copies and the order on every device, bus and link, from the state
    that the submodels before left. After SortingHat, Sections 3.1 and 3.3, with times instead of slots: no limit ``q`` on
    subgraphs, no contiguity, and direct reads charged to the bus.

    Raises
    ------
    InfeasibleError
        The model does not fit into the devices' memory.
    """
    candidates: list[tuple[int, int, ScheduleIndex, list[int] | None]] = []
    refusal: InfeasibleError | None = None
    for scale in (1.0, 0.9, 0.75, 0.6):
        try:
            answers = _rolling(problem, options, scale)
        except InfeasibleError as error:
            refusal = refusal or error
            break
        for rank, (index, submodel) in enumerate(answers):
            times = price(problem, index)
            if all(p <= device.memory for p, device in zip(times.peak_memory, problem.topology.devices, strict=True)):
                candidates.append((times.latency_ns, rank, index, submodel))
        if candidates:
            break
    try:
        alone = ScheduleIndex.of(problem, single(problem, SingleOptions()))
        candidates.append((price(problem, alone).latency_ns, 9, alone, None))
    except InfeasibleError as error:
        refusal = refusal or error
    if not candidates:
        raise refusal or InfeasibleError("no schedule within the memory limits was found; give the devices more memory")
    _, _, best, submodel = min(candidates, key=lambda candidate: candidate[:2])
    return best.to_schedule(problem, submodel)


@dataclass(frozen=True)
class _Ahead:
    """What still lies ahead after each operator, and in all."""

    tail: list[int]
    shortest: list[int]

    @staticmethod
    def of(problem: Problem) -> _Ahead:
        shortest = np.minimum(problem.costs.operator_ns, problem.costs.direct_ns).min(
            axis=1, initial=np.iinfo(np.int64).max
        )
        rank = priorities(problem)
        shortest_list = shortest.tolist()
        return _Ahead([rank[o] - shortest_list[o] for o in range(len(rank))], shortest_list)


def _rolling(problem: Problem, options: ExactOptions, scale: float) -> list[tuple[ScheduleIndex, list[int] | None]]:
    """The rolling schedule, and the list schedule of the whole graph."""
    rank = priorities(problem)
    whole = PartialSchedule(problem, scale)
    list_schedule(whole, range(len(rank)), rank)
    answers: list[tuple[ScheduleIndex, list[int] | None]] = []
    groups = split(problem, options.dominators, options.operators)
    ahead = _Ahead.of(problem)
    state = PartialSchedule(problem, scale)
    deadline = time.monotonic() + options.time_limit
    number = [0] * len(rank)
    for i, operators in enumerate(groups):
        report_progress("submodels", i, len(groups))
        for o in operators:
            number[o] = i
        try:
            state = _best_step(state, operators, rank, ahead, options, deadline)
        except InfeasibleError:
            # Earlier submodels used memory that this one needs; the list schedule of the whole graph stands.
            return [(whole.to_index(), None)]
    report_progress("submodels", len(groups), len(groups))
    answers.append((state.to_index(), number))
    answers.append((whole.to_index(), None))
    return answers


def _best_step(
    state: PartialSchedule, operators: list[int], rank: list[int], ahead: _Ahead, options: ExactOptions, deadline: float
) -> PartialSchedule:
    """The state after a submodel: the solver's answer, or the heuristic's where that is better."""
    left = deadline - time.monotonic()
    if left <= 0 or options.submodel_time_limit <= 0:
        list_schedule(state, operators, rank)
        return state
    hint = state.clone()
    list_schedule(hint, operators, rank)
    submodel = _submodel(state, hint, operators, ahead)
    seconds = min(left, 10 * options.submodel_time_limit)
    work = options.submodel_time_limit * WORK_PER_SECOND
    answer = solve_submodel(submodel, hint, Limits(work, seconds, options.workers, options.seed))
    if answer.events is None:
        return hint
    solved = state.clone()
    for event in answer.events:
        solved.append(event)
    return min(solved, hint, key=lambda after: _estimate(after, submodel))


def _submodel(state: PartialSchedule, hint: PartialSchedule, operators: list[int], ahead: _Ahead) -> Submodel:
    problem = state.problem
    index, topology = problem.graph.index, problem.topology
    base = min([*state.device_free, *state.channel_free])
    now = set(operators)
    later = [o for o, d in enumerate(state.placed) if d < 0 and o not in now]
    coming = {t for o in later for t in index.host_inputs[o] if t not in state.holders} - {
        t for o in operators for t in index.host_inputs[o]
    }
    buses = {route.channels: route for d in range(len(topology.devices)) if (route := topology.route(HOST, d))}
    slowness = sum(1e9 / route.bandwidth for route in buses.values()) / max(len(buses), 1)
    tail = {o: ahead.tail[o] for o in operators}
    horizon = max(hint.ends[len(state.events) :], default=base) - base
    horizon = max([horizon, *(free - base for free in (*state.device_free, *state.channel_free))])
    return Submodel(
        state=state,
        operators=operators,
        tail=tail,
        horizon=horizon + max(tail.values(), default=0) - min(tail.values(), default=0),
        base=base,
        bus_ahead=int(sum(index.size[t] for t in coming) * slowness) if buses else 0,
        work_ahead=sum(ahead.shortest[o] for o in later),
    )


def _estimate(after: PartialSchedule, submodel: Submodel) -> tuple[int, int]:
    """The submodel's objective, of a finished step."""
    first = len(submodel.state.events)
    end = max(
        (
            when + submodel.tail[event.operator]
            for event, when in zip(after.events[first:], after.ends[first:], strict=True)
            if isinstance(event, Run)
        ),
        default=0,
    )
    topology = after.problem.topology
    routes = (topology.route(HOST, d) for d in range(len(topology.devices)))
    buses = sorted({c for route in routes if route is not None for c in route.channels})
    frees = [after.channel_free[c] for c in buses]
    if frees:
        end = max(end, (sum(frees) + submodel.bus_ahead) // len(frees))
    end = max(end, (sum(after.device_free) + submodel.work_ahead) // len(after.device_free))
    return end, sum(frees) + sum(after.device_free)
