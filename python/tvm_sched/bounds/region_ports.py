"""Delays of regions on equal devices that each send and receive one copy at a time."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from tvm_sched_runtime.core_library import function
from tvm_sched_runtime.problem import Problem, Route

from .dominated_regions import regions_between
from .region_placement import Delay

LARGEST = 8
"""Largest number of operators of a region."""

TENSORS = 32
"""Largest number of tensors that operators of a region read from the region or the operator before it."""

STATES = 50_000
"""Largest number of placements and orders of arrival tried in a region; a region with more is left out."""

SEARCHES = 40
"""Largest number of different regions to search. The checker tries at most 3 million placements and orders in all."""


def port_delays(problem: Problem, best: npt.NDArray[np.float64], source: int) -> list[Delay]:
    """Return a delay for each small region behind ``source`` whose operators are equally fast on all devices.

    The list is empty unless all routes between devices are equally fast, all routes to a device share a channel, and all
    routes from it do.

    Notes
    -----
    Proof: Lemma 5 of ``docs/proofs/regions.md``. The search is in ``cpp/search/region_ports.cc``.
    """
    route = copy_through_ports(problem)
    if route is None:
        return []
    known: dict[object, int] = {}
    delays = []
    for u, v, members in regions_between(problem, source, LARGEST):
        times = best[members]
        if members and np.isfinite(times).all() and (times == times[:, :1]).all():
            region = _arrays(problem, u, members, times[:, 0], route)
            key = tuple(each.tobytes() for each in region)
            if key not in known:
                if len(known) == SEARCHES or len(region[1]) > TENSORS:
                    continue
                least = function("tvm_sched.region_least_time_with_ports")
                known[key] = int(least(*region, best.shape[1], STATES))
            if known[key] >= 0:
                delays.append(Delay(u, v, float(known[key])))
    return delays


def copy_through_ports(problem: Problem) -> Route | None:
    """Return a route between two devices; None unless all are equally fast and each device has an in- and an out-port."""
    topology, devices = problem.topology, range(len(problem.topology.devices))
    pairs = [(a, b) for a in devices for b in devices if a != b]
    routes = {(a, b): route for a, b in pairs if (route := topology.route(a, b)) is not None}
    if len(routes) < len(pairs) or len({(r.bandwidth, r.latency) for r in routes.values()}) != 1:
        return None
    for end in (0, 1):
        for d in devices:
            through = [set(route.channels) for pair, route in routes.items() if pair[end] == d]
            if not set.intersection(*through):
                return None
    return routes[0, 1]


def _arrays(
    problem: Problem, u: int, members: list[int], times: npt.NDArray[np.float64], route: Route
) -> tuple[npt.NDArray[np.int64], ...]:
    """Return the operators' times, the tensors' makers and copy times, and the tensor and the reader of each edge."""
    index = problem.graph.index
    place = {u: -1} | {o: i for i, o in enumerate(members)}
    tensors: dict[int, int] = {}
    readers = set()
    for o in members:
        for t in index.inputs[o]:
            if index.producer[t] in place:
                readers.add((tensors.setdefault(t, len(tensors)), place[o]))
    makers = [place[index.producer[t]] for t in tensors]
    copies = [route.nanoseconds(index.size[t]) for t in tensors]
    pairs = np.array(sorted(readers), dtype=np.int64).reshape(-1, 2)
    lists = (times, makers, copies, pairs[:, 0], pairs[:, 1])
    return tuple(np.ascontiguousarray(each, dtype=np.int64) for each in lists)
