"""Inequalities that every solution of SortingHat's program satisfies, and that tighten its linear relaxation.

For each solution of the program of `constraints`, some starts of the operators (added variables) satisfy them. So the
optimum is the same, and the solver's bound is higher.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import inf

from ortools.math_opt.python import mathopt

from .submodel import Submodel, Times, copies_into
from .variables import SPAN, Variables


def operators_run_in_their_subgraphs(program: mathopt.Model, s: Submodel, v: Variables) -> None:
    """Let each operator start and end within its subgraph, and the run end after it."""
    for node in range(s.operators):
        begin = v.begin[node] = program.add_variable(lb=v.clock.at(min(s.device_end)), ub=SPAN)
        for j in s.subgraphs:
            if s.time(node, j) < inf:
                elsewhere = 1 - v.within[node, j]
                earliest = v.clock.at(s.device_end[s.device_of(j)])
                program.add_linear_constraint(begin >= v.start[j] - SPAN * elsewhere)
                program.add_linear_constraint(begin >= earliest * v.within[node, j])
                program.add_linear_constraint(begin + _time(s, v, node) <= v.end[j] + SPAN * elsewhere)
        program.add_linear_constraint(v.total >= begin + _time(s, v, node))


def operators_follow_what_they_read(program: mathopt.Model, s: Submodel, v: Variables) -> None:
    """Start operators after the operators that they read, and after their loads."""
    for a, b in s.edges:
        if a < s.operators:
            program.add_linear_constraint(v.begin[b] >= v.begin[a] + _time(s, v, a))
        elif a in s.parameter_nodes and a not in s.fixed:
            program.add_linear_constraint(v.begin[b] >= _load_end(s, v, a))


def something_follows_the_loads(program: mathopt.Model, s: Submodel, v: Variables) -> None:
    """Run the reader of a bus's last parameter after all of the bus's loads.

    The time from there to the end is at least the shortest path from any reader of a parameter.
    """
    loaded = [w for w in s.parameter_nodes if w not in s.fixed and s.readers[w]]
    shortest = shortest_end(s, loaded)
    for before, devices, turns in zip(s.transfers_end, s.buses, s.turns, strict=True):
        earlier = v.clock.at(before)
        loads = v.load_end[turns[-1]] - earlier
        for w in loaded:
            here = mathopt.fast_sum(v.within[w, j] for d in devices for j in s.of_device(d) if 0 < s.load[w][d] < inf)
            program.add_linear_constraint(v.total >= loads + (earlier + v.clock.long(shortest)) * here)


def start_times(s: Submodel, assignment: Sequence[int], times: Times) -> dict[int, float]:
    """Return when each operator starts: in order, after the copies into its subgraph."""
    starts: dict[int, float] = {}
    for j in s.subgraphs:
        members = [node for node in range(s.operators) if assignment[node] == j]
        d = s.device_of(j)
        at = times.start[j] + sum(s.copy[u][source][d] for u, source in copies_into(s, assignment, j, members))
        for node in members:
            starts[node] = at
            at += s.time(node, j)
    return starts


ALL = (operators_run_in_their_subgraphs, operators_follow_what_they_read, something_follows_the_loads)
"""The families of inequalities, in the order of their addition."""


def _time(s: Submodel, v: Variables, node: int) -> mathopt.LinearSum:
    """Return the time of an operator in its subgraph."""
    return mathopt.fast_sum(
        v.clock.long(s.time(node, j)) * v.within[node, j] for j in s.subgraphs if s.time(node, j) < inf
    )


def _load_end(s: Submodel, v: Variables, w: int) -> mathopt.LinearSum:
    """Return the earliest end of a parameter's load into its device; the start of the clock if it stays in host memory."""
    return mathopt.fast_sum(
        v.clock.at(s.transfers_end[bus] + s.load[w][d]) * v.within[w, j]
        for bus, devices in enumerate(s.buses)
        for d in devices
        for j in s.of_device(d)
        if s.load[w][d] < inf
    )


def shortest_end(s: Submodel, nodes: Sequence[int]) -> float:
    """Return the least time from the start of a reader of one of the nodes to the end, on the fastest devices."""
    tail = [0.0] * s.operators
    for node in reversed(range(s.operators)):
        fastest = min(s.time(node, j) for j in s.subgraphs)
        tail[node] = fastest + max((tail[r] for r in s.readers[node]), default=0.0)
    return min((tail[r] for node in nodes for r in s.readers[node]), default=0.0)
