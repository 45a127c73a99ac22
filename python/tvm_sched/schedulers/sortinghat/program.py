"""Solve one submodel's program: build it, start the solver from a known assignment, read the answer."""

from __future__ import annotations

from typing import Any, NamedTuple

from ortools.math_opt.python import mathopt

from ..common.milp import Effort, argmax, limited_model, minimise
from . import constraints, strengthening
from .strengthening import start_times
from .submodel import Submodel, Times, copies_into, evaluate
from .symmetry import equal_buses_are_used_in_order, relabelled, used_so_far
from .variables import Variables


class ProgramResult(NamedTuple):
    """Result of the solver."""

    assignment: list[int] | None
    """Subgraph of each node; None if nothing is better than the start."""
    objective_ns: int | None = None
    bound_ns: int | None = None
    """Objective of the solver's best solution, and its lower bound; None without one."""
    status: str = "failed"
    """As `Answer.status`, or ``failed``."""
    seconds: float = 0.0


def solve(s: Submodel, start: list[int], effort: Effort, strengthened: bool = True) -> ProgramResult:
    """Solve the program; return the best solution within the solver's limits.

    Parameters
    ----------
    start : list of int
        An assignment for which `evaluate` gives times: the solver's hint, and a bound on the objective.
    strengthened : bool
        Add the inequalities of `strengthening`, which change no solution, and of `symmetry`, which keep one of the solutions
        that differ only by an exchange of equal buses.
    """
    start = relabelled(s, start) if strengthened else start
    known = evaluate(s, start)
    if known is None:
        raise AssertionError("the start does not satisfy the program")
    program = limited_model()
    v = build(program, s, known.total, strengthened)
    answer = minimise(program, effort, hint(s, v, start, known))
    if answer is None:
        return ProgramResult(None)
    objective, bound = (None if at is None else round(v.clock.when(at)) for at in (answer.objective, answer.bound))
    if answer.values is None:
        return ProgramResult(None, objective, bound, answer.status, answer.seconds)
    places = (0, *s.subgraphs)
    assignment = [places[argmax([answer.values[v.within[node, j]] for j in places])] for node in s.nodes]
    times = evaluate(s, assignment)
    better = times is not None and times.total < known.total
    return ProgramResult(assignment if better else None, objective, bound, answer.status, answer.seconds)


def build(program: mathopt.Model, s: Submodel, latest: float, strengthened: bool = True) -> Variables:
    """Build the whole program of a submodel that must end by ``latest`` nanoseconds."""
    v = Variables.of(program, s, latest)
    more = (*strengthening.ALL, equal_buses_are_used_in_order) if strengthened else ()
    for constraint in (*constraints.ALL, *more):
        constraint(program, s, v)
    constraints.earliest_total(program, v)
    return v


def hint(s: Submodel, v: Variables, assignment: list[int], times: Times) -> dict[Any, float]:
    """Return the values of all variables in an assignment."""
    values: dict[Any, float] = dict.fromkeys((*v.within.values(), *v.edge_in.values(), *v.copy_in.values()), 0.0)
    values |= {v.leads[key]: float(leads) for key, leads in leads_to(s, assignment).items()}
    for node in s.nodes:
        j = assignment[node]
        values[v.within[node, j]] = 1.0
        ends = times.load_end if node in s.parameter_nodes else times.end
        values[v.ready[node]] = v.clock.at(ends[j]) if j else 0.0
    for a, b in s.edges:
        if assignment[a] != assignment[b]:
            values[v.edge_in[a, assignment[b]]] = 1.0
    for j in s.subgraphs:
        members = [node for node in range(s.operators + s.placeholders) if assignment[node] == j]
        for node, source in copies_into(s, assignment, j, members):
            values[v.copy_in[node, source, j]] = 1.0
        for variables, moments in (
            (v.load_start, times.load_start), (v.load_end, times.load_end), (v.start, times.start), (v.end, times.end)
        ):  # fmt: skip
            values[variables[j]] = v.clock.at(moments[j])
    begin = start_times(s, assignment, times)
    values |= {variable: v.clock.at(begin[node]) for node, variable in v.begin.items()}
    values |= {variable: float(used_so_far(s, assignment, *key)) for key, variable in v.used.items()}
    values[v.total] = v.clock.at(times.total)
    return values


def leads_to(s: Submodel, assignment: list[int]) -> dict[tuple[int, int], bool]:
    """Return by node and subgraph whether a path leads from the node to the subgraph, or the node is in it."""
    leads: dict[tuple[int, int], bool] = {}
    for node in sorted(s.nodes, key=_depth(s), reverse=True):
        for j in s.subgraphs:
            leads[node, j] = j == assignment[node] or any(leads[reader, j] for reader in s.readers[node])
    return leads


def _depth(s: Submodel) -> Any:
    """Return a key that sorts nodes before their readers."""
    depth = [0] * len(s.nodes)
    for v in range(s.operators):  # operators are in topological order; only operators read
        depth[v] = 1 + max((depth[u] for u in s.read[v]), default=0)
    return depth.__getitem__
