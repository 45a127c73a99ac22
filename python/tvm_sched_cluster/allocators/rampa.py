"""Allocator ``rampa``: ant colony optimisation of the allocation cost."""

from __future__ import annotations

from ..problem.service import Service
from ..search.cluster_search import Embedding
from ..search.cluster_state import ClusterState
from .allocator_registry import register
from .ant_colony import AntOptions, send_ants


@register("rampa", options=AntOptions)
def rampa(state: ClusterState, service: Service, options: AntOptions) -> Embedding | None:
    """RAMPA: the least allocation cost over all numbers of stages, by ants (IEEE TCC 2025, Section IV-C).

    The cost of a GPU is FLOP/s x memory x free GPUs of its rack (equation 4), that of a link its part of the shortest
    paths between GPUs that matter (equation 5).
    """
    return send_ants(state, service, options, 1, 0)
