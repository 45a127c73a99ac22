"""Allocator ``pipeedge``: the highest throughput on a fixed number of GPUs."""

from __future__ import annotations

import msgspec
import numpy as np

from ..problem.service import Service
from ..search.cluster_search import Embedding
from ..search.cluster_state import ClusterState
from .allocator_registry import register
from .first_fit import embed_first
from .fixed_stages import fixed_stages


class PipeEdgeOptions(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Numbers of stages by name of the service; for others, the least that this cluster allows."""

    stages: dict[str, int] = {}


@register("pipeedge", options=PipeEdgeOptions)
def pipeedge(state: ClusterState, service: Service, options: PipeEdgeOptions) -> Embedding | None:
    """PipeEdge: the highest throughput on a fixed number of GPUs, whatever comes later (Hu et al., DSD 2022).

    Its dynamic program over devices is run over kinds of GPUs, so that the least cycle of each mix is exact; among equal
    ones the lowest latency comes first, and circuits take the shortest free paths. RAMPA's Section V-A4a compares with it.
    """
    mixes = state.search.mixes(service, fixed_stages(state, service, options.stages))
    return embed_first(state, service, mixes.at(np.lexsort((mixes.latency_ns, mixes.cycle_ns))))
