"""The heuristic for placements: dynamic programming cuts topological orders, then moves of operators improve the best."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from math import inf
from random import Random

import rustworkx as rx

from .annealing import anneal
from .instance import Instance, evaluate

WALK = 20_000
"""Placements of one walk of annealing; on the published workloads several walks are better than a long one."""

HOT, COOL = 0.05, 0.025
"""First temperatures of walks, as a fraction of the latency at their start."""

STEADY = 0.8
"""Probability that a random order continues its branch."""


def best_placement(
    instance: Instance, rounds: int, evaluations: int, seed: int, deadline: float, annealing: int = 0
) -> list[int] | None:
    """Find the best placement: the subgraph of each operator; None if none fits.

    Parameters
    ----------
    rounds : int
        Topological orders to cut into stretches; each gives a placement.
    evaluations : int
        Placements to evaluate while the best are improved.
    deadline : float
        `time.monotonic` after which no further order, walk or improvement is begun.
    annealing : int
        Placements to evaluate in simulated annealing, before the improvement.
    """
    random, groups = Random(seed), _groups(instance)
    latency_of: dict[tuple[int, ...], float] = {}
    for placement in (*_simple_placements(instance), *_stretches(instance, groups, rounds, random, deadline)):
        ends = evaluate(instance, placement)
        if ends is not None:
            latency_of[tuple(placement)] = ends.latency
    if not latency_of:
        return None
    starts = sorted(latency_of, key=lambda placement: (latency_of[placement], placement))[:3]
    if annealing:
        starts = _annealed(instance, groups, starts, annealing, random, deadline)
    improved = [improve(instance, groups, list(start), evaluations // len(starts), deadline) for start in starts]
    return min(improved, key=lambda placement: (_latency(instance, placement), placement))


def _annealed(
    instance: Instance,
    groups: list[list[int]],
    starts: list[tuple[int, ...]],
    evaluations: int,
    random: Random,
    deadline: float,
) -> list[tuple[int, ...]]:
    """Return the three best placements after walks from each start in turn, then as many cooler ones from the best."""
    walks = [min(WALK, evaluations - done) for done in range(0, evaluations, WALK)]
    best = list(starts)
    for k, length in enumerate(walks):
        if time.monotonic() > deadline:
            break
        warm = k < (len(walks) + 1) // 2
        start = list(starts[k % len(starts)] if warm else best[0])
        best.append(tuple(anneal(instance, groups, start, length, random, HOT if warm else COOL)))
        best.sort(key=lambda placement: (_latency(instance, placement), placement))
    return best[:3]


def improve(
    instance: Instance, groups: list[list[int]], placement: list[int], evaluations: int, deadline: float
) -> list[int]:
    """Improve a placement by moving one group of operators at a time; the first move that improves it is taken."""
    latency = _latency(instance, placement)
    moved = True
    while moved and evaluations > 0:
        moved = False
        for group in groups:
            for j in _nearby_places(instance, placement, group):
                candidate = list(placement)
                for v in group:
                    candidate[v] = j
                evaluations -= 1
                after = _latency(instance, candidate)
                if after < latency * (1 - 1e-12):
                    placement, latency, moved = candidate, after, True
            if evaluations <= 0 or time.monotonic() > deadline:
                return placement
    return placement


def _latency(instance: Instance, placement: Sequence[int]) -> float:
    ends = evaluate(instance, placement)
    return inf if ends is None else ends.latency


def _nearby_places(instance: Instance, placement: list[int], group: list[int]) -> list[int]:
    """Return the subgraphs of the neighbours, a CPU, and the first empty subgraph of each accelerator."""
    near = dict.fromkeys(placement[u] for v in group for u in (*instance.before[v], *instance.after[v]))
    near[0] = None
    used = set(placement)
    for i in range(len(instance.capacity)):
        empty = [j for j in range(i * instance.q + 1, (i + 1) * instance.q + 1) if j not in used]
        if empty:
            near[empty[0]] = None
    return [j for j in near if j != placement[group[0]]]


def _groups(instance: Instance) -> list[list[int]]:
    """Group operators that must move together: operators with equal numbers, and operators between them."""
    numbers = instance.together or list(instance.operators)
    first = {number: v for v, number in reversed(list(enumerate(numbers)))}
    graph = rx.PyDiGraph()
    graph.add_nodes_from(instance.operators)
    graph.add_edges_from_no_data(instance.edges)
    for v, number in enumerate(numbers):
        graph.add_edges_from_no_data([(first[number], v), (v, first[number])])
    position = {v: i for i, v in enumerate(instance.order)}
    components = [sorted(c, key=position.__getitem__) for c in rx.strongly_connected_components(graph)]
    return sorted(components, key=lambda c: position[c[0]])


def _simple_placements(instance: Instance) -> Iterator[list[int]]:
    """Yield the simplest placements: all on CPUs, or all in the first subgraph of one accelerator."""
    for j in (0, *instance.subgraphs[:: instance.q]):
        yield [j] * len(instance.operators)


def _stretches(
    instance: Instance, groups: list[list[int]], rounds: int, random: Random, deadline: float
) -> Iterator[list[int]]:
    of = {v: g for g, group in enumerate(groups) for v in group}
    after = [{of[r] for v in group for r in instance.after[v]} - {g} for g, group in enumerate(groups)]
    for number in range(rounds):
        if number and time.monotonic() > deadline:
            return
        order = _topological_order(after, number, random)
        placement = _cut_order(instance, [groups[g] for g in order])
        if placement is not None:
            yield placement


def _topological_order(after: list[set[int]], number: int, random: Random) -> list[int]:
    """Return a topological order that ends a branch before it begins the next.

    Number 0 takes the first branch first, number 1 the last; others take branches in random order, and sometimes switch to
    another open branch.
    """
    waiting = [0] * len(after)
    for followers in after:
        for g in followers:
            waiting[g] += 1
    free, order = list[int](), list[int]()
    ready = [g for g, count in enumerate(waiting) if not count]
    while ready or free:
        if number == 0:
            ready.reverse()
        elif number > 1:
            random.shuffle(ready)
        free += ready
        g = free.pop(-1 if number < 2 or random.random() < STEADY else random.randrange(len(free)))
        order.append(g)
        ready = []
        for r in sorted(after[g]):
            waiting[r] -= 1
            if not waiting[r]:
                ready.append(r)
    return order


def _cut_order(instance: Instance, order: list[list[int]]) -> list[int] | None:
    """Cut an order into stretches with the least sum of times, each on a CPU or an accelerator of its own.

    Stretches run one after another in the sum, so it is at least the latency of `evaluate`.
    """
    count, most = len(order), len(instance.capacity)
    best = [[inf] * (most + 1) for _ in range(count + 1)]
    chosen: list[list[tuple[int, bool]]] = [[(0, False)] * (most + 1) for _ in range(count + 1)]
    best[0] = [0.0] * (most + 1)
    for a in range(count):
        cpu = sum(instance.cpu[v] for v in order[a])
        for k in range(most + 1):
            if best[a][k] + cpu < best[a + 1][k]:
                best[a + 1][k], chosen[a + 1][k] = best[a][k] + cpu, (a, False)
        for b, cost in _stretch_costs(instance, order, a):
            for k in range(most):
                if best[a][k] + cost < best[b][k + 1]:
                    best[b][k + 1], chosen[b][k + 1] = best[a][k] + cost, (a, True)
    k = min(range(most + 1), key=lambda k: best[count][k])
    if best[count][k] == inf:
        return None
    placement = [0] * len(instance.operators)
    at, accelerator = count, 0
    while at:
        a, taken = chosen[at][k]
        if taken:
            for group in order[a:at]:
                for v in group:
                    placement[v] = accelerator * instance.q + 1
            accelerator, k = accelerator + 1, k - 1
        at = a
    return placement


def _stretch_costs(instance: Instance, order: list[list[int]], a: int) -> Iterator[tuple[int, float]]:
    """Yield the end and time of each stretch from ``a`` that fits an accelerator."""
    inside: set[int] = set()
    come_in: set[int] = set()
    readers: dict[int, int] = {}  # by operator inside with readers outside: how many
    run = size = moved_in = moved_out = 0.0
    room, slowest = max(instance.capacity, default=0.0), range(len(instance.capacity))
    for b in range(a, len(order)):
        for v in order[b]:
            run += max(instance.accelerator[v][i] for i in slowest)
            size += instance.size[v]
            inside.add(v)
            if v in come_in:  # only within a group, whose operators may stand in any order
                come_in.discard(v)
                moved_in -= instance.transfer[v]
            for u in instance.before[v]:
                if u in readers:
                    readers[u] -= 1
                    if not readers[u]:
                        del readers[u]
                        moved_out -= instance.transfer[u]
                elif u not in inside and u not in come_in:
                    come_in.add(u)
                    moved_in += instance.transfer[u]
            outside = sum(r not in inside for r in instance.after[v])
            if outside:
                readers[v] = outside
                moved_out += instance.transfer[v]
        if size > room or run == inf:
            return
        yield b + 1, run + moved_in + moved_out
