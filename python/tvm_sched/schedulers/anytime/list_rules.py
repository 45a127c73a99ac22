"""Start schedules: list scheduling under different rules for the devices that each operator may use.

List scheduling does not look ahead. So the rules fix some decisions in advance: whether operators may read host memory
directly, which may not pay on a busy bus, and which devices run which part of the model. Such a part is a range of operators
between two shares of the parameters' bytes. Models in parts by rows (`row_parts`) have rules of their own.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice, pairwise

from tvm_sched_runtime.problem import HOST, Scenario

from ..common.events import Array
from ..common.greedy import priorities
from ..common.search import PlacementChoice, Searches
from .row_parts import layer_numbers, parameter_homes, part_numbers

ROUNDS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32)
"""Numbers of rounds in which the model's parts alternate between the groups of devices."""

SHARES = (0.05, 0.1, 0.15, 0.2, 0.25, 0.3, 0.33, 0.36, 0.4, 0.5)
"""Fractions of a round for the smaller of two groups."""

MOST_PLACES = 4_000_000
"""Largest number of operators times devices over all rules."""

COPY_WEIGHTS = (4.0, 8.0, 16.0)
"""Weights of copies between groups of devices, relative to the operators' time, in the rules of `_close_to_inputs`."""

SPARING_WEIGHTS = (0.5, 1.0, 2.0)
"""Weights of an operator's copies, relative to its end, in rules that spare the buses for loads."""

STRETCHES = (2, 1, 3, 4, 6)
"""Lengths of the stretches of `_by_layers`, in layers of `layer_numbers`; a decoder block has two such layers."""

MOST_TURNS = 4
"""Largest number of devices that `_by_layers` tries for the first stretch; on larger machines devices are more alike."""

FEW_PLACES = MOST_PLACES // 20
"""Limit in place of `MOST_PLACES` if several problems are scheduled."""


@dataclass(frozen=True)
class Rule:
    """Rule of a list schedule: which devices operators may use, which devices load parameters, and who comes first.

    Parameters
    ----------
    choices : list of PlacementChoice
    choice : list of int, (operators,)
        Position in ``choices`` for each operator.
    home : sequence of int, (tensors,), optional
        The device that loads a parameter for the devices that it reaches without a bus; -1: any device may load it.
    turn : sequence of int, (operators,), optional
        The ready operator of least turn comes first. Default: the ready operator of highest rank.
    """

    choices: list[PlacementChoice]
    choice: list[int]
    home: Sequence[int] = ()
    turn: Sequence[int] = ()

    def schedule(self, searches: Searches, memory_scale: float = 1.0) -> tuple[Array, int] | None:
        """Return the list schedule and its latency in nanoseconds; None if memory does not suffice."""
        return searches.construct(self.choices, self.choice, memory_scale, self.home, self.turn)


def device_groups(scenario: Scenario) -> list[list[int]]:
    """Group the devices that reach each other without a PCIe bus: their copies do not delay loads."""
    topology = scenario.topology
    devices = range(len(topology.devices))
    to_host = [route for d in devices for route in (topology.route(HOST, d), topology.route(d, HOST)) if route]
    buses = {c for route in to_host for c in route.channels}
    group = list(devices)
    for a in devices:
        for b in devices:
            route = topology.route(a, b) if a != b else None
            if route is not None and not buses & set(route.channels) and group[a] != group[b]:
                old, new = group[b], group[a]
                group = [new if g == old else g for g in group]
    return [[d for d in devices if group[d] == g] for g in dict.fromkeys(group)]


