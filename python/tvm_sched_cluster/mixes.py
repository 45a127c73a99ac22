"""Allocators that take mixes of GPUs in some order: ``pipeedge`` and ``first-fit``."""

from __future__ import annotations

import msgspec
import numpy as np

from .ants import fixed_stages
from .registry import register
from .search import Embedding, Mixes
from .service import Service
from .state import ClusterState


class PipeEdgeOptions(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Numbers of stages by name of the service; for others, the least that this cluster allows."""

    stages: dict[str, int] = {}


def embed_first(state: ClusterState, service: Service, mixes: Mixes) -> Embedding | None:
    """The embedding of the first mix for which enough is free."""
    possible = mixes.gpus[(mixes.gpus <= state.kind_gpus).all(axis=1)]
    found = state.search.embed(state.search.chain(service), possible, state.gpus, state.fibres)
    return found[1] if found else None


@register("pipeedge", options=PipeEdgeOptions)
def pipeedge(state: ClusterState, service: Service, options: PipeEdgeOptions) -> Embedding | None:
    """PipeEdge: the highest throughput on a fixed number of GPUs, whatever comes later (Hu et al., DSD 2022).

    Its dynamic program over devices is run over kinds of GPUs, so that the least cycle of each mix is exact; among equal
    ones the lowest latency comes first, and circuits take the shortest free ways. RAMPA's Section V-A4a compares with it.
    """
    mixes = state.search.mixes(service, fixed_stages(state, service, options.stages))
    return embed_first(state, service, mixes.at(np.lexsort((mixes.latency_ns, mixes.cycle_ns))))


@register("first-fit")
def first_fit(state: ClusterState, service: Service, options: msgspec.Struct) -> Embedding | None:
    """The smallest number of GPUs that suffices, of the kinds that come first in the cluster's file."""
    mixes = state.search.mixes(service)
    keys = (*(-mixes.gpus.T[::-1]), mixes.gpus.sum(axis=1))
    return embed_first(state, service, mixes.at(np.lexsort(keys)))
