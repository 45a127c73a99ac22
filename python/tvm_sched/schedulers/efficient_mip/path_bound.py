"""A lower bound for placements: the cheapest cut of a path into stretches, each on one accelerator."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from fractions import Fraction
from math import inf, nextafter
from typing import Any

from .instance import Instance

SHARES = (0.0, 0.3, 1.0, 3.0, 100.0)
"""Weights of memory relative to time, each as a fraction of its sum, in the length by which paths are chosen."""


def lower_bound(instance: Instance) -> float:
    """Bound the latency of every placement by the critical path and by the cheapest cut of some long paths.

    Proof: Theorem 2 of ``docs/proofs/placement_path.md``. O(operators²) for each path, in steps on sets of operators.
    """
    return max(instance.critical_path, strongest_path(instance)[0])


def strongest_path(instance: Instance) -> tuple[float, list[int]]:
    """Return the bound of the path that proves most, in exact arithmetic rounded down, and the path.

    Examples
    --------
    >>> from tvm_sched.schedulers.efficient_mip import Instance
    >>> from tvm_sched.schedulers.efficient_mip.path_bound import strongest_path
    >>> chain = Instance([[10.0], [10.0]], [100.0, 100.0], [1.0, 1.0], [30.0, 30.0], [(0, 1)], [1.0])
    >>> strongest_path(chain)
    (80.0, [0, 1])
    """
    inside = between(instance)
    paths = sorted({tuple(path) for path in long_paths(instance)})
    best = max(paths, key=lambda path: _cheapest_cut(instance, path, inside), default=())
    exact = replace(
        instance,
        accelerator=[list(map(_exact, times)) for times in instance.accelerator],
        cpu=list(map(_exact, instance.cpu)),
        size=list(map(_exact, instance.size)),
        transfer=list(map(_exact, instance.transfer)),
        capacity=list(map(_exact, instance.capacity)),
    )
    proved = _cheapest_cut(exact, best, inside)
    return rounded_down(proved), list(best)


def rounded_down(value: Any) -> float:
    """Return the largest float up to a value."""
    near = float(value)
    return near if near <= value else nextafter(near, -inf)


def _exact(value: float) -> Any:
    return Fraction(value) if value < inf else value


def long_paths(instance: Instance) -> Iterator[list[int]]:
    """Yield paths that are long by time, by memory, and by both; empty ones if there are no operators."""
    fastest = [min(instance.cpu[v], *instance.accelerator[v]) for v in instance.operators]
    time, memory = sum(fastest) or 1.0, sum(instance.size) or 1.0
    for share in SHARES:
        weight = [fastest[v] / time + share * instance.size[v] / memory for v in instance.operators]
        longest, before = list(weight), [-1] * len(weight)
        for v in instance.order:
            for u in instance.before[v]:
                if longest[u] + weight[v] > longest[v]:
                    longest[v], before[v] = longest[u] + weight[v], u
        path = [max(instance.operators, key=longest.__getitem__, default=-1)]
        while path[-1] >= 0:
            path.append(before[path[-1]])
        yield path[-2::-1]


def between(instance: Instance) -> tuple[list[int], list[int]]:
    """Return each operator's ancestors and descendants, with itself: sets as bits of an integer."""
    before, behind = [1 << v for v in instance.operators], [1 << v for v in instance.operators]
    for v in instance.order:
        for u in instance.before[v]:
            before[v] |= before[u]
    for v in reversed(instance.order):
        for r in instance.after[v]:
            behind[v] |= behind[r]
    return before, behind


def _cheapest_cut(instance: Instance, path: Sequence[int], inside: tuple[list[int], list[int]]) -> float:
    """Cut a path into stretches on accelerators and operators on CPUs at the least cost."""
    before, behind = inside
    room = max(instance.capacity, default=0.0) * (1 + _ROUNDING)
    reads, readers = ([sum(1 << v for v in near) for near in beside] for beside in (instance.before, instance.after))
    least: list[float] = [0]  # of the first operators of the path; no 0.0, which would make fractions inexact
    for i, last in enumerate(path):
        later = behind[path[i + 1]] if i + 1 < len(path) else 0
        best = least[i] + instance.cpu[last]
        held, read = 0, 0
        busy: float = 0
        size: float = 0
        for j in range(i, -1, -1):
            own = before[last] & behind[path[j]]
            for v in members(own & ~held):
                busy += min(instance.accelerator[v], default=inf) + (instance.transfer[v] if readers[v] & later else 0)
                size, read = size + instance.size[v], read | reads[v]
            held = own
            if size > room or busy == inf:
                break
            taken = members(read & before[path[j - 1]]) if j else ()
            best = min(best, least[j] + busy + sum(instance.transfer[v] for v in taken))
        least.append(best)
    return least[-1]


_ROUNDING = 1e-9
"""Relative rounding error of a sum of sizes, which may lift it above the capacity."""


def members(bits: int) -> Iterator[int]:
    """Yield the numbers whose bits are set."""
    while bits:
        low = bits & -bits
        yield low.bit_length() - 1
        bits ^= low
