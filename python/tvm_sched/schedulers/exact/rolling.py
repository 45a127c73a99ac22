"""Submodel after submodel, each solved with CP-SAT from the state that the ones before left."""

from __future__ import annotations

import time
from dataclasses import dataclass, replace

from ...problem import HOST, Problem
from ...progress import report_progress
from ..common.greedy import list_schedule, priorities, tails
from ..common.partial import PartialSchedule, Run
from .model import Limits, solve_submodel
from .variables import Submodel


def roll(problem: Problem, groups: list[list[int]], memory_scale: float, limits: Limits) -> PartialSchedule:
    """The schedule of one submodel after the other.

    Parameters
    ----------
    problem : Problem
    groups : list of list of int
        Operators of each submodel.
    memory_scale : float
        Share of each device's memory that may be used.
    limits : Limits
        Of one submodel; ``deadline`` is that of all. What is left then is scheduled by list scheduling.

    Raises
    ------
    InfeasibleError
        Earlier submodels used memory that a later one needs.
    """
    rank, ahead, state = priorities(problem), _Ahead.of(problem), PartialSchedule(problem, memory_scale)
    for i, operators in enumerate(groups):
        report_progress("submodels", i, len(groups))
        now = time.monotonic()
        if now >= limits.deadline:
            break
        # Each submodel has an equal part of what is left, or two if those before did not use theirs.
        until = now + 2 * (limits.deadline - now) / (len(groups) - i)
        state = _best_step(state, operators, rank, ahead, replace(limits, deadline=min(until, limits.deadline)))
    report_progress("submodels", len(groups), len(groups))
    list_schedule(state, [o for o, d in enumerate(state.placed) if d < 0], rank)
    return state


@dataclass(frozen=True)
class _Ahead:
    """What still lies ahead after each operator, and in all."""

    tail: list[int]
    shortest: list[int]

    @staticmethod
    def of(problem: Problem) -> _Ahead:
        tail = tails(problem)
        return _Ahead(tail, [rank - ahead for rank, ahead in zip(priorities(problem), tail, strict=True)])


def _best_step(
    state: PartialSchedule, operators: list[int], rank: list[int], ahead: _Ahead, limits: Limits
) -> PartialSchedule:
    """The state after a submodel: the solver's answer, or the heuristic's where that is better."""
    hint = state.clone()
    list_schedule(hint, operators, rank)
    submodel = _submodel(state, hint, operators, ahead)
    if not submodel.fits_solver:
        return hint
    answer = solve_submodel(submodel, hint, limits)
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
