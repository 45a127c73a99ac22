"""Bound the latency by a weighted sum of path length and bus time, minimised jointly over the options of each region.

Proof: Theorem 2 of ``docs/proofs/path_and_bus.md``. The search is in ``cpp/search/region.cc``.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from tvm_sched_runtime.problem import Problem
from tvm_sched_runtime.search_budget import check_time

from .region_placement import Copies, Region, least_cost, region_of

Array = npt.NDArray[np.float64]

LARGEST = 12
"""Largest number of operators of a region, its last included; longer stretches count as the longest path through them."""

NODES = 500_000
"""Largest number of options that the searches of all regions visit together for one division of the weight."""

LOOKS = 10
"""Number of weights of the paths that are tried; buses weigh what is left to 1."""

SAFETY = 1e-10
"""Part by which the cost of a region is lowered for rounding."""


class PricedRegion(NamedTuple):
    """A step from the end of ``first`` to that of ``last`` with a weight, and the least cost of the operators between."""

    first: int
    last: int
    weight: int
    cost: int


@dataclass
class RegionPrices:
    """The lower bound for a weight of path length; bus time weighs what is left to 1.

    Parameters
    ----------
    time, carried : array, (operators, options)
        Time and weighted bus time; option ``i`` is of device ``i % devices``. Infinite where there is no such option.
    shortest : array, (operators,)
        Least time over all options.
    least : float
        Time that follows the last byte.
    """

    problem: Problem
    time: Array
    carried: Array
    shortest: Array
    least: float
    _known: dict[object, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        copies = Copies(self.problem)
        self.path: list[tuple[int, int]] = []
        self.regions: dict[tuple[int, int], tuple[list[int], Region]] = {}
        cuts = list(cut_operators(self.problem))
        for first, last, members in stretches(self.problem, cuts):
            if 1 < len(members) <= LARGEST:
                region = region_of(self.problem, first, members, self.time, copies)
                self.regions[first, last] = members, region
            else:
                self.path += self._longest_path(first, members)
        inside = [o for members, _ in self.regions.values() for o in members]
        self.outside = np.setdiff1d(np.arange(len(self.time)), inside)
        along = np.zeros(len(self.time))
        along[[last for _, last in self.path]] = 1.0
        possible = np.isfinite(self.time)
        self.carried = np.where(possible, self.carried, 0.0)
        self.on_path = np.where(possible, along[:, None] * np.where(possible, self.time, 0.0), np.inf)[self.outside]

    def _longest_path(self, first: int, members: list[int]) -> list[tuple[int, int]]:
        """Return the steps of the longest path from the end of an operator to that of the last member."""
        before, end = self.problem.graph.index.predecessors, {first: 0.0}
        came: dict[int, int] = {}
        for o in members:
            came[o] = max((p for p in before[o] if p in end), key=end.__getitem__, default=first)
            end[o] = end[came[o]] + self.shortest[o]
        steps, at = [], members[-1]
        while at != first:
            steps.append((came[at], at))
            at = came[at]
        return steps

    def costs(self, paths: float) -> dict[tuple[int, int], float]:
        """Return the least cost of each region if paths weigh ``paths`` and buses ``1 - paths``."""
        found, nodes = {}, NODES // max(len(self.regions), 1)
        for step, (members, region) in self.regions.items():
            price = (1 - paths) * self.carried[members]
            key = paths, region.key, price.tobytes()
            if key not in self._known:
                check_time()
                self._known[key] = least_cost(region, nodes, len(self.problem.topology.devices), price, paths)
            found[step] = self._known[key]
        return found

    def value(self, paths: float) -> float:
        """Return the bound in nanoseconds for weights ``paths`` and ``1 - paths`` of paths and buses."""
        outside = paths * self.on_path + (1 - paths) * self.carried[self.outside]
        return float(outside.min(axis=1).sum()) + sum(self.costs(paths).values()) + (1 - paths) * self.least

    def best_weight(self) -> float:
        """Return the best weight of paths by golden sections: the bound is concave in it, as a least of lines is."""
        low, high, ratio = 0.0, 1.0, (5**0.5 - 1) / 2
        a, b = high - ratio * (high - low), low + ratio * (high - low)
        at_a, at_b = self.value(a), self.value(b)
        for _ in range(LOOKS - 2):
            if at_a < at_b:
                low, a, at_a = a, b, at_b
                b = low + ratio * (high - low)
                at_b = self.value(b)
            else:
                high, b, at_b = b, a, at_a
                a = high - ratio * (high - low)
                at_a = self.value(a)
        return a if at_a > at_b else b


def cut_operators(problem: Problem) -> Iterator[int]:
    """Yield, in order, the operators that precede or follow each other one."""
    index = problem.graph.index
    place = {o: i for i, o in enumerate(index.order)}
    sources = [place[o] for o in index.order if not index.predecessors[o]]
    sinks = [place[o] for o in index.order if not index.successors[o]]
    reached = -1
    for i, o in enumerate(index.order):
        if reached <= i and sources[-1] <= i <= sinks[0]:
            yield o
        reached = max([reached, *(place[s] for s in index.successors[o])])


def stretches(problem: Problem, cuts: list[int]) -> Iterator[tuple[int, int, list[int]]]:
    """Yield the start of the run (-1) and the first cut, then each two successive cuts, with the operators up to the second.

    The stretch from the start of the run has the first cut alone.
    """
    order = problem.graph.index.order
    place = {o: i for i, o in enumerate(order)}
    if cuts:
        yield -1, cuts[0], [cuts[0]]
    for first, last in pairwise(cuts):
        yield first, last, list(order[place[first] + 1 : place[last] + 1])
