"""Stages of a pipeline plan for people: bars of what each costs, and what is known of the bottleneck."""

from __future__ import annotations

from rich.table import Table
from rich.text import Text

from ..pipeline import PipelinePlan, Stage
from .units import format_ns

_WIDTH = 32
_PARTS = (("input_ns", "▒", "blue"), ("work_ns", "█", "green"), ("overflow_ns", "▓", "red"), ("output_ns", "░", "blue"))


def stage_table(plan: PipelinePlan) -> Table:
    """A line for each stage, with a bar: the longest is the bottleneck."""
    legend = ", ".join(f"{symbol} {field.removesuffix('_ns')}" for field, symbol, _ in _PARTS)
    table = Table("stage", "device", "operators", "input", "work", "overflow", "output", "cost", legend)
    for s, stage in enumerate(plan.stages):
        figures = [format_ns(getattr(stage, field)) for field, _, _ in _PARTS]
        bar = stage_bar(stage, plan.cost_ns)
        table.add_row(str(s), stage.device, str(len(stage.operators)), *figures, format_ns(stage.cost_ns), bar)
    return table


def stage_bar(stage: Stage, longest_ns: int) -> Text:
    """A stage's cost as a bar; one of ``longest_ns`` fills the width."""
    bar, drawn, total = Text(), 0, 0
    for field, symbol, colour in _PARTS:
        total += getattr(stage, field)
        end = round(_WIDTH * total / longest_ns) if longest_ns else 0
        bar.append(symbol * (end - drawn), style=colour)
        drawn = end
    return bar


def certificate_sentence(plan: PipelinePlan, steady_ns: float) -> str:
    """What the plan achieves, and by how much at most it can be improved."""
    text = f"A batch every {format_ns(plan.cost_ns)}, {format_ns(plan.latency_ns)} for one alone"
    text += f"; with transfers beside the kernels, every {format_ns(round(steady_ns))} (simulated)."
    if plan.certificate is None:
        return text
    certificate = plan.certificate
    known = f" No plan of as many stages is below {format_ns(certificate.lower_bound_ns)} (bound: {certificate.bound})"
    if certificate.gap <= 0:
        return f"{text}{known}: this cannot be improved."
    return f"{text}{known}: this cannot be improved by more than {100 * certificate.gap:.1f}%."
