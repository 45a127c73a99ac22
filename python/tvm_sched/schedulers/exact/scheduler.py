"""Scheduler `exact`: submodels at dominators, each solved with CP-SAT from the state that the one before left."""

from __future__ import annotations

import time
from dataclasses import dataclass

import msgspec

from ...errors import InfeasibleError, InputError
from ...problem import HOST, Problem
from ...schedule import Schedule, ScheduleIndex
from ...schedule.bounds import MARGIN, lower_bound
from ...schedule.simulate import price
from ..greedy import list_schedule, priorities, tails
from ..local_search import Effort, improve
from ..partial import PartialSchedule, Run
from ..pipelined import PipelinedOptions, pipelined
from ..registry import register, report_progress
from ..single import SingleOptions, single
from .model import Limits, solve_submodel
from .submodels import split
from .variables import Submodel

WORK_PER_SECOND = 0.5
"""Deterministic seconds of CP-SAT in a second of the clock, roughly, on one core of a server."""

EVENTS_PER_SECOND = 250_000
"""Events that local search replays in a second of the clock, roughly, on one core of a server."""

ROLLING_SHARE = 0.3
"""Share of the time limit in which the submodels are solved; local search has the rest."""

SCALES = (1.0, 0.9, 0.75, 0.6)
"""Shares of the memory with which it is tried: the times at which memory is held are known only afterwards."""

