"""The bound ``enumeration``: all states of schedules on equal devices were looked at, and none ends earlier."""

from __future__ import annotations

import math
import weakref
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from tvm_sched_runtime.core_library import function
from tvm_sched_runtime.problem import Problem
from tvm_sched_runtime.search_budget import OutOfTime, check_time, seconds_left

from .critical_path import critical_path_bound
from .device_work import device_work_bound
from .relaxation import Relaxation

OPERATORS, DEVICES = 64, 16
"""Largest numbers of operators and devices."""
STATES = (20_000, 200_000, 1_000_000)
"""States to look at for one latency and direction, in rounds. The checker looks at no more than the last."""
ALL_STATES = 4_000_000
"""States to look at for all latencies."""
STATES_PER_SECOND = 500_000
"""States that a search looks at in a second, at least, on an idle core of a server."""


class Enumeration(NamedTuple):
    """A latency that no schedule undercuts, and whether that was shown on the reversed graph."""

    ns: int
    backwards: bool


class Placed(NamedTuple):
    """The operators of a schedule in launch order, and the device of each."""

    operators: list[int]
    devices: list[int]


_known: weakref.WeakKeyDictionary[Problem, Enumeration | None] = weakref.WeakKeyDictionary()
_found: weakref.WeakKeyDictionary[Problem, Placed | None] = weakref.WeakKeyDictionary()


def enumeration_bound(relaxation: Relaxation) -> Enumeration | None:
    """Bound the latency by looking at all states of schedules (``docs/proofs/enumeration.md``).

    It is for 2 to `OPERATORS` operators that take the same time on each of 2 to `DEVICES` devices, one at a time. Nothing is
    loaded, and copies take the same time between any two devices and do not wait for each other. For other problems it is
    None, also if the search shows no more than the longest path and the work.

    Notes
    -----
    The search is in ``cpp/search/enumeration.cc``. It looks for a latency in the middle between the largest that is known to
    be too short and the shortest schedule found, from the start of the run or, on the reversed graph, from its end.

    Raises
    ------
    OutOfTime
        The deadline of the search around does not leave the time for all states.
    """
    problem = relaxation.problem
    if not relaxation.of_schedules or not _is_covered(relaxation):
        return None
    if problem not in _known:
        weaker = max(critical_path_bound(relaxation), device_work_bound(relaxation))
        search = _Search(relaxation, math.ceil(weaker * (1 - 1e-9)))
        try:
            _known[problem] = search.bound()
        finally:
            _found[problem] = search.best
    return _known[problem]


def enumerated_schedule(problem: Problem) -> Placed | None:
    """Return the shortest schedule that `enumeration_bound` found; None if it was not computed, or found none."""
    return _found.get(problem)


def _is_covered(relaxation: Relaxation) -> bool:
    problem = relaxation.problem
    devices = range(len(problem.topology.devices))
    if not (2 <= len(problem.graph.operators) <= OPERATORS and 2 <= len(devices) <= DEVICES):
        return False
    if problem.costs.concurrency is not None or not all(problem.reads_host_in_place(d) for d in devices):
        return False
    if not np.isfinite(relaxation.best).all() or (relaxation.best != relaxation.best[:, :1]).any():
        return False
    routes = {problem.topology.route(a, b) for a in devices for b in devices if a != b}
    return len(routes) == 1 and all(route is not None and not route.channels for route in routes)


@dataclass
class _Search:
    relaxation: Relaxation
    known: int
    """Nanoseconds that other arguments prove."""
    states: int = ALL_STATES
    best: Placed | None = None
    """The shortest schedule found."""

    @cached_property
    def _graphs(self) -> list[tuple[npt.NDArray[np.int64], ...]]:
        """Times, ends of edges and delays, of the graph and of the reversed one."""
        problem = self.relaxation.problem
        index = problem.graph.index
        place = {o: i for i, o in enumerate(index.order)}
        delay: dict[tuple[int, int], int] = {}
        for o in index.order:
            for t in index.inputs[o]:
                if index.producer[t] in place:
                    edge = place[index.producer[t]], place[o]
                    delay[edge] = max(delay.get(edge, 0), problem.copy_ns(t, 0, 1))
        times = self.relaxation.shortest[index.order].astype(np.int64)
        edges = np.array([(a, b, ns) for (a, b), ns in delay.items()], dtype=np.int64).reshape(-1, 3)
        last = len(times) - 1
        graphs = [(times, *edges.T), (times[::-1], last - edges[:, 1], last - edges[:, 0], edges[:, 2])]
        return [tuple(np.ascontiguousarray(each) for each in graph) for graph in graphs]

    def bound(self) -> Enumeration | None:
        """Return the strongest bound that the states suffice for; None if it is not above what is known."""
        too_short, backwards = self.known - 1, False
        enough = int(self.relaxation.shortest.sum())  # one device, without copies
        for most in STATES:
            limit = enough
            while too_short + 1 < limit and self.states > 0:
                # What is known is often attained.
                middle = self.known if too_short < self.known else (too_short + limit) // 2
                for direction, (end, complete) in enumerate(self._runs(middle, most)):
                    if end >= 0:
                        enough = limit = end
                    elif complete:
                        too_short, backwards = middle, bool(direction)
                    else:
                        continue
                    break
                else:
                    limit = middle
        return Enumeration(too_short + 1, backwards) if too_short >= self.known else None

    def _runs(self, latency: int, most: int) -> Iterator[tuple[int, bool]]:
        """Yield for both directions the end of a schedule within the latency, -1 without one, and whether that is sure."""
        order, devices = self.relaxation.problem.graph.index.order, len(self.relaxation.problem.topology.devices)
        for step, graph in zip((1, -1), self._graphs, strict=True):
            check_time()
            allowed = int(min(most, STATES_PER_SECOND * seconds_left() + 1))
            complete, states, end, *rest = function("tvm_sched.enumerate")(*graph, devices, latency, allowed)
            self.states -= states
            if end < 0 and not complete and allowed < most:
                raise OutOfTime  # what this proves is not the strongest bound, which `_known` keeps
            if end >= 0:
                operators = [order[::step][i] for i in rest[: len(order)]]
                self.best = Placed(operators[::step], rest[len(order) :][::step])
            yield int(end), bool(complete)
