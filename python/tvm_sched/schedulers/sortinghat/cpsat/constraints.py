"""The constraints of SortingHat's program for CP-SAT: equations (2) to (23), and constraints implied by them."""

from __future__ import annotations

from itertools import pairwise
from math import inf

from ortools.sat.python import cp_model

from ..strengthening import shortest_end
from ..symmetry import equal_buses
from .variables import Variables


def each_node_in_one_subgraph(m: cp_model.CpModel, v: Variables) -> None:
    """Equations (2) to (4): each node is in one of its allowed subgraphs."""
    for node in v.s.nodes:
        m.add_exactly_one(v.within[node, j] for j in v.places[node])


def parameters_follow_the_mode(m: cp_model.CpModel, v: Variables) -> None:
    """Equation (5): a parameter stays in host memory exactly if its readers run with direct host access."""
    for w in v.s.parameter_nodes:
        for reader in v.s.readers[w]:
            host = v.within.get((w, 0), 0)
            m.add(host == sum(v.within[reader, j] for j in v.places[reader] if j % 2))


def subgraphs_are_contiguous(m: cp_model.CpModel, v: Variables) -> None:
    """Equations (6) to (8): no path leaves a subgraph and comes back."""
    for j in v.s.subgraphs:
        for node in v.s.nodes:
            if (node, j) in v.within:
                m.add_implication(v.within[node, j], v.leads[node, j])
        for a, b in v.s.edges:
            m.add_implication(v.leads[b, j], v.leads[a, j])
            if (a, j) in v.within:
                stays = [v.within[b, j]] if (b, j) in v.within else []
                m.add_bool_or([~v.leads[b, j], ~v.within[a, j], *stays])


def edges_and_copies_come_in(m: cp_model.CpModel, v: Variables) -> None:
    """Equations (9) and (10): nodes that a subgraph reads and does not contain enter it, as copies from other devices."""
    s = v.s
    for a, b in s.edges:
        for j in s.subgraphs:
            if (b, j) in v.within:
                held = [v.within[a, j]] if (a, j) in v.within else []
                m.add_bool_or([~v.within[b, j], *held, v.edge_in[a, j]])
    for (node, d, j), copy in v.copy_in.items():
        for i in v.places[node]:
            if i in s.of_device(d):
                m.add_bool_or([~v.within[node, i], ~v.edge_in[node, j], copy])
        if s.copy[node][d][s.device_of(j)] == inf:
            m.add(copy == 0)


def memory_suffices(m: cp_model.CpModel, v: Variables) -> None:
    """Equation (11)."""
    s = v.s
    for d in s.devices:
        mine = s.of_device(d)
        placed = [s.size[node][d] * v.within[node, j] for node in s.nodes for j in v.places[node] if j in mine]
        copied = [s.size[node][d] * copy for (node, _, j), copy in v.copy_in.items() if j in mine]
        m.add(sum([*placed, *copied]) <= s.memory[d] - s.memory_used[d])


def loads_take_turns(m: cp_model.CpModel, v: Variables) -> None:
    """Equations (12) to (14)."""
    s = v.s
    for before, turns in zip(s.transfers_end, s.turns, strict=True):
        earlier: cp_model.LinearExprT = v.at(before)
        for j in turns:
            d = s.device_of(j)
            loads = [
                int(s.load[w][d]) * v.within[w, j]
                for w in s.parameter_nodes
                if w not in s.fixed and 0 < s.load[w][d] < inf
            ]
            m.add(v.load_end[j] == earlier + sum(loads))
            earlier = v.load_end[j]


def nodes_are_ready(m: cp_model.CpModel, v: Variables) -> None:
    """Equations (15) and (16)."""
    for (node, j), within in v.within.items():
        if j:
            ends = v.load_end if node in v.s.parameter_nodes else v.end
            m.add(v.ready[node] >= ends[j]).only_enforce_if(within)


def subgraphs_wait(m: cp_model.CpModel, v: Variables) -> None:
    """Equations (17) to (20)."""
    s = v.s
    for j in s.subgraphs:
        m.add(v.start[j] >= (v.at(s.device_end[s.device_of(j)]) if j % s.q == 1 else v.end[j - 1]))
    for (node, j), edge in v.edge_in.items():
        m.add(v.start[j] >= v.ready[node]).only_enforce_if(edge)
    for w, reader in s.edges:
        if w in s.parameter_nodes:
            for j in v.places[w]:
                if j and (reader, j) in v.within:
                    m.add(v.start[j] >= v.load_end[j]).only_enforce_if(v.within[w, j], v.within[reader, j])


