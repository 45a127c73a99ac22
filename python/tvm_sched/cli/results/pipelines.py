"""Results of the commands on pipelines and their deployments."""

from __future__ import annotations

from typing import Any

from .base import Array, Result


class RanPipeline(Result, frozen=True):
    """``run`` of a pipeline: nanoseconds between batches."""

    source: str
    batches: int
    steady_ns: float
    predicted_ns: float
    outputs: list[Array]
    files: dict[str, str]


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
    """``pipeline`` of a model; ``proved_ns`` is what the evidence proves, perhaps less than the certificate."""

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
    proved_ns: int | None
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