BOLD_SCALES = (1.2, 1.6, 2.5)
"""Shares to try when those leave no schedule: what grows event by event counts more than is held at one time."""


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
    improve_time_limit : float
        Seconds of local search over the whole schedule, on an idle machine; what is limited is again the work.
    time_limit : float
        Seconds in all, by the clock. Submodels that are left when a part of it has passed are scheduled by list scheduling,
        so that local search has its share.
    workers : int
        Threads of the solver. Any number gives the same schedule again as long as no clock limit strikes.
    seed : int
    """

    dominators: int = 0
    operators: int = 24
    submodel_time_limit: float = 4.0
    improve_time_limit: float = 15.0
    time_limit: float = 120.0
    workers: int = 1
    seed: int = 0

    def __post_init__(self) -> None:
        for name, least in (("dominators", 0), ("operators", 1), ("workers", 1), ("seed", 0)):
            if getattr(self, name) < least:
                raise InputError(f"{name} is {getattr(self, name)}; {least} or more is allowed")
        for name in ("submodel_time_limit", "improve_time_limit", "time_limit"):
            if not getattr(self, name) >= 0:
                raise InputError(f"{name} is {getattr(self, name)}; 0 or more seconds are allowed")


@register("exact", options=ExactOptions)
def exact(problem: Problem, options: ExactOptions) -> Schedule:
    """Submodels at the dominators, each solved by constraint programming; then local search over the whole schedule.

    Each submodel decides with CP-SAT's interval variables the device and mode of each operator, the bus and transit device
    of each parameter (parallel transmission), the peer copies and the order on every device, bus and link, from the state
    that the submodels before left. After SortingHat, Sections 3.1 and 3.3, with times instead of slots: no limit ``q`` on
    subgraphs, no contiguity, and direct reads charged to the bus. Local search then starts from the best that is known;
    so the answer is never worse than list scheduling or `single`.

    Raises
    ------
    InfeasibleError
        No schedule within the devices' memory was found.
    """
    deadline = time.monotonic() + options.time_limit
    candidates: list[_Candidate] = []
    refusal: InfeasibleError | None = None
    for scale in SCALES + BOLD_SCALES:
        try:
            candidates += _candidates(problem, options, scale, deadline)
            break
        except InfeasibleError as error:
            refusal = refusal or error
    try:
        alone = ScheduleIndex.of(problem, single(problem, SingleOptions()))
        candidates.append(_Candidate(price(problem, alone).latency_ns, alone))
    except InfeasibleError as error:
        refusal = refusal or error
    try:
        loading = ScheduleIndex.of(problem, pipelined(problem, PipelinedOptions()))
        candidates.append(_Candidate(price(problem, loading).latency_ns, loading))
    except InfeasibleError as error:
        refusal = refusal or error
    if not candidates:
        raise refusal or InfeasibleError("no schedule was found")
    best = min(candidates, key=lambda candidate: candidate.latency_ns)
    return best.index.to_schedule(problem, best.submodel)


@dataclass(frozen=True)
class _Candidate:
    """A schedule that fits into memory."""

    latency_ns: int
    index: ScheduleIndex
    submodel: list[int] | None = None


def _candidates(problem: Problem, options: ExactOptions, scale: float, deadline: float) -> list[_Candidate]:
    """What list scheduling, the submodels and local search find within a share of the memory.

    Raises
    ------
    InfeasibleError
        They find nothing, or hold too much at some moment.
    """
    submodel, states = _rolling(problem, options, scale, deadline)
    start = min(states, key=lambda state: state.latency)
    # Bounds are rounded down by a margin; what is as near is optimal.
    goal = int(lower_bound(problem).ns * (1 + 2 * MARGIN)) + 1
    effort = Effort(int(options.improve_time_limit * EVENTS_PER_SECOND), deadline, options.seed, goal)
    states.append(improve(PartialSchedule(problem, scale), start, effort))
    candidates = []
    refusals: list[tuple[int, str]] = []
    for state in states:
        index = state.to_index()
        times = price(problem, index)
        short = [(int(p) - d.memory, d.name) for p, d in zip(times.peak_memory, problem.topology.devices, strict=True)]
        refusals.append(max(short))
        if max(short)[0] <= 0:
            candidates.append(_Candidate(times.latency_ns, index, submodel))
    if not candidates:
        raise InfeasibleError(
            f"memory does not suffice: device {min(refusals)[1]!r} is short of {min(refusals)[0]} bytes in the best "
            "schedule found; use devices with more memory, or more of them"
        )
    return candidates


@dataclass(frozen=True)
class _Ahead:
    """What still lies ahead after each operator, and in all."""

    tail: list[int]
    shortest: list[int]

    @staticmethod
    def of(problem: Problem) -> _Ahead:
        tail = tails(problem)
        return _Ahead(tail, [rank - ahead for rank, ahead in zip(priorities(problem), tail, strict=True)])


def _listed(problem: Problem, scale: float, rank: list[int]) -> PartialSchedule:
    """The list schedule of the whole graph; the frugal one where memory does not suffice for the usual one."""
    state = PartialSchedule(problem, scale)
    try:
        list_schedule(state, range(len(rank)), rank)
    except InfeasibleError as error:
        state = PartialSchedule(problem, scale)
        try:
            list_schedule(state, range(len(rank)), rank, frugal=True)
        except InfeasibleError:
            raise error from None
    return state


def _rolling(
    problem: Problem, options: ExactOptions, scale: float, deadline: float
) -> tuple[list[int], list[PartialSchedule]]:
    """Submodel of each operator; the schedule of one submodel after the other, and the list schedule of the whole graph."""
    begin = time.monotonic()
    rank, ahead = priorities(problem), _Ahead.of(problem)
    whole, state = _listed(problem, scale, rank), PartialSchedule(problem, scale)
    groups = split(problem, options.dominators, options.operators)
    share = begin + ROLLING_SHARE * (deadline - begin) if options.improve_time_limit > 0 else deadline
    number = [0] * len(rank)
    for i, operators in enumerate(groups):
        for o in operators:
            number[o] = i
    for i, operators in enumerate(groups):
        report_progress("submodels", i, len(groups))
        left = share - time.monotonic()
        if left <= 0 or options.submodel_time_limit <= 0:
            break
        try:
            # Each submodel has an equal part of what is left, or two if those before did not use theirs.
            until = time.monotonic() + min(left, 2 * left / (len(groups) - i), 10 * options.submodel_time_limit)
            state = _best_step(state, operators, rank, ahead, options, until)
        except InfeasibleError:
            # Earlier submodels used memory that this one needs; the list schedule of the whole graph stands.
            return number, [whole]
    report_progress("submodels", len(groups), len(groups))
    try:
        list_schedule(state, [o for o, d in enumerate(state.placed) if d < 0], rank)
    except InfeasibleError:
        return number, [whole]
    return number, [state, whole]


def _best_step(
    state: PartialSchedule, operators: list[int], rank: list[int], ahead: _Ahead, options: ExactOptions, deadline: float
) -> PartialSchedule:
    """The state after a submodel: the solver's answer, or the heuristic's where that is better."""
    hint = state.clone()
    list_schedule(hint, operators, rank)
    submodel = _submodel(state, hint, operators, ahead)
    if not submodel.fits_solver:
        return hint
    work = options.submodel_time_limit * WORK_PER_SECOND
    answer = solve_submodel(submodel, hint, Limits(work, deadline, options.workers, options.seed))
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