def rules(scenario: Scenario) -> Iterator[Rule]:
    """Yield the rules to try, the most promising first."""
    everywhere, count = list(range(len(scenario.topology.devices))), len(scenario.graph.operators)
    together = device_groups(scenario)
    fast = _fastest(scenario)
    sets = [everywhere, *together] if len(together) > 1 else [everywhere]
    sets += [[d for d in devices if d in fast] for devices in sets]
    distinct = [list(s) for s in dict.fromkeys(tuple(s) for s in sets) if s]
    numbers = part_numbers(scenario)
    if numbers is not None:
        by_rows = _by_rows(scenario, numbers, together)
        yield from islice(by_rows, 1)
        for several in dict.fromkeys((tuple(everywhere), tuple(sorted(fast)))):
            if len(several) > 1:
                yield from _by_layers(scenario, numbers, several)
        yield from by_rows
    for direct in (False, True):
        for devices in distinct:
            yield Rule([PlacementChoice(devices, direct)], [0] * count)
    for weight in SPARING_WEIGHTS if any(scenario.graph.index.host_inputs) else ():
        for devices in distinct:
            if len(devices) > 1:
                yield Rule([PlacementChoice(devices, False, weight)], [0] * count)
    if len(together) > 1:
        for weight in COPY_WEIGHTS:
            yield Rule([PlacementChoice(group) for group in together], _close_to_inputs(scenario, together, weight))
        yield from _parts(scenario, together)
    if numbers is None and any(len(group) > 1 for group in together):
        # A model that is one part runs on the first device of each group, and the others load for it.
        yield from _by_rows(scenario, [0] * count, together)


def _fastest(scenario: Scenario) -> set[int]:
    """Return the devices on which the whole model takes at most 1.5 times as long as on the fastest."""
    best = scenario.costs.operator_ns.astype(float).sum(axis=0)
    return {d for d, ns in enumerate(best.tolist()) if ns <= 1.5 * best.min()}


def _parts(scenario: Scenario, together: list[list[int]]) -> Iterator[Rule]:
    """Yield rules that run parts of the model on alternating groups of devices."""
    position = _parameter_positions(scenario)
    most = max(len(group) for group in together)
    choices = [PlacementChoice(group, direct=most == 1) for group in together]
    for pattern in _patterns(together):
        for rounds in ROUNDS:
            for order in (pattern, pattern[::-1]):
                yield Rule(choices, _assign_groups(position, rounds, order))


def _patterns(together: list[list[int]]) -> list[list[tuple[float, int]]]:
    """Return shares of a round and the groups that get them."""
    if len(together) == 2:
        first, second = sorted(range(2), key=lambda g: len(together[g]))
        return [[(share, first), (1 - share, second)] for share in SHARES]
    patterns = [[(1 / n, g) for g in range(n)] for n in range(2, len(together) + 1)]
    return [*patterns, [(len(group) / sum(map(len, together)), g) for g, group in enumerate(together)]]


def _by_rows(scenario: Scenario, numbers: Sequence[int | None], together: list[list[int]]) -> Iterator[Rule]:
    """Yield data-parallel rules for a model in parts by rows: each device of a group computes some of the parts.

    A group runs all layers, or groups alternate. One device of a group loads each parameter, and the others copy it from
    there. An operator of no part may run on any device of its group. Only lookups in a part, which read a few rows of a
    table, may read host memory directly.
    """
    choices = _each_device(scenario)
    others = len(choices)  # from there on: any device of a group
    choices += [PlacementChoice(group, direct=False) for group in together]
    reads = _lookups(scenario)
    position = _parameter_positions(scenario)
    for groups in _layers_to_groups(position, together):
        choice = [
            others + g if number is None else 2 * together[g][number % len(together[g])] + lookup
            for g, number, lookup in zip(groups, numbers, reads, strict=True)
        ]
        yield Rule(choices, choice, parameter_homes(scenario, together, groups))


