"""Files that show a schedule or its runs: reports and traces."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from .inputs import JSON, EvidenceFile, ReportFile, TraceFile
from .output import Output

if TYPE_CHECKING:
    from tvm_sched_runtime.problem import Problem
    from tvm_sched_runtime.schedule import Schedule, Timeline

    from ..report.measurement import StartStage


@dataclass(frozen=True)
class ViewOptions:
    """A report and a trace."""

    report: ReportFile = None
    trace: TraceFile = None

    def write(self, out: Output, problem: Problem, chosen: Schedule, timelines: list[Timeline]) -> None:
        """Write the files that the options name."""
        if self.report:
            from ..report.html import Entry, write_report

            write_report(self.report, problem, [Entry(chosen.scheduler or "schedule", chosen, timelines)])
            out.wrote(self.report, "report")
        if self.trace:
            from tvm_sched_runtime.schedule import resolved

            store_trace(out, self.trace, timelines, *resolved(problem, chosen))


def store_trace(
    out: Output,
    path: Path | None,
    timelines: Sequence[Timeline],
    problem: Problem | None = None,
    schedule: Schedule | None = None,
    start: Sequence[StartStage] = (),
) -> None:
    """Write the trace of some timelines, and of the stages of a start, if ``path`` is set."""
    if path:
        from ..report.trace import write_trace

        write_trace(path, timelines, problem, schedule, start=start)
        out.wrote(path, "trace")


@dataclass(frozen=True)
class PlanFiles(ViewOptions):
    """Files of a schedule or pipeline plan, with its evidence."""

    output: Annotated[
        Path | None, typer.Option("--output", "-o", metavar="FILE.json", help="Write the schedule or plan."), JSON
    ] = None
    evidence: EvidenceFile = None
