"""Files that show a schedule or its runs: reports and traces."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from .output import Output

if TYPE_CHECKING:
    from ..problem import Problem
    from ..schedule import Schedule, Timeline


def write_views(
    out: Output, made: Problem, chosen: Schedule, timelines: list[Timeline], report: Path | None, trace: Path | None
) -> None:
    """Write the report and the trace that were asked for."""
    if report:
        from ..report.html import Entry, write_report

        write_report(report, made, [Entry(chosen.scheduler or "schedule", chosen, timelines)])
        out.wrote(report, "report")
    if trace:
        from ..schedule import resolved

        store_trace(out, trace, timelines, *resolved(made, chosen))


def store_trace(
    out: Output,
    path: Path | None,
    timelines: Sequence[Timeline],
    problem: Problem | None = None,
    schedule: Schedule | None = None,
) -> None:
    """Write the trace of some timelines, where a file was given."""
    if path:
        from ..report.trace import write_trace

        write_trace(path, timelines, problem, schedule)
        out.wrote(path, "trace")