def _by_layers(scenario: Scenario, numbers: Sequence[int | None], devices: Sequence[int]) -> Iterator[Rule]:
    """Yield pipelines for a model in parts by rows: of n devices each computes every n-th stretch of layers, for all parts.

    Each device loads the parameters of its layers. Within a stretch the parts come one after another, so that the next
    device has the first part early. So devices work on different parts at the same time.
    """
    index, choices = scenario.graph.index, _each_device(scenario)
    lookups, layers = _lookups(scenario), layer_numbers(scenario)
    last = 1 + max(number for number in numbers if number is not None)
    part = [number if number is not None else last if index.predecessors[o] else 0 for o, number in enumerate(numbers)]
    place = {o: i for i, o in enumerate(index.order)}
    for length in STRETCHES:
        stretch = [layer // length for layer in layers]
        turn = [0] * len(layers)
        for i, o in enumerate(sorted(index.order, key=lambda o: (stretch[o], part[o], place[o]))):
            turn[o] = i
        for first in range(min(len(devices), MOST_TURNS)):
            on = [devices[(first + at) % len(devices)] for at in stretch]
            home = [-1] * len(index.size)
            for o, read in enumerate(index.host_inputs):
                for t in read:
                    home[t] = on[o]
            yield Rule(choices, [2 * d + lookup for d, lookup in zip(on, lookups, strict=True)], home, turn)


def _each_device(scenario: Scenario) -> list[PlacementChoice]:
    """Return two choices for each device: without direct host access, and with it."""
    return [PlacementChoice([d], direct) for d in range(len(scenario.topology.devices)) for direct in (False, True)]


def _lookups(scenario: Scenario) -> list[bool]:
    """Return for each operator whether it reads a few rows of a table."""
    return [bool(operator.read_bytes) for operator in scenario.graph.operators]


def _layers_to_groups(position: list[float], together: list[list[int]]) -> Iterator[list[int]]:
    """Yield groups of devices by operator: each group alone, then layers that alternate between the groups."""
    for g in sorted(range(len(together)), key=lambda g: -len(together[g])):
        yield [g] * len(position)
    if len(together) > 1:
        for pattern in _patterns(together):
            for rounds in ROUNDS:
                for order in (pattern, pattern[::-1]):
                    yield _assign_groups(position, rounds, order)


def _close_to_inputs(scenario: Scenario, together: list[list[int]], weight: float) -> list[int]:
    """Return for each operator, by rank, the group that is least busy or, the larger ``weight``, needs the fewest copies."""
    index, rank, topology = scenario.graph.index, priorities(scenario), scenario.topology
    least = scenario.costs.operator_ns.min(axis=1).tolist()
    routes = [[topology.route(a[0], b[0]) for b in together] for a in together]
    chosen, busy = [0] * len(rank), [0.0] * len(together)
    holders: dict[int, set[int]] = {}

    def copy(t: int, group: int) -> float:
        if index.producer[t] < 0 or group in holders[t]:
            return 0.0
        route = routes[chosen[index.producer[t]]][group]
        return math.inf if route is None else route.nanoseconds(index.size[t])

    for o in sorted(range(len(rank)), key=lambda o: (-rank[o], o)):
        costs = [
            (busy[g] + least[o] + weight * sum(copy(t, g) for t in index.inputs[o])) / len(group)
            for g, group in enumerate(together)
        ]
        chosen[o] = costs.index(min(costs))
        busy[chosen[o]] += least[o]
        for t in index.inputs[o]:
            holders.setdefault(t, set()).add(chosen[o])
        holders |= {t: {chosen[o]} for t in index.outputs[o]}
    return chosen


def _parameter_positions(scenario: Scenario) -> list[float]:
    """Return for each operator the share of the parameters' bytes read up to and including it, 0 to 1."""
    index, rank = scenario.graph.index, priorities(scenario)
    position, seen, total = [0.0] * len(rank), set[int](), 0
    for o in sorted(range(len(rank)), key=lambda o: (-rank[o], o)):
        new = [t for t in index.host_inputs[o] if t not in seen]
        seen.update(new)
        total += sum(index.size[t] for t in new)
        position[o] = total
    return [at / max(total, 1) for at in position]


def _assign_groups(position: list[float], rounds: int, pattern: list[tuple[float, int]]) -> list[int]:
    """Return the group of each operator: in each round the groups get their shares one after another."""
    ends = [0.0]
    for share, _ in pattern:
        ends.append(ends[-1] + share)
    limits = list(pairwise(ends))
    dealt = []
    for at in position:
        within = (at * rounds) % 1.0
        part = next((i for i, (low, high) in enumerate(limits) if low <= within < high), len(limits) - 1)
        dealt.append(pattern[part][1])
    return dealt


def list_schedules(
    scenario: Scenario, searches: Searches, memory_scale: float = 1.0, most_places: int = MOST_PLACES
) -> Iterator[tuple[Array, Rule]]:
    """Yield list schedules as sequences, with their rules.

    The limit on operators times devices does not apply to the first four rules. Schedules that do not fit into
    ``memory_scale`` of the memory are left out.
    """
    places = max(len(scenario.graph.operators) * len(scenario.topology.devices), 1)
    for i, rule in enumerate(rules(scenario)):
        if i >= 4 and i * places > most_places:
            return
        listed = rule.schedule(searches, memory_scale)
        if listed is not None:
            yield listed[0], rule
