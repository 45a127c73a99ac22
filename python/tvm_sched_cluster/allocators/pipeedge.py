"""Allocator ``pipeedge``: the highest throughput on a fixed number of GPUs."""

from __future__ import annotations

import msgspec
import numpy as np

from ..problem.service import Service
from ..search.cluster_search import Embedding
from ..search.cluster_state import ClusterState
from .allocator_registry import register
from .ant_colony import AntOptions, send_ants
from .first_fit import embed_first
from .fixed_stages import fixed_stages


class PipeEdgeOptions(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How PipeEdge searches.

    Parameters
    ----------
    stages : dict of str to int
        By name of the service; for services that are not named, the least number that this cluster allows.
    ants : bool
        Search by ants with sub-agents, as the program of RAMPA's authors does; else exactly.
    seed : int
        Of the ants.
    """

    stages: dict[str, int] = {}
    ants: bool = False
    seed: int = 0


@register("pipeedge", options=PipeEdgeOptions)
def pipeedge(state: ClusterState, service: Service, options: PipeEdgeOptions) -> Embedding | None:
    """PipeEdge: the highest throughput on a fixed number of GPUs, whatever comes later (Hu et al., DSD 2022).

    Its dynamic program over devices is run over kinds of GPUs, so that the least cycle of each mix is exact; among equal
    ones the lowest latency comes first, and circuits take the shortest free paths. RAMPA's Section V-A4a compares with it.
    """
    stages = fixed_stages(state, service, options.stages)
    if options.ants:
        ants = AntOptions(seed=options.seed, sub_agents=True, pool_choice=True)
        return send_ants(state, service, ants, stages, stages, fastest=True)
    mixes = state.search.mixes(service, stages)
    return embed_first(state, service, mixes.at(np.lexsort((mixes.latency_ns, mixes.cycle_ns))))
