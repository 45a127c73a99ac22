"""Compilations: a summary, and the schedules that were measured to choose one."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec
from rich.console import RenderableType
from rich.markup import escape
from rich.table import Table

from tvm_sched_runtime.problem import Problem
from tvm_sched_runtime.schedule.simulator import simulate

from ..cost_model.roofline_model import SlowKernel
from ..cost_model.uncertainty import latency_interval
from ..relax.compiled_results import CompilationResult
from ..relax.profiling.paired_runs import Comparison
from .html import Entry, write_report
from .summaries import ScheduleSummary
from .tables import certificate_table, table
from .units import format_time

_KEPT = "the artifact runs the schedule over several devices"


class BesideOneDevice(msgspec.Struct, frozen=True):
    """A schedule over several logical devices and one on a single device, measured in turns on this machine."""

    seconds: float
    one_device_seconds: float
    faster: bool
    """Whether the schedule over several devices is faster by more than the machine's noise."""
    quiet: bool
    """Whether other processes left the machine alone."""

    @classmethod
    def of(cls, comparison: Comparison | None) -> BesideOneDevice | None:
        """Name the fields of a comparison whose first schedule is the one on a single device."""
        return comparison and cls(comparison.second, comparison.first, comparison.faster, comparison.quiet)

    def __str__(self) -> str:
        times = f"{format_time(self.seconds)} measured, {format_time(self.one_device_seconds)} on one device"
        if self.faster:
            return times
        if not self.quiet:
            return f"{times}; other processes were busy meanwhile, so this does not tell which is faster; {_KEPT}"
        return f"{times}: no gain on this machine; {_KEPT}; -t cpu measures several ways and keeps the fastest"


class CompilationSummary(msgspec.Struct, frozen=True):
    """A schedule for each model and set of input shapes, and the kernels far from their roofline."""

    plans: list[ScheduleSummary]
    slow_kernels: tuple[SlowKernel, ...]
    beside_one_device: list[BesideOneDevice | None] = []
    """For each plan, null where nothing was compared."""

    @classmethod
    def of(cls, *results: CompilationResult) -> CompilationSummary:
        """Summarise the compilation of one or several models."""
        pairs = [pair for result in results for pair in zip(result.problems, result.schedules, strict=True)]
        plans = [
            ScheduleSummary.of(
                problem, schedule, simulate(problem, schedule), interval_ns=latency_interval(problem, schedule)
            )
            for problem, schedule in pairs
        ]
        beside = [BesideOneDevice.of(each) for result in results for each in _comparisons(result)]
        return cls(plans, tuple(kernel for result in results for kernel in result.slow_kernels), beside)


def _comparisons(result: CompilationResult) -> tuple[Comparison | None, ...]:
    return result.comparisons or (None,) * len(result.schedules)


def measured_table(notes: dict[str, Any]) -> Table:
    """Return a table of the schedules that were measured to choose one for this machine's cores."""
    rows = [(row["schedule"], format_time(row["seconds"]), row.get("beside", "")) for row in notes["measured"]]
    return table(("schedule", "measured latency", "in turns with"), [*rows, (f"chosen: {notes['chosen']}", "", "")])


def compilation_views(result: CompilationResult) -> Iterator[RenderableType]:
    """Yield a title and tables for each plan."""
    for problem, schedule, beside in zip(result.problems, result.schedules, _comparisons(result), strict=True):
        yield escape(f"{_plan_title(problem)} on {problem.topology.name}")
        yield certificate_table(schedule, interval=latency_interval(problem, schedule))
        if beside:
            yield str(BesideOneDevice.of(beside))
        if "measured" in schedule.notes:
            yield measured_table(schedule.notes["measured"])


def slow_sentence(slow: Sequence[SlowKernel]) -> str:
    """Name the first kernels that are far from their roofline."""
    names = ", ".join(f"{kernel.name} ({kernel.reason})" for kernel in slow[:3])
    more = f" and {len(slow) - 3} more (--json lists all)" if len(slow) > 3 else ""
    return f"Generated kernels far from their roofline: {names}{more}"


def write_compilation_report(path: Path, result: CompilationResult, options: dict[str, Any]) -> None:
    """Write an HTML report with an entry for each plan."""
    pairs = zip(result.problems, result.schedules, strict=True)
    entries = [Entry(_plan_title(problem), schedule, (), problem) for problem, schedule in pairs]
    write_report(path, result.problems[0], entries, options=options)


def _plan_title(problem: Problem) -> str:
    """Return the model's name with the shapes of its inputs."""
    inputs = [tensor for tensor in problem.graph.tensors if tensor.kind == "input"]
    return f"{problem.graph.name} ({', '.join(f'{t.name} {list(t.shape)}' for t in inputs)})"
