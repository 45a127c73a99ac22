"""Compilations: a summary, and the schedules that were measured to choose one."""

from __future__ import annotations

from typing import Any

import msgspec
from rich.table import Table

from ..cost_model.roofline_model import SlowKernel
from ..relax.compiled_results import CompilationResult
from ..schedule.simulator import simulate
from .summaries import ScheduleSummary
from .tables import table
from .units import format_time


class CompilationSummary(msgspec.Struct, frozen=True):
    """A schedule for each set of input shapes, and the kernels far from their roofline."""

    plans: list[ScheduleSummary]
    slow_kernels: tuple[SlowKernel, ...]

    @classmethod
    def of(cls, made: CompilationResult) -> CompilationSummary:
        """Summarise a compilation."""
        pairs = zip(made.problems, made.schedules, strict=True)
        plans = [ScheduleSummary.of(problem, schedule, simulate(problem, schedule)) for problem, schedule in pairs]
        return cls(plans, made.slow_kernels)


def measured_table(notes: dict[str, Any]) -> Table:
    """What was measured to choose a schedule for this machine's cores."""
    rows = [(row["schedule"], format_time(row["seconds"]), row.get("beside", "")) for row in notes["measured"]]
    return table(("schedule", "measured latency", "in turns with"), [*rows, (f"chosen: {notes['chosen']}", "", "")])
