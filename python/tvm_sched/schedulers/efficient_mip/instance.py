"""The placement problem of Tarnawski et al. (NeurIPS 2020) for one sample's latency, and the price of a placement.

Accelerators with equal transfer speed and unlimited CPUs share a host memory. An accelerator runs contiguous subgraphs, one
after another. A subgraph first receives each result that it reads from other places, then runs, then sends each result
that other places read; the accelerator is busy during all three. CPUs run operators as soon as their inputs are available
and transfer nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from math import inf

from tvm_sched_runtime.errors import InputError
from tvm_sched_runtime.problem.graph import neighbours


@dataclass(frozen=True)
class Instance:
    """A placement problem, with all times in one unit and all sizes in one unit.

    Subgraph 0 stands for the CPUs. Accelerator ``i`` (from 0) has the subgraphs ``i q + 1`` to ``(i + 1) q``.

    Raises
    ------
    InputError
        The edges make a cycle, or the lists differ in length.
    """

    accelerator: list[list[float]]
    """Time by operator and accelerator; infinite if the operator cannot run there."""
    cpu: list[float]
    """Time on a CPU by operator; infinite if no CPU runs it."""
    size: list[float]
    """Memory that an operator takes on an accelerator."""
    transfer: list[float]
    """Time to move an operator's result from an accelerator to host memory, or back."""
    edges: list[tuple[int, int]]
    capacity: list[float]
    """Memory of each accelerator."""
    q: int = 1
    """Contiguous subgraphs of an accelerator."""
    together: list[int] = field(default_factory=list)
    """A number for each operator; operators of equal number are placed together. Empty: no two are."""

    def __post_init__(self) -> None:
        lengths = {len(self.accelerator), len(self.cpu), len(self.size), len(self.transfer)}
        if len(lengths) > 1 or len(self.together) not in (0, *lengths):
            raise InputError(
                f"the lists of a placement problem have lengths {sorted(lengths)}; one entry per operator each"
            )
        if len(self.order) < len(self.cpu):
            raise InputError("the edges of the placement problem form a cycle; the graph of operators must be acyclic")

    @property
    def operators(self) -> range:
        """All operators."""
        return range(len(self.cpu))

    @property
    def subgraphs(self) -> range:
        """All subgraphs of accelerators, from 1."""
        return range(1, len(self.capacity) * self.q + 1)

    def accelerator_of(self, j: int) -> int:
        """Return the accelerator of subgraph ``j``."""
        return (j - 1) // self.q

    def time(self, v: int, j: int) -> float:
        """Return the time of an operator in subgraph ``j``, or on a CPU (0)."""
        return self.accelerator[v][self.accelerator_of(j)] if j else self.cpu[v]

    @cached_property
    def before(self) -> list[list[int]]:
        """The operators that each operator reads."""
        return neighbours(len(self.operators), ((v, u) for u, v in self.edges))

    @cached_property
    def after(self) -> list[list[int]]:
        """The readers of each operator."""
        return neighbours(len(self.operators), self.edges)

    @cached_property
    def order(self) -> list[int]:
        """A topological order; incomplete if the edges form a cycle."""
        waiting = [len(before) for before in self.before]
        order = [v for v in self.operators if not waiting[v]]
        for v in order:
            for r in self.after[v]:
                waiting[r] -= 1
                if not waiting[r]:
                    order.append(r)
        return order

    @cached_property
    def tied(self) -> list[tuple[int, int]]:
        """Pairs of operators that are placed together: the first of equal number, and each later one."""
        first: dict[int, int] = {}
        pairs = [(first.setdefault(number, v), v) for v, number in enumerate(self.together)]
        return [(u, v) for u, v in pairs if u != v]

    @cached_property
    def critical_path(self) -> float:
        """Longest path with each operator where it is fastest: no placement has a lower latency."""
        ends = [0.0] * len(self.operators)
        for v in self.order:
            ends[v] = max((ends[u] for u in self.before[v]), default=0.0) + min(self.cpu[v], *self.accelerator[v])
        return max(ends, default=0.0)


@dataclass(frozen=True)
class PlacementTimes:
    """When subgraphs and operators of a placement start and end: lists by subgraph and by operator."""

    start: list[float]
    end: list[float]
    ready: list[float]

    @property
    def latency(self) -> float:
        """End of the last operator."""
        return max(self.ready, default=0.0)


def evaluate(instance: Instance, subgraph: Sequence[int]) -> PlacementTimes | None:
    """Return a placement's times; None if memory is short, equal numbers are apart, or subgraphs are not contiguous.

    Parameters
    ----------
    subgraph : sequence of int
        Subgraph of each operator; 0 for a CPU. O(operators + edges + subgraphs).
    """
    count, transfer = len(instance.subgraphs) + 1, instance.transfer
    busy = _compute(instance, subgraph)
    if busy is None:
        return None
    unit = [j or count + v for v, j in enumerate(subgraph)]  # a subgraph, or an operator alone on a CPU
    followers: list[list[int]] = [[] for _ in busy]
    waiting = [0] * len(busy)
    for j in instance.subgraphs:
        if j % instance.q:
            followers[j].append(j + 1)
            waiting[j + 1] = 1
    for v, readers in enumerate(instance.after):
        own, seen = unit[v], set()
        for r in readers:
            other = unit[r]
            if other != own and other not in seen:
                seen.add(other)
                followers[own].append(other)
                waiting[other] += 1
                if other < count:
                    busy[other] += transfer[v]
        if seen and own < count:
            busy[own] += transfer[v]
    units = {*instance.subgraphs, *unit}
    start, end = [0.0] * len(busy), [0.0] * len(busy)
    free = [x for x in units if not waiting[x]]
    done = 0
    while free:
        x = free.pop()
        done += 1
        end[x] = start[x] + busy[x]
        for y in followers[x]:
            if end[x] > start[y]:
                start[y] = end[x]
            waiting[y] -= 1
            if not waiting[y]:
                free.append(y)
    return PlacementTimes(start[:count], end[:count], [end[x] for x in unit]) if done == len(units) else None


def _compute(instance: Instance, subgraph: Sequence[int]) -> list[float] | None:
    """Return the times without transfers, by subgraph, then by operator on a CPU; None for an invalid placement."""
    q, count = instance.q, len(instance.subgraphs) + 1
    held = [0.0] * len(instance.capacity)
    busy = [0.0] * (count + len(subgraph))
    for v, j in enumerate(subgraph):
        if j:
            i = (j - 1) // q
            held[i] += instance.size[v]
            busy[j] += instance.accelerator[v][i]
        else:
            busy[count + v] = instance.cpu[v]
    if max(busy) == inf or any(h > c for h, c in zip(held, instance.capacity, strict=True)):
        return None
    return busy if all(subgraph[v] == subgraph[u] for u, v in instance.tied) else None
