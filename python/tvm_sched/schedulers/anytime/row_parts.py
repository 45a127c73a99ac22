"""Models in parts by rows (`tvm_sched.relax.variants.split_rows`): which part an operator belongs to, and who loads what.

The graph does not say how it was made. Operators that are equally deep in the graph and share their largest shared parameter
are taken as parts of one kernel.
"""

from __future__ import annotations

from collections.abc import Sequence

import rustworkx as rx

from tvm_sched_runtime.problem import HOST, Scenario

from ..common.greedy import priorities

LEAST_SHARE = 0.9
"""Least fraction of operators that must belong to parts; else the model counts as one without parts."""


def part_numbers(scenario: Scenario) -> list[int | None] | None:
    """Return the part of each operator, from 0, or None for an operator of no part; return None for a model without parts.

    Parts of one kernel are numbered in the order of the graph. An operator without shared parameters belongs to a part if,
    of all parts, it reads results of that one alone.
    """
    index = scenario.graph.index
    parts: dict[int, list[int]] = {}
    kernels = _kernels(scenario)
    for o in index.order:
        if (kernel := kernels[o]) is not None:
            parts.setdefault(kernel, []).append(o)
    numbers: list[int | None] = [None] * len(index.order)
    for several in parts.values():
        for k, o in enumerate(several):
            numbers[o] = k if len(several) > 1 else None
    for o in index.order:
        if kernels[o] is None:
            before = {numbers[index.producer[t]] for t in index.inputs[o] if index.producer[t] >= 0} - {None}
            numbers[o] = before.pop() if len(before) == 1 else None
    known = sum(number is not None for number in numbers)
    in_parts = any(len(several) > 1 for several in parts.values())
    return numbers if in_parts and known >= LEAST_SHARE * len(numbers) else None


def _kernels(scenario: Scenario) -> list[int | None]:
    """Return for each operator the first part of its kernel, perhaps itself; None if it reads no shared parameter.

    Parts of a kernel are equally deep in the graph, and the largest shared parameter that they read is the same. Readers at
    different depths are layers or time steps that share a parameter.
    """
    index = scenario.graph.index
    readers = [0] * len(index.size)
    for read in index.host_inputs:
        for t in read:
            readers[t] += 1
    depth, first = [0] * len(index.order), dict[tuple[int, int], int]()
    kernels: list[int | None] = [None] * len(index.order)
    for o in index.order:
        depth[o] = 1 + max((depth[p] for p in index.predecessors[o]), default=0)
        if shared := [(index.size[t], t) for t in index.host_inputs[o] if readers[t] > 1]:
            kernels[o] = first.setdefault((max(shared)[1], depth[o]), o)
    return kernels


def layer_numbers(scenario: Scenario) -> list[int]:
    """Return the layer of each operator, counted from 0. A layer ends with an operator through which all paths lead.

    The parts of a kernel count as one operator here. The operators through which all paths lead are the dominators of the
    end of the graph; an operator between two of them is in the layer of the second.
    """
    index = scenario.graph.index
    kernel = [o if first is None else first for o, first in enumerate(_kernels(scenario))]
    source, sink = len(kernel), len(kernel) + 1
    edges = dict.fromkeys(
        (kernel[p], kernel[o]) for o in index.order for p in index.predecessors[o] if kernel[p] != kernel[o]
    )
    late, early = {b for _, b in edges}, {a for a, _ in edges}
    graph = rx.PyDiGraph()
    graph.add_nodes_from(range(len(kernel) + 2))
    graph.add_edges_from_no_data([*edges, *((source, k) for k in dict.fromkeys(kernel) if k not in late)])
    graph.add_edges_from_no_data([(k, sink) for k in dict.fromkeys(kernel) if k not in early])
    immediate = rx.immediate_dominators(graph, source)
    chain = [sink]
    while chain[-1] != source:
        chain.append(immediate[chain[-1]])
    position = {k: i for i, k in enumerate(reversed(chain[1:-1]))}
    layer = [0] * len(kernel)
    for o in reversed(index.order):
        after = min((layer[s] for s in index.successors[o]), default=len(position))
        layer[o] = position.get(kernel[o], after)
    return layer


def parameter_homes(scenario: Scenario, groups: Sequence[Sequence[int]], group_of: Sequence[int]) -> list[int]:
    """Return for each parameter that several operators read the device that loads it for its group; else -1.

    Parameters are assigned in the order in which they are read. Each goes over the bus of its first reader's group that
    would have loaded it first; the devices of a bus take turns.

    Parameters
    ----------
    groups : sequence of sequence of int
        The devices of each group.
    group_of : sequence of int, (operators,)
        Position in ``groups`` for each operator.
    """
    index, topology, rank = scenario.graph.index, scenario.topology, priorities(scenario)
    buses: list[dict[int, list[int]]] = []
    for devices in groups:
        buses.append({})
        for d in devices:
            if (route := topology.route(HOST, d)) is not None:
                buses[-1].setdefault(route.channels[0], []).append(d)
    home, readers = [-1] * len(index.size), [0] * len(index.size)
    for read in index.host_inputs:
        for t in read:
            readers[t] += 1
    until = {bus: 0 for on_bus in buses for bus in on_bus}
    dealt = dict.fromkeys(until, 0)
    for o in sorted(range(len(rank)), key=lambda o: (-rank[o], o)):
        on_bus = buses[group_of[o]]
        for t in index.host_inputs[o]:
            if readers[t] > 1 and home[t] < 0 and on_bus:
                ends = {bus: until[bus] + scenario.load_ns(t, devices[0]) for bus, devices in on_bus.items()}
                bus = min(ends, key=lambda bus: ends[bus])
                until[bus] = ends[bus]
                home[t] = on_bus[bus][dealt[bus] % len(on_bus[bus])]
                dealt[bus] += 1
    return home
