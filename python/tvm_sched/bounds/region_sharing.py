"""Delays by sharing: least times through a region, over all sets of operators that share one device.

This argument is used if operators of a device may run together, or if there are too many devices to enumerate placements.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from tvm_sched_runtime.problem import Problem

from .dominated_regions import regions_between
from .host_traffic import least_times
from .region_placement import Delay

Array = npt.NDArray[np.float64]

LARGEST = 10
"""Largest number of operators of a region: its bound tries every subset of them."""


class _Region(NamedTuple):
    """Operators between two others, in topological order, the last included; equal regions compare equal.

    ``edges[i]`` are the predecessors of operator ``i`` in the region (-1 is the operator before it) and the least times
    of copies from them; ``busy`` are the least occupancy times.
    """

    shortest: tuple[float, ...]
    busy: tuple[float, ...]
    edges: tuple[tuple[tuple[int, float], ...], ...]


def shared_delays(problem: Problem, shortest: Array, busy: Array, source: int) -> list[Delay]:
    """Return a delay for each operator with several predecessors, from its immediate dominator.

    Parameters
    ----------
    shortest, busy : array of float, shape (operators,)
        Least time, and least occupancy time, of each operator.
    source : int
        Operator from which dominators are counted.

    Notes
    -----
    Proof: Lemma 3 of ``docs/proofs/regions.md``. O(2^LARGEST LARGEST^2) for each different region.
    """
    copy = fastest_copies(problem)
    known: dict[_Region, float] = {}
    delays = []
    for u, v, members in regions_between(problem, source, LARGEST):
        if members:
            region = _region(problem, u, members, (shortest, busy), copy)
            if region not in known:
                known[region] = _least_time(region)
            delays.append(Delay(u, v, known[region]))
    return delays


def fastest_copies(problem: Problem) -> list[float]:
    """Return, by tensor, the least time of a copy between any two devices; infinite if no route joins two devices."""
    devices, route = range(len(problem.topology.devices)), problem.topology.route
    routes = (r for a in devices for b in devices if a != b and (r := route(a, b)))
    return least_times(routes, problem.graph.index.size).tolist()


def _region(problem: Problem, u: int, members: list[int], times: tuple[Array, Array], copy: list[float]) -> _Region:
    index = problem.graph.index
    place = {u: -1} | {o: i for i, o in enumerate(members)}
    edges = []
    for o in members:
        carried: dict[int, float] = {}
        for t in index.inputs[o]:
            p = place.get(index.producer[t])
            if p is not None:
                carried[p] = max(carried.get(p, 0.0), copy[t])
        edges.append(tuple(sorted(carried.items())))
    shortest, busy = (tuple(float(time[o]) for o in members) for time in times)
    return _Region(shortest, busy, tuple(edges))


def _least_time(region: _Region) -> float:
    """Return the least time through a region over all sets of operators on the device of the operator before it.

    Rows of the arrays are operators, columns are sets.
    """
    count = len(region.shortest)
    here = np.array([(np.arange(2**count) >> i) & 1 for i in range(count)], dtype=bool)
    start = np.zeros(here.shape)
    tail = np.zeros(here.shape)
    for i, before in enumerate(region.edges):
        for p, copy in before:
            ended = start[p] + region.shortest[p] if p >= 0 else 0.0
            same = here[p] if p >= 0 else True
            start[i] = np.maximum(start[i], ended + np.where(here[i] == same, 0.0, copy))
    for i in reversed(range(count)):
        for p, copy in region.edges[i]:
            if p >= 0:
                paid = np.where(here[i] == here[p], 0.0, copy)
                tail[p] = np.maximum(tail[p], paid + region.shortest[i] + tail[i])
    least = start[-1] + region.shortest[-1]
    for i in range(count):  # operators here that start no earlier than this one share the device
        work, follows = np.zeros(2**count), np.full(2**count, np.inf)
        for k in range(count):
            late = here[i] & here[k] & (start[k] >= start[i])
            work += np.where(late, region.busy[k], 0.0)
            follows = np.where(late, np.minimum(follows, tail[k]), follows)
        least = np.where(here[i], np.maximum(least, start[i] + work + follows), least)
    return float(least.min())
