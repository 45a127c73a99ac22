"""Summaries of pipelines and partitions: their stages, and the bound of the bottleneck."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import msgspec
from rich.table import Table
from rich.text import Text

from tvm_sched_runtime.pipeline import PartitionProblem, PipelinePlan, Stage
from tvm_sched_runtime.pipeline.pipeline_plan import PipelineCertificate

from ..cost_model.uncertainty import PipelineIntervals
from ..pipeline import PeakOrder
from ..pipeline.partitioner_registry import Partition
from .measurement import OutputType
from .tables import table
from .units import format_bytes, format_ns, format_spread

_WIDTH = 32


class StagePart(NamedTuple):
    """A part of a stage's cost: its field and its appearance."""

    field: str
    name: str
    meaning: str
    symbol: str
    colour: str


PARTS = (
    StagePart("input_ns", "input", "tensors from other stages and from the host", "▒", "blue"),
    StagePart("work_ns", "work", "operators", "█", "green"),
    StagePart("overflow_ns", "overflow", "parameters that do not fit, streamed for each batch", "▓", "red"),
    StagePart("output_ns", "output", "tensors that others read", "░", "blue"),
)
"""The parts in the order of their time."""


def stage_table(plan: PipelinePlan) -> Table:
    """Return a line for each stage, with a bar: the longest is the bottleneck."""
    legend = ", ".join(f"{part.symbol} {part.name}" for part in PARTS)
    rows: list[list[str | Text]] = []
    for s, stage in enumerate(plan.stages):
        figures = [format_ns(getattr(stage, part.field)) for part in PARTS]
        cost = format_ns(stage.cost_ns)
        rows.append([str(s), stage.device, f"{len(stage.operators):,}", *figures, cost, stage_bar(stage, plan.cost_ns)])
    view = table(("stage", "device", "operators", "input", "work", "overflow", "output", "cost", legend), rows, "", 2)
    view.columns[-1].justify = "left"
    return view


def stage_bar(stage: Stage, longest_ns: int) -> Text:
    """Return a stage's cost as a bar; one of ``longest_ns`` fills the width."""
    bar, drawn, total = Text(), 0, 0
    for part in PARTS:
        total += getattr(stage, part.field)
        end = round(_WIDTH * total / longest_ns) if longest_ns else 0
        bar.append(part.symbol * (end - drawn), style=part.colour)
        drawn = end
    return bar


def certificate_sentence(plan: PipelinePlan, steady_ns: float, intervals: PipelineIntervals | None = None) -> str:
    """Say what the plan achieves, and by how much at most it can be improved."""
    every, alone = plan.cost_ns, plan.latency_ns
    between, from_to = intervals or (None, None)
    text = (
        f"A batch every {format_spread(every, between)}; {format_spread(alone, from_to)} for one alone, with transfers"
    )
    text += f" and kernels in turn; with transfers beside the kernels, every {format_ns(round(steady_ns))} (simulated)."
    if plan.certificate is None:
        return text
    certificate = plan.certificate
    least = format_ns(certificate.lower_bound_ns)
    known = f" In turn, no plan of as many stages is below {least} at these prices (bound: {certificate.bound})"
    if certificate.status == "optimal":
        return f"{text}{known}: this cannot be improved."
    ended = f" Search: {certificate.status}."
    return f"{text}{known}: this cannot be improved by more than {100 * certificate.gap:.1f}%.{ended}"


class StagePeak(msgspec.Struct, frozen=True):
    """Bytes of a stage's activations at their peak, before and after its operators were put into another order."""

    given: float
    peak: float
    bound: float
    """No order has a smaller peak."""
    search: str
    """What found the order; "given": no search found a better one."""

    @classmethod
    def of(cls, order: PeakOrder) -> StagePeak:
        """Summarise an order."""
        return cls(order.given_peak, order.peak, order.bound, order.search)


def peak_table(peaks: Sequence[StagePeak]) -> Table:
    """Return a line for each stage."""
    rows = [
        (str(s), *(format_bytes(size) for size in (each.given, each.peak, each.bound)), each.search)
        for s, each in enumerate(peaks)
    ]
    return table(("stage", "peak as given", "peak in this order", "no order below", "order found by"), rows)


class StageSummary(Stage, frozen=True, kw_only=True):
    """A stage and its cost."""

    cost_ns: int


