"""What commands print with ``--json``: one structure for each; ``tvm-sched schema`` prints their JSON Schema."""

from __future__ import annotations

from typing import Any

import msgspec

from ..cluster import ServicePlacement
from ..cluster.cluster import GpuKind, Link, Rack, Switch
from ..cluster.service import ServiceOperator
from ..cost_model.profile import Copies, Machine
from ..cost_model.recording import Recording
from ..problem import Bus, Device, Topology
from ..problem.topology import Link as DeviceLink
from ..problem.topology import Switch as DeviceSwitch
from ..relax.inspection import Inspection


class Result(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A command's result. Fields may be added; none is renamed or removed within a major version."""


class Array(Result, frozen=True):
    """An output of a model."""

    shape: tuple[int, ...]
    dtype: str


class Lane(Result, frozen=True):
    """What a device's stream or a channel did."""

    lane: str
    events: int
    busy_ns: int
    bytes: int


class Plan(Result, frozen=True):
    """A schedule and its certificate; ``gap`` is how far the latency can be from the best one, as a part of it."""

    problem: str
    model: str
    topology: str
    scheduler: str
    options: dict[str, Any]
    latency_ns: int
    lower_bound_ns: int | None
    gap: float | None
    bound: str | None
    status: str | None
    seconds: float | None
    lanes: list[Lane]


class SlowKernel(Result, frozen=True):
    """A generated kernel far from its roofline."""

    name: str
    operator: str
    microseconds: float | None
    reason: str


class Compiled(Result, frozen=True):
    """``compile``: a plan for each set of input shapes."""

    plans: list[Plan]
    files: dict[str, str | list[str]]
    slow_kernels: list[SlowKernel]


class Latencies(Result, frozen=True):
    """Seconds."""

    min: float
    median: float
    mean: float
    p90: float
    p99: float
    max: float


class Ran(Result, frozen=True):
    """``run`` of one schedule; ``compiled_with`` is what the artifact says of itself."""

    source: str
    plan: str
    repeat: int
    latency_seconds: Latencies
    predicted_latency_ns: int
    lower_bound_ns: int | None
    gap: float | None
    time_ns: dict[str, dict[str, int]]
    wall_seconds: float
    compiled_with: dict[str, Any]
    files: dict[str, str]
    outputs: list[Array]


class RanPipeline(Result, frozen=True):
    """``run`` of a pipeline: nanoseconds between batches."""

    source: str
    batches: int
    steady_ns: float
    predicted_ns: float
    outputs: list[Array]
    files: dict[str, str]


class MadeProblem(Result, frozen=True):
    """``problem``."""

    problem: str
    model: str
    topology: str
    operators: int
    tensors: int
    parameter_bytes: int
    flops: int
    files: dict[str, str]


class Scheduled(Plan, frozen=True):
    """``schedule``."""

    files: dict[str, str]


class Useful(Result, frozen=True):
    """A kernel whose measurement would make the latency surer."""

    signature: str
    operators: tuple[str, ...]
    device: str
    uncertain_ns: int
    far: bool


class Simulated(Plan, frozen=True):
    """``simulate``; the last three with ``--samples``: percentiles of the latency over draws of uncertain times."""

    useful_measurements: list[Useful]
    files: dict[str, str]
    spread_ns: dict[str, int] | None = None
    samples: int | None = None
    seed: int | None = None


class Violation(Result, frozen=True):
    """A rule of ``docs/model.md`` that a schedule breaks, and where."""

    rule: str
    operator: str
    device: str
    message: str


class Verified(Result, frozen=True):
    """``verify``."""

    feasible: bool
    violations: list[Violation]


class Compared(Result, frozen=True):
    """What one scheduler found, or ``error``: why it found nothing."""

    scheduler: str
    latency_ns: int | None = None
    lower_bound_ns: int | None = None
    gap: float | None = None
    bound: str | None = None
    status: str | None = None
    seconds: float | None = None
    speedup_over_single: float | None = None
    error: str | None = None


class Reference(Result, frozen=True):
    """A latency to compare with, behind which no schedule stands."""

    name: str
    latency_ns: int


class Comparison(Result, frozen=True):
    """``compare`` of one problem."""

    problem: str
    model: str
    topology: str
    schedulers: list[Compared]
    references: list[Reference]


class Comparisons(Result, frozen=True):
    """``compare --each``."""

    problems: list[Comparison]


class StageOfPlan(Result, frozen=True):
    """A stage of a pipeline on its device, see ``docs/formats/pipeline.md``."""

    device: str
    operators: tuple[str, ...]
    input_ns: int
    work_ns: int
    overflow_ns: int
    output_ns: int
    parameter_bytes: int
    peak_bytes: int
    cost_ns: int


class Pipelined(Result, frozen=True):
    """``pipeline`` of a model."""

    problem: str
    partitioner: str
    options: dict[str, Any]
    seconds: float | None
    stages: list[StageOfPlan]
    cost_ns: int
    latency_ns: int
    steady_ns: float
    certificate: dict[str, Any] | None
    gap: float | None
    files: dict[str, str]


class Part(Result, frozen=True):
    """Nodes of a stage and what it costs."""

    cost: float
    nodes: list[str]


class Partitioned(Result, frozen=True):
    """``pipeline`` of a graph without devices."""

    partitioner: str
    options: dict[str, Any]
    seconds: float
    cost: float
    lower_bound: float
    bound: str
    status: str
    gap: float
    stages: list[Part]


class CachedModel(Result, frozen=True):
    """A compiled model in the cache; when it was last used, in seconds since 1970."""

    key: str
    model: str | None
    bytes: int
    last_used: int


class Cached(Result, frozen=True):
    """``cache show``."""

    path: str
    compiled: list[CachedModel]
    compiled_bytes: int
    limit_bytes: int
    measurements_bytes: int


class Cleared(Result, frozen=True):
    """``cache clear``."""

    compiled_removed: int
    measurements_removed: bool


class CachePath(Result, frozen=True):
    """``cache path``."""

    path: str


class Preset(Result, frozen=True):
    """A topology that comes with the package, and how many parts it has."""

    name: str
    devices: int
    buses: int
    links: int
    switches: int
    source: str


class Presets(Result, frozen=True):
    """``topology list``."""

    presets: list[Preset]
    families: list[str]


class Joined(Result, frozen=True):
    """What joins two devices: in the words of ``nvidia-smi topo -m``, bytes a second, channels."""

    by: str
    bandwidth: float | None
    channels: tuple[str, ...]


class ShownTopology(Result, frozen=True):
    """``topology show``."""

    name: str
    devices: tuple[Device, ...]
    buses: tuple[Bus, ...]
    links: tuple[DeviceLink, ...]
    switches: tuple[DeviceSwitch, ...]
    peer_access: bool
    host_memory: int
    source: str
    channels: tuple[str, ...]
    matrix: dict[str, dict[str, Joined]]


class CheckedTopology(Result, frozen=True):
    """``topology check`` of a file that is right."""

    file: str
    name: str
    right: bool
    devices: int
    buses: int
    links: int
    switches: int


class DetectedTopology(Result, frozen=True):
    """``topology detect``."""

    topology: Topology
    bandwidths: Any
    recording: Recording


class MethodOption(Result, frozen=True):
    """An option of a method."""

    name: str
    type: str
    default: Any
    description: str


class Method(Result, frozen=True):
    """A registered method."""

    name: str
    summary: str
    options: list[MethodOption]


class Profiled(Result, frozen=True):
    """``profile``."""

    kernels: int
    machine: Machine
    device: Any
    latencies: dict[str, float]
    copies: tuple[Copies, ...]
    pairs: int
    files: dict[str, str]


class Learned(Result, frozen=True):
    """``learn``."""

    about: dict[str, str]
    samples: int
    files: dict[str, str]


class DemonstratedLatency(Result, frozen=True):
    """Seconds."""

    predicted_seconds: float
    measured_seconds: float


class DemonstratedTopology(Result, frozen=True):
    """GoogLeNet on one device and on all devices of a topology."""

    topology: str
    one_device: DemonstratedLatency
    schedule: DemonstratedLatency
    lower_bound_seconds: float
    gap: float
    difference: float


class Demonstrated(Result, frozen=True):
    """``demo``."""

    topologies: list[DemonstratedTopology]
    tolerance: float
    read: list[str]
    files: list[str]


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
    "compile": Compiled,
    "inspect": Inspection,
    "run": (Ran, RanPipeline),
    "schedule": Scheduled,
    "simulate": Simulated,
    "verify": Verified,
    "compare": (Comparison, Comparisons),
    "pipeline": (Pipelined, Partitioned),
    "serve": DeploymentStatus,
    "status": Statuses,
    "request": Requested,
    "undeploy": Undeployed,
    "problem": MadeProblem,
    "profile": Profiled,
    "learn": Learned,
    "topology list": Presets,
    "topology show": ShownTopology,
    "topology check": CheckedTopology,
    "topology detect": DetectedTopology,
    "cluster list": Clusters,
    "cluster show": ShownCluster,
    "cluster place": Placed,
    "cluster bound": Bounded,
    "cluster verify": CheckedAllocation,
    "cluster release": Recovered,
    "cluster fail": Recovered,
    "cluster defragment": Defragmented,
    "cluster service": MadeService,
    "cluster deploy": Deployed,
    "cache show": Cached,
    "cache clear": Cleared,
    "cache path": CachePath,
    "schedulers": list[Method],
    "demo": Demonstrated,
}
"""By command; several where it depends on what the command is given."""


def typed(command: str, data: Any) -> Any:
    """A command's result in its structure; raises `msgspec.ValidationError` where it is none."""
    plain, kinds = msgspec.to_builtins(data), _kinds(command)
    for kind in kinds[:-1]:
        try:
            return msgspec.convert(plain, kind)
        except msgspec.ValidationError:
            continue
    return msgspec.convert(plain, kinds[-1])


def schema(command: str) -> dict[str, Any]:
    """JSON Schema (2020-12) of what a command prints with ``--json``."""
    kinds = _kinds(command)
    found, components = msgspec.json.schema_components(kinds, ref_template="#/$defs/{name}")
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": f"tvm-sched {command}",
        **(found[0] if len(found) == 1 else {"anyOf": list(found)}),
        "$defs": components,
    }


def _kinds(command: str) -> tuple[Any, ...]:
    kinds = RESULTS[command]
    return kinds if isinstance(kinds, tuple) else (kinds,)
