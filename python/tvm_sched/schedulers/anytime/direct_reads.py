"""Start schedules for chosen sets of operators that read host memory directly.

List scheduling and local search decide one operator at a time, and a single direct read only takes longer. So neither
finds the large sets of direct reads that relieve the buses.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from tvm_sched_runtime.problem import FORBIDDEN, Problem
from tvm_sched_runtime.search_budget import Budget

from ...bounds.bus import bus_traffic
from ...bounds.relaxation import Relaxation
from ...bounds.resident_relaxation import without_resident
from ..common.direct_access import with_direct_reads
from ..common.search import PlacementChoice, Searches
from .improvers import EVENTS_PER_SECOND, PLACES_PER_SECOND
from .search_state import ScheduleState

if TYPE_CHECKING:
    from .scheduler import AnytimeOptions

Times = npt.NDArray[np.float64]

AROUND = (1.0, 0.9, 0.8, 0.65, 0.5, 0.3, 1.1, 1.25)
"""Numbers of operators that read directly, relative to the number that balances path and buses."""

EVENTS = 400_000
"""Events of a local search in which each operator keeps its kind of access."""


class DirectReads:
    """Try schedules for several sets of operators that read directly, the best ratio of gain to loss first."""

    name = "direct reads"

    def __init__(self, options: AnytimeOptions) -> None:
        self._left: list[frozenset[int]] | None = None

    def step(self, state: ScheduleState, budget: Budget) -> bool:
        """Try one set of operators."""
        if self._left is None:
            self._left = candidate_sets(without_resident(state.scenario.problem, state.scenario.resident))
        if not self._left:
            return False
        events = int(min(EVENTS, budget.left * EVENTS_PER_SECOND / len(self._left)))
        places = len(state.scenario.graph.operators) * len(state.scenario.topology.devices)
        budget.spend(events / EVENTS_PER_SECOND + places / PLACES_PER_SECOND)
        searches, scale = Searches(with_direct_reads(state.scenario, self._left.pop(0))), state.memory_scale
        everywhere = PlacementChoice(range(len(state.scenario.topology.devices)))
        listed = searches.construct([everywhere], [0] * len(state.scenario.graph.operators), scale)
        if listed is not None:
            search = searches.improve(listed[0], scale, state.seed, state.run_goal)
            search.step(events)
            state.offer_sequence(search.best if len(search.best) else listed[0], scale)
        return True


def candidate_sets(problem: Problem) -> list[frozenset[int]]:
    """Return sets of operators to read directly: as many as balance path and buses, and some more or fewer."""
    relaxation = Relaxation(problem)
    host, index = relaxation.host, problem.graph.index
    readers = [o for o, read in enumerate(index.host_inputs) if read and host.must_cross[o]]
    normal = np.where(problem.costs.operator_ns == FORBIDDEN, np.inf, problem.costs.operator_ns).min(axis=1)
    direct = np.where(problem.costs.direct_ns == FORBIDDEN, np.inf, problem.costs.direct_ns).min(axis=1)
    normal = np.where(np.isfinite(normal), normal, direct)  # what can only read directly does so in each set
    loads = bus_traffic(relaxation, readers).loads
    gains = {o: loads[o] - host.least_read[o] for o in readers if host.least_read[o] < loads[o]}
    ranked = sorted(gains, key=lambda o: ((direct[o] - normal[o]) / gains[o], o))
    if not ranked:
        return []
    carried = loads.sum() - np.cumsum([0.0, *(gains[o] for o in ranked)])
    low, high = 0, len(ranked)
    while low < high:  # the path grows with the set, what buses carry falls
        middle = (low + high) // 2
        times = normal.copy()
        times[ranked[:middle]] = direct[ranked[:middle]]
        low, high = (middle + 1, high) if _path(problem, times) < carried[middle] else (low, middle)
    counts = [min(len(ranked), round(low * around)) for around in AROUND]
    return [frozenset(ranked[:count]) for count in dict.fromkeys(counts) if count]


def _path(problem: Problem, times: Sequence[float] | Times) -> float:
    index, end = problem.graph.index, [0.0] * len(times)
    for o in index.order:
        end[o] = float(times[o]) + max((end[p] for p in index.predecessors[o]), default=0.0)
    return max(end)
