"""Allocator ``ncar``: RAMPA's ants with a fixed number of stages."""

from __future__ import annotations

import msgspec

from ..problem.service import Service
from ..search.cluster_search import Embedding
from ..search.cluster_state import ClusterState
from .allocator_registry import register
from .ant_colony import AntOptions, send_ants
from .fixed_stages import fixed_stages


class NcarOptions(AntOptions, frozen=True, forbid_unknown_fields=True):
    """Settings of the ants, and the number of stages of each service.

    Parameters
    ----------
    stages : dict of str to int
        By name of the service; for services that are not named, the least number that this cluster allows.
    """

    stages: dict[str, int] = msgspec.field(default_factory=dict)


@register("ncar", options=NcarOptions)
def ncar(state: ClusterState, service: Service, options: NcarOptions) -> Embedding | None:
    """NCAR: RAMPA's cost and ants with a fixed number of stages (IEEE TCC 2025, Section V-A4b)."""
    stages = fixed_stages(state, service, options.stages)
    return send_ants(state, service, options, stages, stages)
