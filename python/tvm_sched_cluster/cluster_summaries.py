"""Summaries of clusters, allocations and deployments: what commands print with ``--json``."""

from __future__ import annotations

from typing import Any

import msgspec
from rich.table import Table

from tvm_sched.report.measurement import OutputType
from tvm_sched.report.tables import table
from tvm_sched.report.units import format_time

from . import ClusterState, ServicePlacement
from .problem.cluster import Cluster, GpuKind, Link, Rack, Switch
from .problem.service import ServiceOperator


class NamedCluster(msgspec.Struct, frozen=True, kw_only=True):
    """A cluster that comes with the package."""

    name: str
    gpus: int
    source: str


class Allocator(msgspec.Struct, frozen=True, kw_only=True):
    """A registered allocator."""

    name: str
    summary: str


class Clusters(msgspec.Struct, frozen=True, kw_only=True):
    """The presets and the allocators."""

    clusters: list[NamedCluster]
    allocators: list[Allocator]


class ShownCluster(msgspec.Struct, frozen=True, kw_only=True):
    """A cluster and the digest of its content."""

    name: str
    kinds: tuple[GpuKind, ...]
    switches: tuple[Switch, ...]
    racks: tuple[Rack, ...]
    links: tuple[Link, ...]
    source: str
    digest: str

    @classmethod
    def of(cls, cluster: Cluster) -> ShownCluster:
        """Summarise a cluster."""
        return cls(**{name: getattr(cluster, name) for name in cls.__struct_fields__})


class ClusterSummary(msgspec.Struct, frozen=True, kw_only=True):
    """Running services and free resources of a cluster."""

    cluster: str
    running: int
    free_gpus: dict[str, int]
    free_fibres: int
    failed: list[str]
    waiting: list[str]

    @classmethod
    def of(cls, state: ClusterState, **more: Any) -> Any:
        """Summarise a state; ``more`` are fields of a subclass."""
        return cls(
            cluster=state.cluster.name,
            running=len(state.running),
            free_gpus={kind.name: int(n) for kind, n in zip(state.cluster.kinds, state.kind_gpus, strict=True)},
            free_fibres=int(state.fibres.sum()),
            failed=list(state.failed),
            waiting=list(state.waiting),
            **more,
        )


class Placed(ClusterSummary, frozen=True, kw_only=True):
    """Services that were placed; ``reason``: why the first one without a place found none."""

    placed: int
    asked: int
    reason: str
    placements: list[ServicePlacement]


class Bounded(ClusterSummary, frozen=True, kw_only=True):
    """How many of the requests can run at most."""

    asked: int
    bound: float
    proportional_bound: float | None


class CheckedAllocation(ClusterSummary, frozen=True, kw_only=True):
    """An allocation that keeps all rules."""

    right: bool


class Recovered(ClusterSummary, frozen=True, kw_only=True):
    """Services that were placed again."""

    replaced: list[ServicePlacement]


class MovedService(msgspec.Struct, frozen=True, kw_only=True):
    """A service that moved: bytes of parameters, and how many services more fit."""

    request: str
    gpus: tuple[str, ...]
    bytes: int
    gain: float


class Defragmented(ClusterSummary, frozen=True, kw_only=True):
    """Services that moved, with their bytes, and how many services more fit."""

    moves: list[MovedService]
    bytes: int
    gain: float


class MadeService(msgspec.Struct, frozen=True, kw_only=True):
    """A service of a model, and the file that was written."""

    name: str
    operators: tuple[ServiceOperator, ...]
    memory: int
    file: str


class Deployed(msgspec.Struct, frozen=True, kw_only=True):
    """Result of the deployment of an allocation's services."""

    cluster: str
    kept: list[str]
    started: list[str]
    ended: list[str]
    failed: dict[str, str]
    waiting: list[str]


class DeploymentStatus(msgspec.Struct, frozen=True, kw_only=True):
    """A deployment on a Ray cluster: requests by what became of them, stages and where they are."""

    name: str
    model: str
    artifact: str
    generation: int
    """1 as deployed; each rollout adds 1."""
    places: int
    in_flight: int
    waiting: int
    answered: int
    failed: int
    refused: int
    retried: int
    gateways: int
    """Gateways that follow it; they count their own requests (``/metrics``)."""
    switching: list[str]
    """Gateways that still use stages from before the last rollout, which stay until then: host and process."""
    stages: list[dict[str, Any]]


class Statuses(msgspec.Struct, frozen=True, kw_only=True):
    """Deployments, and why others say nothing."""

    deployments: list[DeploymentStatus]
    failed: dict[str, str]


class Requested(msgspec.Struct, frozen=True, kw_only=True):
    """Requests to a deployment."""

    name: str
    requests: int
    failed: int
    seconds: float
    outputs: list[OutputType]

    def table(self) -> Table:
        """Counts, time and outputs."""
        rows = [
            ("requests", str(self.requests)),
            ("failed", str(self.failed)),
            ("time", format_time(self.seconds)),
            ("requests a second", f"{self.requests / self.seconds:.4g}"),
            *((f"output_{n}", f"{list(value.shape)} {value.dtype}") for n, value in enumerate(self.outputs)),
        ]
        return table(("deployment", self.name), rows)


class Undeployed(msgspec.Struct, frozen=True, kw_only=True):
    """A removed deployment."""

    name: str
    actors: list[str]


def placements_table(placed: list[ServicePlacement]) -> Table:
    """Return a table with a row for each placement."""
    rows = [
        (p.request, p.service, " ".join(p.gpus), str(len(p.hops)), f"{p.throughput:.3g}", f"{p.latency_ns / 1e6:.1f}")
        for p in placed
    ]
    return table(("request", "service", "GPUs", "fibres", "inputs a second", "latency, ms"), rows, text_columns=3)


_COUNTS = ("in_flight", "waiting", "answered", "failed", "refused", "retried")


def deployment_table(deployment: dict[str, Any]) -> Table:
    """Return a table with a row for each stage of a deployment."""
    counts = ", ".join(f"{deployment[what]} {what.replace('_', ' ')}" for what in _COUNTS)
    rows = []
    for stage in deployment["stages"]:
        mean = format_time(stage["seconds"] / stage["runs"]) if stage.get("runs") else "-"
        needs = ", ".join(f"{name} {amount:g}" for name, amount in stage["resources"].items())
        state = stage["state"] + (", restarted" if stage.get("restarted") else "")
        where = stage["node"][:8] if "node" in stage else stage.get("cause", "-")
        number = str(stage["stage"]) + (f".{stage['replica']}" if stage["replica"] else "")
        rows.append((number, stage["device"], needs, state, where, str(stage.get("runs", "-")), mean))
    count = deployment["gateways"]
    gateways = f", {count} gateway{'s' * (count > 1)}" if count else ""
    if deployment["switching"]:
        gateways += f" ({len(deployment['switching'])} with old stages)"
    version = f"version {deployment['generation']}, {deployment['places']} places"
    title = f"{deployment['name']}: {deployment['model']}, {version}; {counts}{gateways}"
    return table(("stage", "device", "needs", "state", "node", "runs", "mean time"), rows, title)
