"""Simulated annealing of placements (not in the paper), to leave local optima."""

from __future__ import annotations

import math
from random import Random

from .instance import Instance, evaluate

FOLLOWERS = (0, 0, 0, 1, 2, 4, 8, 16)
"""Largest numbers of neighbours that follow an operator to its new place; one is drawn for each move."""


def anneal(
    instance: Instance, groups: list[list[int]], start: list[int], evaluations: int, random: Random, hot: float = 0.05
) -> list[int]:
    """Return the best placement of simulated annealing, which accepts worse placements less and less often.

    Parameters
    ----------
    groups : list of list of int
        Operators that must move together; each operator is in one group.
    start : list of int
        Subgraph of each operator; a valid placement.
    evaluations : int
        Placements to evaluate. Unlike a time limit, this does not depend on the machine.
    hot : float
        First temperature, as a fraction of the start's latency; it falls with the square of the remaining evaluations.
    """
    neighbours = _neighbours(instance, groups)
    ends = evaluate(instance, start)
    assert ends is not None
    placement = [start[group[0]] for group in groups]
    latency = least = ends.latency
    best, first = placement, hot * latency
    for k in range(evaluations):
        candidate = _random_move(instance, placement, neighbours, random)
        ends = evaluate(instance, _by_operator(instance, groups, candidate))
        if ends is None:
            continue
        heat = first * (1 - k / evaluations) ** 2
        if ends.latency <= latency or random.random() < math.exp((latency - ends.latency) / heat):
            placement, latency = candidate, ends.latency
            if latency < least:
                best, least = placement, latency
    return _by_operator(instance, groups, best)


def _by_operator(instance: Instance, groups: list[list[int]], placement: list[int]) -> list[int]:
    result = [0] * len(instance.operators)
    for group, j in zip(groups, placement, strict=True):
        for v in group:
            result[v] = j
    return result


def _neighbours(instance: Instance, groups: list[list[int]]) -> list[list[int]]:
    of = {v: g for g, group in enumerate(groups) for v in group}
    return [
        sorted({of[u] for v in group for u in (*instance.before[v], *instance.after[v])} - {g})
        for g, group in enumerate(groups)
    ]


def _random_move(instance: Instance, placement: list[int], neighbours: list[list[int]], random: Random) -> list[int]:
    """Move a group, mostly to where a neighbour is, and let others follow it; return the changed placement by group."""
    result = list(placement)
    g, kind = random.randrange(len(result)), random.random()
    near = [result[n] for n in neighbours[g]]
    target = random.choice(near) if near and kind < 0.8 else random.randrange(len(instance.subgraphs) + 1)
    if kind < 0.1 and 0 != result[g] != target:  # a whole subgraph goes: two become one, or one is elsewhere
        return [target if j == result[g] else j for j in result]
    result[g] = target
    for _ in range(random.choice(FOLLOWERS)):
        if not neighbours[g]:
            break
        g = random.choice(neighbours[g])
        result[g] = target
    return result
