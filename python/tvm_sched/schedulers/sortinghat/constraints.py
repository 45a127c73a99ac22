"""The constraints of SortingHat's program, Section 3.3: one function for each group, named with its equations.

Table 1 has times of transfers as bytes times a time per size. Here `Submodel` has each transfer's time, so that a route's
latency counts, too. If an equation cannot be meant as printed, the function's docstring says so.
"""

from __future__ import annotations

from math import inf

from ortools.math_opt.python import mathopt

from ..common.milp import contiguous
from .submodel import Submodel
from .variables import SPAN, Variables


def each_node_in_one_subgraph(program: mathopt.Model, s: Submodel, v: Variables) -> None:
    """Equation (2). Printed as a sum over ``i``; the summand has ``j``, and it is ``j`` that runs from 0 to ``kq``."""
    for node in s.nodes:
        program.add_linear_constraint(mathopt.fast_sum(v.within[node, j] for j in (0, *s.subgraphs)) == 1)


def only_where_it_can_be(program: mathopt.Model, s: Submodel, v: Variables) -> None:
    """Equations (3) and (4); a node is nowhere where its latency is infinite (the paper's devices run everything).

    Nodes placed before are in the first subgraph of their device; operators are not in subgraph 0.
    """
    for node in s.nodes:
        allowed = set(s.places(node))
        for j in (0, *s.subgraphs):
            if j not in allowed:
                v.within[node, j].upper_bound = 0


def parameters_follow_the_mode(program: mathopt.Model, s: Submodel, v: Variables) -> None:
    """Equation (5): a parameter stays in host memory exactly if its reader runs with direct host access.

    It holds for each edge, so that all readers of a shared parameter have the same mode.
    """
    for w in s.parameter_nodes:
        for reader in s.readers[w]:
            direct = mathopt.fast_sum(v.within[reader, j] for j in s.subgraphs if j % 2)
            program.add_linear_constraint(v.within[w, 0] == direct)


def subgraphs_are_contiguous(program: mathopt.Model, s: Submodel, v: Variables) -> None:
    """Equations (6) to (8), after Tarnawski et al.: no path leaves a subgraph and comes back."""
    contiguous(program, s.nodes, s.edges, s.subgraphs, v.within, v.leads)


def edges_come_in(program: mathopt.Model, s: Submodel, v: Variables) -> None:
    """Equation (9): a subgraph has an edge from a node that it reads and does not hold."""
    for a, b in s.edges:
        for j in s.subgraphs:
            program.add_linear_constraint(v.edge_in[a, j] >= v.within[b, j] - v.within[a, j])


def copies_come_in(program: mathopt.Model, s: Submodel, v: Variables) -> None:
    """Equation (10): an edge from a node on another device is a copy; the sum runs over that device's subgraphs.

    The sum's upper end is ``iq`` (its subscript is lost in print). Without a route between two devices there is no copy.
    """
    for (node, d, j), copy in v.copy_in.items():
        program.add_linear_constraint(copy >= v.inside(s, node, d) + v.edge_in[node, j] - 1)
        if s.copy[node][d][s.device_of(j)] == inf:
            copy.upper_bound = 0


def memory_suffices(program: mathopt.Model, s: Submodel, v: Variables) -> None:
    """Equation (11): the bytes that a device held, that are placed on it and copied to it; nothing is freed in between.

    A node placed before takes no further memory on its device, since ``PrevM`` contains it. Bytes are fractions of the
    device's memory here, since solvers have tolerances.
    """
    for d in s.devices:
        memory = max(s.memory[d], 1)
        placed = [s.size[node][d] / memory * v.within[node, j] for node in s.nodes for j in s.of_device(d)]
        copied = [
            s.size[node][d] / memory * v.copy_in[node, source, j]
            for node in s.nodes
            for source in s.devices
            for j in s.of_device(d)
            if s.readers[node] and source != d
        ]
        if placed or copied:
            program.add_linear_constraint(
                mathopt.fast_sum([*placed, *copied]) <= (s.memory[d] - s.memory_used[d]) / memory
            )


