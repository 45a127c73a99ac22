"""Allocator ``fgd``: fragmentation gradient descent (Weng et al., USENIX ATC 2023) for services on whole GPUs."""

from __future__ import annotations

from functools import cache

import numpy as np

from ..problem.service import Service
from ..search.cluster_search import Embedding
from ..search.cluster_state import ClusterState
from .allocator_registry import register
from .anytime_allocator import AnytimeOptions, demand_so_far

_MOST_EMBEDDED = 8
"""Most mixes without a switch that holds them whole, which are tried over circuits."""


@register("fgd", options=AnytimeOptions)
def fgd(state: ClusterState, service: Service, options: AnytimeOptions) -> Embedding | None:
    """Take the placement that increases the expected fragmentation of the free GPUs least.

    FGD's fragmentation of a node by a task is what the task cannot use of the node's free GPUs; its expectation is over the
    tasks of the demand (Sections 4.1 and 5). A node is here a switch, at which no circuits are needed. If the switch's free
    GPUs hold no mix of a service, all of them are fragments for it; else the GPUs of kinds that occur in none of the mixes
    held. Ties go to the fewest GPUs, then to the fewest fibres. FGD places a task within one node. Here a mix that fits at
    no switch is placed over circuits, and its fragments are counted alike.
    """
    demand = options.demand or demand_so_far(state)
    total = sum(demand.values())
    tables = [
        (share / total, state.search.mixes(state.service(name)).gpus) for name, share in demand.items() if share > 0
    ]

    @cache
    def fragments(free: tuple[int, ...]) -> float:
        row = np.array(free)
        return sum(share * float(row @ ~_usable(row, mixes)) for share, mixes in tables)

    mixes = state.search.mixes(service).gpus
    fitting = mixes[(mixes <= state.kind_gpus).all(axis=1)]
    fitting = fitting[np.argsort(fitting.sum(axis=1), kind="stable")]
    kinds = range(len(state.cluster.kinds))
    free = state.switch_gpus
    alike, first = np.unique(free, axis=0, return_index=True)  # equal switches are equally good
    candidates: list[tuple[float, int, int, int, Embedding]] = []
    embedded = 0
    for position, mix in enumerate(fitting):
        holds = (alike >= mix).all(axis=1)
        for row, switch in zip(alike[holds], first[holds], strict=True):
            more = fragments(tuple((row - mix).tolist())) - fragments(tuple(row.tolist()))
            if not candidates or (round(more, 9), int(mix.sum()), 0) < candidates[0][:3]:
                gpus = state.gpus_at(int(switch))
                if placed := state.search.embed(state.search.chain(service), mix[None], gpus, state.fibres):
                    candidates = [(round(more, 9), int(mix.sum()), 0, position, placed[1])]
        if not holds.any() and embedded < _MOST_EMBEDDED:
            embedded += 1
            if placed := state.search.embed(state.search.chain(service), mix[None], state.gpus, state.fibres):
                taken: dict[int, np.ndarray] = {}
                for pool in placed[1].pools:
                    own = state.cluster.pools[pool]
                    at = state.cluster.switch_id[state.cluster.racks[own.rack].switch]
                    taken.setdefault(at, np.zeros(len(kinds), dtype=np.int64))[own.kind] += 1
                more = sum(
                    fragments(tuple((free[at] - used).tolist())) - fragments(tuple(free[at].tolist()))
                    for at, used in taken.items()
                )
                key = (round(more, 9), int(mix.sum()), sum(map(len, placed[1].routes)))
                if not candidates or key < candidates[0][:3]:
                    candidates = [(*key, position, placed[1])]
    return candidates[0][-1] if candidates else None


def _usable(free: np.ndarray, mixes: np.ndarray) -> np.ndarray:
    """Return for each kind whether a mix that fits into the free GPUs has GPUs of it."""
    return np.asarray((mixes[(mixes <= free).all(axis=1)] > 0).any(axis=0))
