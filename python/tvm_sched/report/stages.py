"""Stages of a pipeline plan for people: bars of what each costs, and what is known of the bottleneck."""

from __future__ import annotations

from typing import NamedTuple

from rich.table import Table
from rich.text import Text

from ..pipeline import PipelinePlan, Stage
from .tables import table
from .units import format_ns

_WIDTH = 32


class Part(NamedTuple):
    """A part of a stage's cost: its field, and how it is shown."""

    field: str
    name: str
    meaning: str
    symbol: str
    colour: str


PARTS = (
    Part("input_ns", "input", "tensors from other stages and from the host", "▒", "blue"),
    Part("work_ns", "work", "operators", "█", "green"),
    Part("overflow_ns", "overflow", "parameters that do not fit, streamed for each batch", "▓", "red"),
    Part("output_ns", "output", "tensors that others read", "░", "blue"),
)
"""In the order in which a batch meets them."""


def stage_table(plan: PipelinePlan) -> Table:
    """A line for each stage, with a bar: the longest is the bottleneck."""
    legend = ", ".join(f"{part.symbol} {part.name}" for part in PARTS)
    rows: list[list[str | Text]] = []
    for s, stage in enumerate(plan.stages):
        figures = [format_ns(getattr(stage, part.field)) for part in PARTS]
        cost = format_ns(stage.cost_ns)
        rows.append([str(s), stage.device, f"{len(stage.operators):,}", *figures, cost, stage_bar(stage, plan.cost_ns)])
    made = table(("stage", "device", "operators", "input", "work", "overflow", "output", "cost", legend), rows, "", 2)
    made.columns[-1].justify = "left"
    return made


def stage_bar(stage: Stage, longest_ns: int) -> Text:
    """A stage's cost as a bar; one of ``longest_ns`` fills the width."""
    bar, drawn, total = Text(), 0, 0
    for part in PARTS:
        total += getattr(stage, part.field)
        end = round(_WIDTH * total / longest_ns) if longest_ns else 0
        bar.append(part.symbol * (end - drawn), style=part.colour)
        drawn = end
    return bar


def certificate_sentence(plan: PipelinePlan, steady_ns: float) -> str:
    """What the plan achieves, and by how much at most it can be improved."""
    text = f"A batch every {format_ns(plan.cost_ns)}, {format_ns(plan.latency_ns)} for one alone, with transfers"
    text += f" and kernels in turn; with transfers beside the kernels, every {format_ns(round(steady_ns))} (simulated)."
    if plan.certificate is None:
        return text
    certificate = plan.certificate
    least = format_ns(certificate.lower_bound_ns)
    known = f" In turn, no plan of as many stages is below {least} (bound: {certificate.bound})"
    if certificate.status == "optimal":
        return f"{text}{known}: this cannot be improved."
    ended = f" Search: {certificate.status}."
    return f"{text}{known}: this cannot be improved by more than {100 * certificate.gap:.1f}%.{ended}"
