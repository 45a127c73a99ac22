"""Solve one submodel with CP-SAT: the only file here that talks to the solver."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import dataclass

from ortools.sat.python import cp_model

from ...problem import HOST
from ..common.partial import Event, Move, PartialSchedule, Run
from . import constraints
from .objective import earliest_end_of_run
from .variables import Submodel, Variables


@dataclass(frozen=True)
class Limits:
    """How long and with what a submodel is solved.

    Attributes
    ----------
    work : float
        Deterministic limit in the solver's own seconds of work, so that the answer does not depend on the machine's load.
    deadline : float
        `time.monotonic` at which the search ends; an answer that it cuts off may differ from run to run.
    workers, seed : int
    """

    work: float
    deadline: float
    workers: int
    seed: int


@dataclass(frozen=True)
class Answer:
    """What the solver found.

    Attributes
    ----------
    events : list of Event or None
        In time order; None where nothing was found within the limits.
    exhausted : bool
        Whether no better answer exists (for the submodel's objective), or none at all where nothing was found.
    work : float
        Deterministic seconds that it took.
    """

    events: list[Event] | None
    exhausted: bool
    work: float


def solve_submodel(submodel: Submodel, hint: PartialSchedule, limits: Limits) -> Answer:
    """The best events for a submodel that CP-SAT finds within the limits.

    Parameters
    ----------
    submodel : Submodel
    hint : PartialSchedule
        ``submodel.state`` with the submodel's events appended as far as they are known: the solver starts from them.
    limits : Limits
    """
    model = cp_model.CpModel()
    variables = Variables.of(model, submodel)
    for constraint in constraints.ALL:
        constraint(model, submodel, variables)
    earliest_end_of_run(model, submodel, variables)
    _add_hint(model, submodel, variables, hint)
    solver = cp_model.CpSolver()
    solver.parameters.max_deterministic_time = limits.work
    solver.parameters.max_time_in_seconds = max(0.0, limits.deadline - time.monotonic())
    solver.parameters.num_workers = limits.workers
    # Interleaved search gives every strategy its turn, large neighbourhoods too, and repeats itself with any number of
    # workers; without it one worker runs one strategy, and several race.
    solver.parameters.interleave_search = True
    solver.parameters.random_seed = limits.seed
    solver.parameters.catch_sigint_signal = False
    status = _solve(solver, model)
    found = status in (cp_model.OPTIMAL, cp_model.FEASIBLE)
    events = _events(solver, submodel, variables) if found else None
    exhausted = status in (cp_model.OPTIMAL, cp_model.INFEASIBLE)
    return Answer(events, exhausted, solver.deterministic_time)


def _solve(solver: cp_model.CpSolver, model: cp_model.CpModel) -> cp_model.CpSolverStatus:
    """Solve in a thread of its own, so that Ctrl-C reaches Python at once and ends the search."""
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(solver.solve, model)
        try:
            # In short portions: a signal that another thread took reaches this one only between them.
            while True:
                done, _ = wait([running], timeout=0.2)
                if done:
                    return running.result()
        except BaseException:
            solver.stop_search()
            raise


def _add_hint(model: cp_model.CpModel, submodel: Submodel, v: Variables, hint: PartialSchedule) -> None:
    """Tell the solver the heuristic's answer: every literal, and the times of what is there."""
    true: set[int] = set()
    first = len(submodel.state.events)
    for event, end in zip(hint.events[first:], hint.ends[first:], strict=True):
        end = submodel.free(end)
        if isinstance(event, Run):
            literal = v.runs[event.operator, event.device, event.direct]
            true |= {literal.index, v.here[event.operator, event.device].index}
            costs = submodel.problem.costs
            ns = (costs.direct_ns if event.direct else costs.operator_ns)[event.operator, event.device]
            model.add_hint(v.start[event.operator], end - int(ns))
            model.add_hint(v.end[event.operator], end)
        elif event.source == HOST and (event.tensor, event.device) in v.load:
            key = (event.tensor, event.device)
            true.add(v.load[key].index)
            model.add_hint(v.load_start[key], end - submodel.problem.load_ns(*key))
            model.add_hint(v.load_end[key], end)
        elif event in v.copy:
            key = (event.tensor, event.device)
            true.add(v.copy[event].index)
            model.add_hint(v.copy_start[key], end - submodel.problem.copy_ns(*event))
            model.add_hint(v.copy_end[key], end)
    for literals in (v.runs, v.here, v.load, v.copy):
        for literal in {literal.index: literal for literal in literals.values()}.values():
            if literals is v.here and literal in v.runs.values():
                continue
            model.add_hint(literal, literal.index in true)


def _events(solver: cp_model.CpSolver, submodel: Submodel, v: Variables) -> list[Event]:
    """The solution's events by start, each after those that it needs; moves that nothing needs are dropped."""
    index = submodel.problem.graph.index
    position = {o: i for i, o in enumerate(submodel.operators)}
    runs = [Run(*key) for key, literal in v.runs.items() if solver.boolean_value(literal)]
    needed = {
        (t, run.device)
        for run in runs
        for t in index.inputs[run.operator]
        if not (run.direct and index.producer[t] < 0) and (t, run.device) not in submodel.state.at
    } | set(submodel.after.needed)
    copies = [
        Move(*key) for key, literal in v.copy.items() if solver.boolean_value(literal) and (key[0], key[2]) in needed
    ]
    needed |= {(copy.tensor, copy.source) for copy in copies}
    loads = [
        Move(t, HOST, d) for (t, d), literal in v.load.items() if solver.boolean_value(literal) and (t, d) in needed
    ]
    timed: list[tuple[int, int, int, Event]] = []
    timed += [(solver.value(v.start[run.operator]), 2, position[run.operator], run) for run in runs]
    timed += [(solver.value(v.load_start[m.tensor, m.device]), 0, m.tensor, m) for m in loads]
    timed += [(solver.value(v.copy_start[m.tensor, m.device]), 1, m.tensor, m) for m in copies]
    timed.sort(key=lambda entry: entry[:3])
    return _after_needs(submodel, [entry[3] for entry in timed])


def _after_needs(submodel: Submodel, events: list[Event]) -> list[Event]:
    """Events of no length may stand before what they need at the same moment; put them after it."""
    index, state = submodel.problem.graph.index, submodel.state
    coming = {(move.tensor, move.device) for move in events if isinstance(move, Move)}
    coming |= {(t, run.device) for run in events if isinstance(run, Run) for t in index.outputs[run.operator]}
    there: set[tuple[int, int]] = set(state.at)
    ordered: list[Event] = []
    waiting = events
    while waiting:
        later: list[Event] = []
        for event in waiting:
            if isinstance(event, Run):
                read = (t for t in index.inputs[event.operator] if not (event.direct and index.producer[t] < 0))
                needs = {(t, event.device) for t in read} & coming
                gives = {(t, event.device) for t in index.outputs[event.operator]}
            else:
                needs = {(event.tensor, event.source)} & coming
                gives = {(event.tensor, event.device)}
            if needs <= there:
                ordered.append(event)
                there |= gives
            else:
                later.append(event)
        if len(later) == len(waiting):
            raise AssertionError("the solver's answer has events that wait for each other")
        waiting = later
    return ordered