class PipelineSummary(msgspec.Struct, frozen=True, kw_only=True):
    """A pipeline plan and its throughput."""

    problem: str
    partitioner: str
    options: dict[str, Any]
    seconds: float | None
    stages: list[StageSummary]
    cost_ns: int
    latency_ns: int
    cost_interval_ns: tuple[int, int] | None = None
    latency_interval_ns: tuple[int, int] | None = None
    """Nanoseconds between which 80 % of the times lie by the errors of the prices; None if these have none."""
    steady_ns: float
    """Time between batches, with transfers beside the kernels."""
    certificate: PipelineCertificate | None
    gap: float | None
    proved_ns: int | None
    """Bound that the evidence file proves; it may be less than the certificate's."""
    peaks: list[StagePeak] | None = None
    """With ``--stage-order least-peak``: the peak of each stage."""

    @classmethod
    def of(
        cls,
        plan: PipelinePlan,
        steady_ns: float,
        proved_ns: int | None = None,
        peaks: list[StagePeak] | None = None,
        intervals: PipelineIntervals | None = None,
    ) -> PipelineSummary:
        """Summarise a plan."""
        same = ("problem", "partitioner", "options", "seconds", "cost_ns", "latency_ns", "certificate")
        return cls(
            **{name: getattr(plan, name) for name in same},
            stages=[StageSummary(**msgspec.structs.asdict(each), cost_ns=each.cost_ns) for each in plan.stages],
            steady_ns=steady_ns,
            gap=plan.certificate.gap if plan.certificate else None,
            proved_ns=proved_ns,
            peaks=peaks,
            cost_interval_ns=intervals and intervals.cost,
            latency_interval_ns=intervals and intervals.latency,
        )


class PipelineRunSummary(msgspec.Struct, frozen=True, kw_only=True):
    """Batches through a pipeline artifact; nanoseconds between batches."""

    source: str
    batches: int
    steady_ns: float
    predicted_ns: float
    outputs: list[OutputType]

    def table(self, model: str, stages: int) -> Table:
        """Return the time between batches, measured and predicted."""
        rows = [(self.source, format_ns(round(self.steady_ns))), ("predicted", format_ns(round(self.predicted_ns)))]
        rows += [("stages", str(stages)), ("batches", str(self.batches))]
        return table(("time between batches", model), rows)


class GraphStage(msgspec.Struct, frozen=True):
    """Nodes of a stage, their work, and the cost of the stage."""

    cost: float
    work: float
    nodes: list[str]


class PartitionSummary(msgspec.Struct, frozen=True, kw_only=True):
    """A partition of a graph without devices."""

    partitioner: str
    options: dict[str, Any]
    seconds: float
    cost: float
    lower_bound: float
    bound: str
    status: str
    gap: float
    stages: list[GraphStage]
    peaks: list[StagePeak] | None = None
    """With ``--stage-order least-peak``: the peak of each stage."""

    @classmethod
    def of(
        cls,
        graph: PartitionProblem,
        partition: Partition,
        partitioner: str,
        options: dict[str, Any],
        peaks: list[StagePeak] | None = None,
    ) -> PartitionSummary:
        """Summarise the partition of a method."""
        stages = graph.stage_lists(partition.stage_of, partition.order)
        return cls(
            partitioner=partitioner,
            options=options,
            seconds=partition.seconds,
            cost=partition.cost,
            lower_bound=partition.bound,
            bound=partition.bound_name,
            status=partition.status,
            gap=partition.gap,
            stages=[
                GraphStage(graph.stage_cost(v), float(graph.work[v].sum()), [graph.names[node] for node in v])
                for v in stages
            ],
            peaks=peaks,
        )

    def table(self) -> Table:
        """Return a row for each stage."""
        rows = [
            (str(s), f"{len(stage.nodes):,}", f"{stage.work:.6g}", f"{stage.cost:.6g}")
            for s, stage in enumerate(self.stages)
        ]
        return table(("stage", "nodes", "work", "cost"), rows)

    def sentence(self) -> str:
        """Say what the partition achieves, and by how much at most it can be improved."""
        known = f"No partition into as many stages is below {self.lower_bound:.6g} (bound: {self.bound})"
        end = f" by more than {100 * self.gap:.1f}%" if self.gap > 0 else ""
        return f"The bottleneck stage costs {self.cost:.6g}. {known}: this cannot be improved{end}."
