"""Delays by placement: least times through a region, over all placements of its longest operators on devices."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from tvm_sched_runtime.core_library import function
from tvm_sched_runtime.problem import Problem

from .dominated_regions import regions_between

Array = npt.NDArray[np.float64]

LARGEST = 64
"""Largest number of operators of a region."""

DECIDED = {10: 200_000, 18: 20_000, LARGEST: 20_000}
"""Numbers of operators of a region, the longest ones, whose placements are enumerated, with the largest number of placements
that the search visits. The strongest delay counts. The checker's search takes a hundred times as long."""

MOST_DEVICES = 16
"""Largest number of devices; with more, `region_sharing` replaces this argument."""


class Delay(NamedTuple):
    """The statement that in every schedule ``last`` ends at least ``ns`` nanoseconds after ``first`` has ended."""

    first: int
    last: int
    ns: float


@dataclass
class Region:
    """Operators between two others, in topological order, the last included."""

    time: list[Array]
    """Least time of each operator on each device."""
    lag: dict[tuple[int, int], Array]
    """Least time between the end of one operator and the start of another, by the devices on which they run; ``from``
    is -1 for the operator before the region."""

    @property
    def key(self) -> tuple[object, ...]:
        """A key that is equal for two regions if their times and lags are."""
        return tuple(t.tobytes() for t in self.time), tuple((e, w.tobytes()) for e, w in sorted(self.lag.items()))


def delays(problem: Problem, best: Array, source: int) -> list[Delay]:
    """Return a delay for each operator with several predecessors, from its immediate dominator.

    Parameters
    ----------
    best : array, (operators, devices)
        Least time of each operator on each device, infinite where it cannot run.
    source : int
        Dominators are those of paths from this operator.

    Notes
    -----
    Proof: Lemma 2 of ``docs/proofs/regions.md``. The search is in ``cpp/search/region.cc``.
    """
    copies = Copies(problem)
    known: dict[object, float] = {}
    delays = []
    for u, v, members in regions_between(problem, source, LARGEST):
        if members:
            region = region_of(problem, u, members, best, copies)
            if region.key not in known:
                known[region.key] = max(_enumerations(region, members, best))[0]
            delays.append(Delay(u, v, known[region.key]))
    return delays


class Copies:
    """Least times of copies between devices, by size; through other devices if that is faster."""

    def __init__(self, problem: Problem) -> None:
        topology, devices = problem.topology, range(len(problem.topology.devices))
        self._routes = {(a, b): r for a in devices for b in devices if a != b and (r := topology.route(a, b))}
        self._devices = len(devices)
        self._known: dict[int, Array] = {}

    def __call__(self, size: int) -> Array:
        """Return nanoseconds, shape (devices, devices)."""
        if size not in self._known:
            self._known[size] = self._matrix(size)
        return self._known[size]

    def _matrix(self, size: int) -> Array:
        matrix = np.full((self._devices, self._devices), np.inf)
        np.fill_diagonal(matrix, 0.0)
        for pair, route in self._routes.items():
            matrix[pair] = route.nanoseconds(size)
        for middle in range(self._devices):
            matrix = np.minimum(matrix, matrix[:, middle, None] + matrix[None, middle, :])
        return matrix


def region_of(problem: Problem, u: int, members: list[int], best: Array, copies: Copies) -> Region:
    """Return the region of some operators behind ``u`` (-1: the start of the run), all of them with lags and times.

    ``best`` has a column for each device, or several for each, device after device.
    """
    index = problem.graph.index
    place = {u: -1} | {o: i for i, o in enumerate(members)}
    region = Region([best[o] for o in members], {})
    for o in members:
        for t in index.inputs[o]:
            p = place.get(index.producer[t])
            if p is not None:
                _widen(region.lag, (p, place[o]), copies(index.size[t]))
    return region


def _enumerations(region: Region, members: list[int], best: Array) -> Iterator[tuple[float, int]]:
    """Yield the delay for each number of enumerated members, with minus the number."""
    for most, nodes in DECIDED.items():
        count = min(most, len(members))
        yield least_cost(_decided_alone(region, members, best, count), nodes, best.shape[1]), -count
        if count == len(members):
            return


def _decided_alone(region: Region, members: list[int], best: Array, count: int) -> Region:
    """Return the region of the ``count`` longest members, with lags by way of the others."""
    region = Region(region.time, dict(region.lag))
    for i in sorted(
        _undecided(members, best, count)
    ):  # in topological order, so that a checker comes to the same least times
        _bridge(region, i)
    return _renumber(region)


def _undecided(members: list[int], best: Array, count: int) -> list[int]:
    """Return the positions of the members whose devices are not enumerated: the shortest ones, never the last."""
    lightest = sorted(range(len(members) - 1), key=lambda i: (float(best[members[i]].min()), i))
    return lightest[: max(0, len(members) - count)]


def enumerated_members(problem: Problem, u: int, members: list[int], best: Array) -> list[int]:
    """Return the members of the region behind ``u`` whose devices the strongest delay enumerates, in order."""
    region = region_of(problem, u, members, best, Copies(problem))
    left_open = set(_undecided(members, best, -max(_enumerations(region, members, best))[1]))
    return [o for i, o in enumerate(members) if i not in left_open]


def _widen(lag: dict[tuple[int, int], Array], edge: tuple[int, int], least: Array) -> None:
    lag[edge] = np.maximum(lag[edge], least) if edge in lag else least


def _bridge(region: Region, i: int) -> None:
    """Remove an operator: paths over it pay its time on the best device, and the copies to and from that device."""
    before = {edge[0]: lag for edge, lag in region.lag.items() if edge[1] == i}
    after = {edge[1]: lag for edge, lag in region.lag.items() if edge[0] == i}
    region.lag = {edge: lag for edge, lag in region.lag.items() if i not in edge}
    for p, to in before.items():
        for s, on in after.items():
            through = (to + region.time[i])[:, :, None] + on[None, :, :]
            _widen(region.lag, (p, s), through.min(axis=1))


def _renumber(region: Region) -> Region:
    """Keep only the operators with an edge, and the last one."""
    last = len(region.time) - 1
    left = sorted({i for edge in region.lag for i in edge if i >= 0} | {last})
    number = {-1: -1} | {i: k for k, i in enumerate(left)}
    lag = {(number[p], number[s]): matrix for (p, s), matrix in region.lag.items()}
    return Region([region.time[i] for i in left], lag)


def least_cost(region: Region, nodes: int, devices: int, price: Array | None = None, weight: float = 1.0) -> float:
    """Return the least weighted time through a region plus the prices of the operators' options (``cpp/search/region.h``).

    Parameters
    ----------
    price : array, (operators, options), optional
        As the region's times; without it nothing costs anything.
    """
    edges = sorted(region.lag)
    time = np.array(region.time, dtype=np.float64)
    before, after = np.array(edges, dtype=np.int64).reshape(-1, 2).T.copy()
    lag = np.array([region.lag[edge] for edge in edges], dtype=np.float64)
    least = function("tvm_sched.region_least_cost")
    return float(least(time, np.zeros(0) if price is None else price, weight, devices, before, after, lag, nodes))
