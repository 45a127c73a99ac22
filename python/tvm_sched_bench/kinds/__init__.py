"""The kinds of instances: each defines a method's input and output, and the cost of a solution."""

from __future__ import annotations

from typing import Any

from tvm_sched.registry import Registry

from .kind import Answer, Checked, Kind, Proof
from .latency_kind import LatencyKind
from .placement_kind import PlacementKind
from .throughput_kind import ThroughputKind

__all__ = ["KINDS", "Answer", "Checked", "Kind", "Proof"]

KINDS: Registry[Kind[Any]] = Registry(
    "kind of instance",
    "tvm_sched.benchmark_kinds",
    entries={kind.name: kind for kind in (LatencyKind(), ThroughputKind(), PlacementKind())},
    elsewhere={"cluster": "tvm-sched-cluster"},
)
"""All kinds by name; entry points of other distributions name further ones."""