def loads_take_turns(program: mathopt.Model, s: Submodel, v: Variables) -> None:
    """Equations (12) to (14): the subgraphs of a bus load one after another, its devices in turn.

    In (13) the index is the subgraph ``j`` (printed ``i``), in (14) the sum is over parameters alone. A parameter that is
    on its device already is not loaded again.
    """
    for before, turns in zip(s.transfers_end, s.turns, strict=True):
        for position, j in enumerate(turns):
            earlier = v.clock.at(before) if position == 0 else v.load_end[turns[position - 1]]
            program.add_linear_constraint(v.load_start[j] == earlier)
            d = s.device_of(j)
            loads = [
                v.clock.long(s.load[w][d]) * v.within[w, j]
                for w in s.parameter_nodes
                if 0 < s.load[w][d] < inf and w not in s.fixed
            ]
            program.add_linear_constraint(v.load_end[j] == mathopt.fast_sum([v.load_start[j], *loads]))


def nodes_are_ready(program: mathopt.Model, s: Submodel, v: Variables) -> None:
    """Equations (15) and (16): results are ready at their subgraph's end, parameters when all of their subgraph are loaded.

    In (16), as for operators, ``j`` is at least 1: parameters that stay in host memory are ready at once.
    """
    for node in s.nodes:
        ends = v.load_end if node in s.parameter_nodes else v.end
        for j in s.subgraphs:
            program.add_linear_constraint(v.ready[node] >= ends[j] - SPAN * (1 - v.within[node, j]))


def subgraphs_wait(program: mathopt.Model, s: Submodel, v: Variables) -> None:
    """Equations (17) to (20): for the device, for nodes of other subgraphs, for parameters of their own."""
    for j in s.subgraphs:
        first = j % s.q == 1
        earlier = v.clock.at(s.device_end[s.device_of(j)]) if first else v.end[j - 1]
        program.add_linear_constraint(v.start[j] >= earlier)
    for (node, j), edge in v.edge_in.items():
        program.add_linear_constraint(v.start[j] >= v.ready[node] - SPAN * (1 - edge))
    for w, reader in s.edges:
        if w in s.parameter_nodes:
            for j in s.subgraphs:
                both = 2 - v.within[w, j] - v.within[reader, j]
                program.add_linear_constraint(v.start[j] >= v.ready[w] - SPAN * both)


def subgraphs_take_time(program: mathopt.Model, s: Submodel, v: Variables) -> None:
    """Equations (21) and (22): copies, then kernels, with direct host access if the subgraph's number is odd."""
    for j in s.subgraphs:
        d = s.device_of(j)
        busy = [v.start[j]]
        for node in s.nodes:
            for source in s.devices:
                if s.readers[node] and source != d and 0 < s.copy[node][source][d] < inf:
                    busy.append(v.clock.long(s.copy[node][source][d]) * v.copy_in[node, source, j])
        for node in range(s.operators):
            if 0 < s.time(node, j) < inf:
                busy.append(v.clock.long(s.time(node, j)) * v.within[node, j])
        program.add_linear_constraint(v.end[j] == mathopt.fast_sum(busy))


def total_is_the_last_end(program: mathopt.Model, s: Submodel, v: Variables) -> None:
    """Equation (23)."""
    for d in s.devices:
        program.add_linear_constraint(v.total >= v.end[s.of_device(d)[-1]])


def earliest_total(program: mathopt.Model, v: Variables) -> None:
    """Equation (1): the objective."""
    program.minimize(v.total)


ALL = (
    each_node_in_one_subgraph,
    only_where_it_can_be,
    parameters_follow_the_mode,
    subgraphs_are_contiguous,
    edges_come_in,
    copies_come_in,
    memory_suffices,
    loads_take_turns,
    nodes_are_ready,
    subgraphs_wait,
    subgraphs_take_time,
    total_is_the_last_end,
)
"""Equations (2) to (23)."""
