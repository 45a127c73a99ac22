"""Models in parts by rows (`tvm_sched.relax.variants.split_rows`): which part an operator belongs to, and who loads what.

Nothing is known of how the graph was made: operators that read the same parameters are taken as parts of one kernel.
"""

from __future__ import annotations

from collections.abc import Sequence

import rustworkx as rx

from ...problem import HOST, Scenario
from ..common.greedy import priorities

LEAST_SHARE = 0.9
"""Fewest operators, as a share of all, that belong to parts in a model that counts as one in parts."""


def part_numbers(scenario: Scenario) -> list[int | None] | None:
    """Return the part of each operator, counted from 0, None for operators of no part; None for a model without parts.

    Parts of one kernel are counted in the order of the graph. An operator without shared parameters belongs to the part
    whose results alone it reads.
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
    """Return for each operator the first one of those that are parts of one kernel with it, perhaps itself.

    Parts of a kernel read the same parameters and are equally deep in the graph; readers at different depths are layers or
    time steps that share a parameter. The largest shared parameter counts. None for an operator that reads none.
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
    """Return the layer of each operator, counted from 0: the stretch of the model, not in parts, between two dominators.

    The parts of a kernel count as one operator. An operator between dominators is in the stretch that the next one ends.
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
    """Return for each parameter that several operators read the device that loads it for its neighbours; else -1.

    ``group_of`` has the position in ``groups``, the devices, of each operator. Parameters are dealt in the order in which
    they are read, each to a device of its first reader's group whose bus has then ended all its loads first.
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
