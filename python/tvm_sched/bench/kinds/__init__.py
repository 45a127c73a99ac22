"""The kinds of instances: each defines a method's input and output, and the cost of a solution."""

from __future__ import annotations

from typing import Any

from tvm_sched_cluster.benchmark_kind import ClusterKind

from ...errors import InputError
from .base import Answer, Checked, Kind, Proof
from .latency import LatencyKind
from .placement import PlacementKind
from .throughput import ThroughputKind

__all__ = ["KINDS", "Answer", "Checked", "Kind", "Proof", "kind_of"]

KINDS: dict[str, Kind[Any]] = {
    kind.name: kind for kind in (LatencyKind(), ThroughputKind(), PlacementKind(), ClusterKind())
}
"""All kinds by name."""


def kind_of(name: str) -> Kind[Any]:
    """The kind of that name; raises `InputError` that lists those there are."""
    if name not in KINDS:
        raise InputError(f"there is no kind of instance {name!r}; there are {', '.join(KINDS)}")
    return KINDS[name]
