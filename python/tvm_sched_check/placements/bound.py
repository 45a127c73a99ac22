"""Bound the latency of every placement by a path (Theorem 2 of ``docs/proofs/placement_path.md``)."""

from __future__ import annotations

from itertools import pairwise
from math import inf
from typing import Any

from ..document import Refused, count
from .instance import Instance


def path_bound(instance: Instance, path: list[int]) -> Any:
    """Return the cost of the cheapest cut of a path into stretches on accelerators and single operators on CPUs."""
    if not path or any(count(v) not in instance.after[u] for u, v in pairwise(path)):
        raise Refused("the path of the evidence is none of the graph")
    leads_to, comes_from = _closure(instance.before, instance.order), _closure(instance.after, instance.order[::-1])
    least, room = [0], max(instance.capacity, default=-1)
    for i, last in enumerate(path):
        behind = comes_from[path[i + 1]] if i + 1 < len(path) else set[int]()
        cuts = [least[i] + instance.cpu[last]]
        for j in range(i, -1, -1):
            own = comes_from[path[j]] & leads_to[last]
            if sum(instance.size[v] for v in own) > room:
                break
            ahead = leads_to[path[j - 1]] if j else set[int]()
            moved = [u for u in ahead if not own.isdisjoint(instance.after[u])]
            moved += [v for v in own if not behind.isdisjoint(instance.after[v])]
            work = sum(min(instance.accelerator[v], default=inf) for v in own)
            cuts.append(least[j] + work + sum(instance.transfer[v] for v in moved))
        least.append(min(cuts))
    return least[-1]


def _closure(near: list[list[int]], order: list[int]) -> list[set[int]]:
    """Return each operator with all that lie before it; ``order`` has these first."""
    reached = [{v} for v in range(len(near))]
    for v in order:
        reached[v].update(*(reached[u] for u in near[v]))
    return reached
