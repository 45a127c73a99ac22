"""The number of stages of the allocators that take it as given: ``ncar`` and ``pipeedge``."""

from __future__ import annotations

from tvm_sched_runtime.errors import InputError

from ..problem.service import Service
from ..search.cluster_state import ClusterState


def fixed_stages(state: ClusterState, service: Service, stages: dict[str, int]) -> int:
    """Return the number of stages of a service: the given one, or the least that can serve it."""
    fixed = stages.get(service.name)
    if fixed is not None:
        if not 1 <= fixed <= len(service.blocks):
            raise InputError(f"stages of {service.name!r} are {fixed}; 1 to {len(service.blocks)} are allowed")
        return fixed
    mixes = state.search.mixes(service).gpus
    return int(mixes.sum(axis=1).min()) if len(mixes) else 1
