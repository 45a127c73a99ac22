"""Allocator ``best-fit``: the least computing power that suffices, at the switch with the fewest free GPUs."""

from __future__ import annotations

import msgspec
import numpy as np

from ..problem.service import Service
from ..search.cluster_search import Embedding
from ..search.cluster_state import ClusterState
from .allocator_registry import register


@register("best-fit")
def best_fit(state: ClusterState, service: Service, options: msgspec.Struct) -> Embedding | None:
    """Take the mix with the least FLOP/s, at the switch that it leaves with the fewest free GPUs, as FGD's baseline does.

    A mix that fits at no single switch is embedded over circuits.
    """
    mixes = state.search.mixes(service).gpus
    fitting = mixes[(mixes <= state.kind_gpus).all(axis=1)]
    speed = fitting @ np.array([kind.flops for kind in state.cluster.kinds])
    for mix in fitting[np.lexsort((fitting.sum(axis=1), speed))]:
        if embedding := embed_closest(state, service, mix):
            return embedding
    return None


def embed_closest(state: ClusterState, service: Service, mix: np.ndarray) -> Embedding | None:
    """Embed a mix at the fullest switch that can hold it, else over circuits."""
    chain, free = state.search.chain(service), state.switch_gpus
    switches = np.flatnonzero((free >= mix).all(axis=1))
    for switch in switches[np.argsort(free[switches].sum(axis=1), kind="stable")][:1]:
        if placed := state.search.embed(chain, mix[None], state.gpus_at(int(switch)), state.fibres):
            return placed[1]
    placed = state.search.embed(chain, mix[None], state.gpus, state.fibres)
    return placed[1] if placed else None