def subgraphs_take_time(m: cp_model.CpModel, v: Variables) -> None:
    """Equations (21) and (22)."""
    s = v.s
    for j in s.subgraphs:
        d = s.device_of(j)
        copies = [
            int(s.copy[node][source][d]) * v.copy_in[node, source, j]
            for node in s.nodes
            for source in s.devices
            if s.readers[node] and source != d and 0 < s.copy[node][source][d] < inf
        ]
        runs = [int(s.time(o, j)) * v.within[o, j] for o in range(s.operators) if (o, j) in v.within]
        m.add(v.end[j] == v.start[j] + sum([*copies, *runs]))


def total_is_the_last_end(m: cp_model.CpModel, v: Variables) -> None:
    """Equations (1) and (23)."""
    for d in v.s.devices:
        m.add(v.total >= v.end[v.s.of_device(d)[-1]])
    m.minimize(v.total)


def operators_take_turns_on_devices(m: cp_model.CpModel, v: Variables) -> None:
    """Let operators run within their subgraphs, one at a time on a device (implied; not in the paper)."""
    s = v.s
    took = {o: sum(int(s.time(o, j)) * v.within[o, j] for j in v.places[o]) for o in range(s.operators)}
    for d in s.devices:
        intervals = []
        for o in range(s.operators):
            for j in s.of_device(d):
                if (o, j) in v.within:
                    here, duration = v.within[o, j], int(s.time(o, j))
                    m.add(v.begin[o] >= v.start[j]).only_enforce_if(here)
                    m.add(v.begin[o] + duration <= v.end[j]).only_enforce_if(here)
                    intervals.append(m.new_optional_fixed_size_interval_var(v.begin[o], duration, here, ""))
        m.add_no_overlap(intervals)
    for o in range(s.operators):
        m.add(v.begin[o] >= sum(v.at(s.device_end[s.device_of(j)]) * v.within[o, j] for j in v.places[o]))
        m.add(v.total >= v.begin[o] + took[o])
    for a, b in s.edges:
        if a < s.operators:
            m.add(v.begin[b] >= v.begin[a] + took[a])


def operators_follow_their_loads(m: cp_model.CpModel, v: Variables) -> None:
    """Let a parameter be ready only after its own load (implied; not in the paper)."""
    s = v.s
    bus_of = {d: bus for bus, devices in enumerate(s.buses) for d in devices}
    for w, reader in s.edges:
        if w in s.parameter_nodes and w not in s.fixed:
            m.add(v.begin[reader] >= v.ready[w])
            places = [(j, s.device_of(j)) for j in v.places[w] if j]
            m.add(
                v.begin[reader]
                >= sum(int(v.at(s.transfers_end[bus_of[d]]) + s.load[w][d]) * v.within[w, j] for j, d in places)
            )


def something_follows_the_loads(m: cp_model.CpModel, v: Variables) -> None:
    """Let an operator follow the loads, as the function of this name in `strengthening` does."""
    s = v.s
    loaded = [w for w in s.parameter_nodes if w not in s.fixed and s.readers[w]]
    shortest = shortest_end(s, loaded)
    if shortest == inf:
        return  # an operator that every reader needs runs nowhere: other constraints make the submodel infeasible
    for before, devices, turns in zip(s.transfers_end, s.buses, s.turns, strict=True):
        loads = v.load_end[turns[-1]] - v.at(before)
        for w in loaded:
            timed = (j for d in devices if 0 < s.load[w][d] < inf for j in s.of_device(d))
            here = sum(v.within[w, j] for j in timed if (w, j) in v.within)
            m.add(v.total >= loads + (v.at(before) + int(shortest)) * here)


def equal_buses_are_used_in_order(m: cp_model.CpModel, v: Variables) -> None:
    """Use equal buses in order, to keep one of the assignments that differ only in their names (`symmetry`)."""
    for buses in equal_buses(v.s):
        for before, bus in pairwise(buses):
            used: cp_model.LinearExprT = 0
            for node in range(v.s.operators):
                m.add(sum(v.inside(node, d) for d in v.s.buses[bus]) <= used)
                known, used = used, m.new_bool_var("")
                v.used[before, node] = used
                m.add(used <= sum(v.inside(node, d) for d in v.s.buses[before]) + known)


AS_PRINTED = (
    each_node_in_one_subgraph,
    parameters_follow_the_mode,
    subgraphs_are_contiguous,
    edges_and_copies_come_in,
    memory_suffices,
    loads_take_turns,
    nodes_are_ready,
    subgraphs_wait,
    subgraphs_take_time,
    total_is_the_last_end,
)
"""Equations (1) to (23)."""

ALL = (
    *AS_PRINTED,
    operators_take_turns_on_devices,
    operators_follow_their_loads,
    something_follows_the_loads,
    equal_buses_are_used_in_order,
)
"""The families of constraints, in the order of their addition."""
