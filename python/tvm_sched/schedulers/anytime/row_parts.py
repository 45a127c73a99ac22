"""Models in parts by rows (`tvm_sched.relax.variants.split_rows`): which part an operator belongs to, and who loads what.

Nothing is known of how the graph was made: operators that read the same parameters are taken as parts of one kernel.
"""

from __future__ import annotations

from collections.abc import Sequence

from ...problem import HOST, Scenario
from ..common.greedy import priorities

LEAST_SHARE = 0.9
"""Fewest operators, as a share of all, that belong to parts in a model that counts as one in parts."""

LATENCY_BYTES = 250_000
"""Bytes that a PCIe bus carries while a load begins."""


def part_numbers(scenario: Scenario) -> list[int | None] | None:
    """Return the part of each operator, counted from 0, None for operators of no part; None for a model without parts.

    The readers of a parameter that are equally deep in the graph are parts of one kernel, in the order of the graph; the
    largest parameter counts. Readers at different depths are layers or time steps that share the parameter. An operator
    without shared parameters belongs to the part whose results alone it reads.
    """
    index = scenario.graph.index
    depth = [0] * len(index.order)
    readers: dict[int, dict[int, list[int]]] = {}
    for o in index.order:
        depth[o] = 1 + max((depth[p] for p in index.predecessors[o]), default=0)
        for t in index.host_inputs[o]:
            readers.setdefault(t, {}).setdefault(depth[o], []).append(o)
    shared = {t: levels for t, levels in readers.items() if sum(map(len, levels.values())) > 1}
    place = {
        (t, o): k
        for t, levels in shared.items()
        for several in levels.values()
        if len(several) > 1
        for k, o in enumerate(several)
    }
    numbers: list[int | None] = [None] * len(index.order)
    for o in index.order:
        if read := [(index.size[t], t) for t in index.host_inputs[o] if t in shared]:
            numbers[o] = place.get((max(read)[1], o))
            continue
        before = {numbers[index.producer[t]] for t in index.inputs[o] if index.producer[t] >= 0} - {None}
        numbers[o] = before.pop() if len(before) == 1 else None
    known = sum(number is not None for number in numbers)
    return numbers if place and known >= LEAST_SHARE * len(numbers) else None


def parameter_homes(scenario: Scenario, devices: Sequence[int]) -> list[int]:
    """Return for each parameter that several operators read the device that loads it for all ``devices``; else -1.

    Parameters are dealt to the buses in the order in which they are read, each to the bus with the fewest bytes so far.
    """
    index, topology, rank = scenario.graph.index, scenario.topology, priorities(scenario)
    on_bus: dict[int, list[int]] = {}
    for d in devices:
        if (route := topology.route(HOST, d)) is not None:
            on_bus.setdefault(route.channels[0], []).append(d)
    home = [-1] * len(index.size)
    if len(on_bus) < 1:
        return home
    readers = [0] * len(home)
    for read in index.host_inputs:
        for t in read:
            readers[t] += 1
    carried = dict.fromkeys(on_bus, 0)
    dealt = dict.fromkeys(on_bus, 0)
    for o in sorted(range(len(rank)), key=lambda o: (-rank[o], o)):
        for t in index.host_inputs[o]:
            if readers[t] > 1 and home[t] < 0:
                bus = min(carried, key=lambda bus: carried[bus])
                carried[bus] += index.size[t] + LATENCY_BYTES
                home[t] = on_bus[bus][dealt[bus] % len(on_bus[bus])]
                dealt[bus] += 1
    return home
