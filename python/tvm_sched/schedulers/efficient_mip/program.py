"""Place an instance's operators: the heuristic's placement, then the solver's if that is better."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tvm_sched_runtime.errors import InfeasibleError, SchedulerError
from tvm_sched_runtime.search_budget import OutOfTime

from ..common.milp import Effort, argmax, limited_model, minimise
from .heuristic import best_placement
from .instance import Instance, PlacementTimes, evaluate
from .path_bound import lower_bound
from .separator_bound import separator_bound

if TYPE_CHECKING:
    from ortools.math_opt.python import mathopt

    from .constraints import Variables

ROUNDS, EVALUATIONS = 50, 10_000
"""Effort of the heuristic: topological orders to cut, and placements to evaluate while the best are improved."""

_ROUNDING = 1e-9
"""Relative difference of sums of times in different orders."""

_TOLERANCE = 1e-5
"""Relative tolerance of solvers' bounds; they allow 1e-6 in each constraint."""


@dataclass(frozen=True)
class SolvedPlacement:
    """A placement with its latency and a lower bound."""

    subgraph: list[int]
    """Subgraph of each operator; 0 is a CPU."""
    latency: float
    bound: float
    """Lower bound of the latency of every placement, in the instance's unit of time."""
    optimal: bool


def place(
    instance: Instance,
    effort: Effort | None,
    rounds: int = ROUNDS,
    evaluations: int = EVALUATIONS,
    seed: int = 0,
    annealing: int = 0,
    seconds: float = 3600.0,
    looks: int = 0,
) -> SolvedPlacement:
    """Minimise latency (Tarnawski et al.) by the heuristic, then the solver; return the better placement.

    Parameters
    ----------
    effort : Effort or None
        Effort of the solver, in addition to the heuristic's time; None: no solver.
    rounds, evaluations, seed : int
        See `best_placement`.
    annealing : int
        Placements to evaluate in simulated annealing (`annealing.anneal`), which the paper does not have; 0: none.
    seconds : float
        Seconds after which the heuristic begins no further step.
    looks : int
        Effort of `separator_bound`; 0: the bound is that of paths alone.

    Raises
    ------
    InfeasibleError
        Neither finds a placement within the accelerators' memory.
    """
    start = best_placement(instance, rounds, evaluations, seed, time.monotonic() + seconds, annealing)
    ends = evaluate(instance, start) if start is not None else None
    if start is None or ends is None:
        raise InfeasibleError(
            "the heuristic has no placement: the operators that no CPU runs do not fit into the accelerators' memory"
        )
    proved = max(lower_bound(instance), separator_bound(instance, looks).bound if looks else 0.0)
    bound = checked_bound(proved, ends.latency, _ROUNDING)
    known = SolvedPlacement(start, ends.latency, bound, ends.latency <= bound * (1 + _ROUNDING))
    if effort is None or known.optimal:
        return known
    try:
        program = limited_model()
        v = build(program, instance, ends.latency)
        answer = minimise(program, effort, hint(instance, v, start, ends))
    except OutOfTime:
        return known
    if answer is None or answer.values is None:
        return known
    places = (0, *instance.subgraphs)
    placement = [places[argmax([answer.values[v.within[o, j]] for j in places])] for o in instance.operators]
    after = evaluate(instance, placement)
    bound = max(known.bound, answer.bound * v.tick if answer.bound is not None else 0.0)
    if after is None or after.latency >= known.latency:
        return SolvedPlacement(start, known.latency, checked_bound(bound, known.latency), answer.optimal)
    return SolvedPlacement(placement, after.latency, checked_bound(bound, after.latency), answer.optimal)


def checked_bound(bound: float, latency: float, tolerance: float = _TOLERANCE) -> float:
    """Cap a bound at a known latency; raise `SchedulerError` if it exceeds that by more than the tolerance."""
    if bound > latency * (1 + tolerance):
        raise SchedulerError(f"the bound {bound:.9g} exceeds a latency of {latency:.9g}: please report this")
    return min(bound, latency)


def build(program: mathopt.Model, instance: Instance, latest: float) -> Variables:
    """Build the program of a placement that must end by ``latest``."""
    from .constraints import ALL, Variables

    v = Variables.of(program, instance, latest)
    for constraint in ALL:
        constraint(program, instance, v)
    program.minimize(v.total)
    return v


def hint(instance: Instance, v: Variables, subgraph: list[int], ends: PlacementTimes) -> dict[Any, float]:
    """Return the values of all variables for a placement."""
    values: dict[Any, float] = dict.fromkeys((*v.within.values(), *v.come_in.values(), *v.go_out.values()), 0.0)
    leads: dict[tuple[int, int], float] = {}
    for o in reversed(instance.order):
        values[v.within[o, subgraph[o]]] = 1.0
        values[v.ready[o]] = ends.ready[o] / v.tick
        for j in instance.subgraphs:
            leads[o, j] = float(subgraph[o] == j or any(leads[r, j] for r in instance.after[o]))
            values[v.leads[o, j]] = leads[o, j]
    for a, b in instance.edges:
        if subgraph[a] != subgraph[b]:
            if subgraph[b]:
                values[v.come_in[a, subgraph[b]]] = 1.0
            if subgraph[a]:
                values[v.go_out[a, subgraph[a]]] = 1.0
    for j in instance.subgraphs:
        values[v.start[j]], values[v.end[j]] = ends.start[j] / v.tick, ends.end[j] / v.tick
    values[v.total] = ends.latency / v.tick
    return values
