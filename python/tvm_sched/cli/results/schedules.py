"""Results of the commands on one schedule: compile, run, schedule, simulate, verify, compare, problem, schedulers, demo."""

from __future__ import annotations

from typing import Any

from .base import Array, Result


class Lane(Result, frozen=True):
    """What a device's stream or a channel did."""

    lane: str
    events: int
    busy_ns: int
    bytes: int


class Requested(Result, frozen=True):
    """A kind of run that a schedule is for: what is resident when it begins, and its weight."""

    resident: list[str]
    weight: float
    latency_ns: int
    lower_bound_ns: int


class PricedSchedule(Result, frozen=True):
    """A schedule and its certificate; ``gap`` is how far the latency can be from the best one, as a part of it.

    ``choice`` names the groups of operators that are not computed as in the graph, where the problem has variants. Latency
    and bound are of a cold run, or means over the ``requests`` by their weights; ``lanes`` are the first one's. ``notes`` is
    what the scheduler says of it: `sortinghat`, what decided each submodel.
    """

    problem: str
    model: str
    topology: str
    scheduler: str
    options: dict[str, Any]
    choice: dict[str, str]
    latency_ns: int
    requests: list[Requested]
    lower_bound_ns: int | None
    gap: float | None
    bound: str | None
    status: str | None
    seconds: float | None
    notes: dict[str, Any]
    lanes: list[Lane]


class SlowKernel(Result, frozen=True):
    """A generated kernel far from its roofline."""

    name: str
    operator: str
    microseconds: float | None
    reason: str


class Compiled(Result, frozen=True):
    """``compile``: a schedule for each set of input shapes."""

    plans: list[PricedSchedule]
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
    """``run`` of one schedule.

    ``processor`` is what the kernels that ran were compiled for, ``compiled_with`` what the artifact says of itself.
    What was predicted, and the bound, are of a cold run.
    """

    source: str
    plan: str
    repeat: int
    latency_seconds: Latencies
    predicted_latency_ns: int
    lower_bound_ns: int | None
    gap: float | None
    time_ns: dict[str, dict[str, int]]
    wall_seconds: float
    processor: str
    compiled_with: dict[str, Any]
    files: dict[str, str]
    outputs: list[Array]


class MadeProblem(Result, frozen=True):
    """``problem`` and ``generation``."""

    problem: str
    model: str
    topology: str
    operators: int
    tensors: int
    parameter_bytes: int
    flops: int
    files: dict[str, str]


class ModelEnd(Result, frozen=True):
    """When one of several models ends, and how much slower that is than alone; null where that was not asked for.

    ``takes_ns`` of models that follow each other: from the end of the one before; null elsewhere.
    """

    model: str
    latency_ns: int
    alone_ns: int | None
    slowdown: float | None
    takes_ns: int | None = None


class Scheduled(PricedSchedule, frozen=True):
    """``schedule``; ``models`` and what follows of several models, the last three with ``--objective slowdown``.

    ``objective`` is the largest weighted slowdown, ``objective_lower_bound`` is below it in each schedule.
    """

    files: dict[str, str]
    models: list[ModelEnd] | None = None
    largest_slowdown: float | None = None
    weights: list[float] | None = None
    objective: float | None = None
    objective_lower_bound: float | None = None


class Useful(Result, frozen=True):
    """A kernel whose measurement would make the latency surer."""

    signature: str
    operators: tuple[str, ...]
    device: str
    uncertain_ns: int
    far: bool


class Simulated(PricedSchedule, frozen=True):
    """``simulate``; the last three with ``--samples``: percentiles of the latency over draws of uncertain times.

    ``blocks_latency_ns`` with ``--device-model blocks``, of the first of the runs.
    """

    useful_measurements: list[Useful]
    files: dict[str, str]
    blocks_latency_ns: int | None = None
    percentiles_ns: dict[str, int] | None = None
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


class Explained(Result, frozen=True):
    """``explain``: sentences."""

    lines: list[str]


class Checked(Result, frozen=True):
    """``check``: what was replayed and proved, and what the certificate says; of pipelines the bottleneck stage's cost."""

    proved_ns: int
    certified_ns: int | None
    latency_ns: int | None = None
    choice: dict[str, str] | None = None
    cost_ns: int | None = None
    stages: int | None = None
    devices: list[str] | None = None


class CheckedPartition(Result, frozen=True):
    """``check`` of a partition of a benchmark's instance: the bottleneck's cost; the bound, as proved and as claimed."""

    cost: float
    proved: float
    claimed: float | None


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
    """A latency to compare with that belongs to no schedule."""

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
