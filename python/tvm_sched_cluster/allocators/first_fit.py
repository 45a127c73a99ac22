"""Allocator ``first-fit``: the fewest GPUs, of the kinds that the cluster's file names first."""

from __future__ import annotations

import msgspec
import numpy as np

from ..problem.service import Service
from ..search.cluster_search import Embedding, Mixes
from ..search.cluster_state import ClusterState
from .allocator_registry import register


@register("first-fit")
def first_fit(state: ClusterState, service: Service, options: msgspec.Struct) -> Embedding | None:
    """The smallest number of GPUs that suffices, of the kinds that come first in the cluster's file."""
    mixes = state.search.mixes(service)
    keys = (*(-mixes.gpus.T[::-1]), mixes.gpus.sum(axis=1))
    return embed_first(state, service, mixes.at(np.lexsort(keys)))


def embed_first(state: ClusterState, service: Service, mixes: Mixes) -> Embedding | None:
    """Return the embedding of the first mix that fits into the free resources."""
    possible = mixes.gpus[(mixes.gpus <= state.kind_gpus).all(axis=1)]
    placed = state.search.embed(state.search.chain(service), possible, state.gpus, state.fibres)
    return placed[1] if placed else None
