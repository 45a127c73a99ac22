"""List scheduling: operators by priority, each on the device where it ends first; other schedulers start from it."""

from __future__ import annotations

import heapq
from collections.abc import Iterable

import numpy as np

from tvm_sched_runtime.problem import FORBIDDEN, Scenario

from .partial import PartialSchedule


def priorities(scenario: Scenario) -> list[int]:
    """Return for each operator the longest path from its start to the end of the run (ns), on the fastest devices."""
    index = scenario.graph.index
    best = np.minimum(scenario.costs.operator_ns, scenario.costs.direct_ns).min(axis=1, initial=FORBIDDEN).tolist()
    rank = [0] * len(best)
    for o in reversed(index.order):
        rank[o] = best[o] + max((rank[s] for s in index.successors[o]), default=0)
    return rank


def list_schedule(state: PartialSchedule, operators: Iterable[int], rank: list[int], frugal: bool = False) -> None:
    """Append ``operators`` to ``state``: the free one of highest rank first, on the device where it ends first.

    Parameters
    ----------
    state : PartialSchedule
        All predecessors of ``operators`` are in it or among them.
    rank : list of int
        Priority of each operator of the problem.
    frugal : bool
        Place each operator where the fewest bytes must be moved, then where it ends first; for devices with little memory.

    Raises
    ------
    InfeasibleError
        An operator fits on no device.
    """
    index, devices = state.scenario.graph.index, range(len(state.scenario.topology.devices))
    chosen = set(operators)
    waiting = {o: sum(p in chosen for p in index.predecessors[o]) for o in chosen}
    free = [(-rank[o], o) for o in chosen if waiting[o] == 0]
    heapq.heapify(free)
    while free:
        o = heapq.heappop(free)[1]
        extensions = [
            e for d in devices for direct in (False, True) if (e := state.extension(o, d, direct)) is not None
        ]
        if not extensions:
            raise state.refuse(o)
        if frugal:
            state.place(min(extensions, key=lambda e: (sum(index.size[m.tensor] for m in e.moves), e.end)))
        else:
            state.place(min(extensions, key=lambda e: (e.end, len(e.moves))))
        for s in index.successors[o]:
            if s in waiting:
                waiting[s] -= 1
                if waiting[s] == 0:
                    heapq.heappush(free, (-rank[s], s))
