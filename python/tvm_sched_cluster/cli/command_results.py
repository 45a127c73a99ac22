"""What the commands of clusters and of serving print with ``--json``."""

from __future__ import annotations

from typing import Any

from tvm_sched.cli.results.base import Array, Result

from .. import ServicePlacement
from ..problem.cluster import GpuKind, Link, Rack, Switch
from ..problem.service import ServiceOperator


class NamedCluster(Result, frozen=True):
    """A cluster that comes with the package."""

    name: str
    gpus: int
    source: str


class Allocator(Result, frozen=True):
    """A registered allocator."""

    name: str
    summary: str


class Clusters(Result, frozen=True):
    """``cluster list``."""

    clusters: list[NamedCluster]
    allocators: list[Allocator]


class ShownCluster(Result, frozen=True):
    """``cluster show``."""

    name: str
    kinds: tuple[GpuKind, ...]
    switches: tuple[Switch, ...]
    racks: tuple[Rack, ...]
    links: tuple[Link, ...]
    source: str
    digest: str


class ClusterResult(Result, frozen=True):
    """What runs on a cluster, and what is free."""

    cluster: str
    running: int
    free_gpus: dict[str, int]
    free_fibres: int
    failed: list[str]
    waiting: list[str]


class Placed(ClusterResult, frozen=True):
    """``cluster place``; ``reason``: why the first that found no place found none."""

    placed: int
    asked: int
    reason: str
    placements: list[ServicePlacement]


class Bounded(ClusterResult, frozen=True):
    """``cluster bound``: how many of those asked for can run at most."""

    asked: int
    bound: float
    proportional_bound: float | None


class CheckedBound(Result, frozen=True):
    """``cluster check``: services placed; how many requests any allocator places at most, proved and claimed."""

    placed: int
    proved: int
    claimed: int
    requests: int


class CheckedAllocation(ClusterResult, frozen=True):
    """``cluster verify`` of an allocation that is right."""

    right: bool


class Recovered(ClusterResult, frozen=True):
    """``cluster release`` and ``cluster fail``: what runs elsewhere now."""

    replaced: list[ServicePlacement]


class MovedService(Result, frozen=True):
    """A service that moved: bytes of parameters, and how many services more fit."""

    request: str
    gpus: tuple[str, ...]
    bytes: int
    gain: float


class Defragmented(ClusterResult, frozen=True):
    """``cluster defragment``."""

    moves: list[MovedService]
    bytes: int
    gain: float


class MadeService(Result, frozen=True):
    """``cluster service``."""

    name: str
    operators: tuple[ServiceOperator, ...]
    memory: int
    file: str


class Deployed(Result, frozen=True):
    """``cluster deploy``."""

    cluster: str
    kept: list[str]
    started: list[str]
    ended: list[str]
    failed: dict[str, str]
    waiting: list[str]


class DeploymentStatus(Result, frozen=True):
    """A deployment on a Ray cluster: requests by what became of them, stages and where they are."""

    name: str
    model: str
    artifact: str
    places: int
    in_flight: int
    waiting: int
    answered: int
    failed: int
    refused: int
    retried: int
    stages: list[dict[str, Any]]


class Statuses(Result, frozen=True):
    """``status``."""

    deployments: list[DeploymentStatus]
    failed: dict[str, str]


class Requested(Result, frozen=True):
    """``request``."""

    name: str
    requests: int
    failed: int
    seconds: float
    outputs: list[Array]


class Undeployed(Result, frozen=True):
    """``undeploy``."""

    name: str
    actors: list[str]


RESULTS: dict[str, Any] = {
    "serve": DeploymentStatus,
    "status": Statuses,
    "request": Requested,
    "undeploy": Undeployed,
    "cluster list": Clusters,
    "cluster show": ShownCluster,
    "cluster place": Placed,
    "cluster bound": Bounded,
    "cluster check": CheckedBound,
    "cluster verify": CheckedAllocation,
    "cluster release": Recovered,
    "cluster fail": Recovered,
    "cluster defragment": Defragmented,
    "cluster service": MadeService,
    "cluster deploy": Deployed,
}
"""By command."""
