"""Schedules of one problem by several schedulers, compared."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec
from rich.table import Table

from tvm_sched_runtime.problem import Problem, Workload
from tvm_sched_runtime.schedule import Schedule
from tvm_sched_runtime.schedule.schedule import weighted_mean

from ..cost_model.uncertainty import latency_interval
from ..schedulers import REFERENCES
from .tables import table
from .units import format_ns, format_percent, format_spread, format_time


class ComparedSchedule(msgspec.Struct, frozen=True):
    """The result of one scheduler, or ``error``: why it has none."""

    scheduler: str
    latency_ns: int | None = None
    lower_bound_ns: int | None = None
    gap: float | None = None
    bound: str | None = None
    status: str | None = None
    seconds: float | None = None
    speedup_over_single: float | None = None
    error: str | None = None
    interval_ns: tuple[int, int] | None = None
    """Nanoseconds between which 80 % of the latencies lie by the errors of the prices; none if these are not known."""


class ReferenceLatency(msgspec.Struct, frozen=True):
    """A latency to compare with that belongs to no schedule."""

    name: str
    latency_ns: int


class Comparison(msgspec.Struct, frozen=True):
    """Schedulers on one problem."""

    problem: str
    model: str
    topology: str
    schedulers: list[ComparedSchedule]
    references: list[ReferenceLatency]

    @classmethod
    def of(cls, problem: Problem, schedules: Mapping[str, Schedule], failed: Mapping[str, str]) -> Comparison:
        """Compare schedules by scheduler; ``failed`` are the messages of the schedulers that have none."""
        certificates = {name: schedule.certificate for name, schedule in schedules.items() if schedule.certificate}
        base = certificates["single"].latency_ns if "single" in certificates else None
        rows = [
            ComparedSchedule(
                name, c.latency_ns, c.lower_bound_ns, c.gap, c.bound, c.status, schedules[name].seconds,
                base / c.latency_ns if base and c.latency_ns else None,
                interval_ns=latency_interval(problem, schedules[name]),
            )
            for name, c in certificates.items()
        ]  # fmt: skip
        rows += [ComparedSchedule(name, error=message) for name, message in failed.items()]
        requests = next((c.requests for c in certificates.values()), ())
        runs = Workload(requests).scenarios(problem)
        references = [
            ReferenceLatency(name, weighted_mean(requests, [ns(run) for run in runs]))
            for name, ns in REFERENCES.items()
        ]
        return cls(problem.digest, problem.graph.name, problem.topology.name, rows, references)

    def table(self) -> Table:
        """Return a row for each scheduler; speed-ups are over `single`."""
        base = next((row.latency_ns for row in self.schedulers if row.scheduler == "single"), None)
        rows = [
            (row.scheduler, "failed", "", "", "", "", "")
            if row.latency_ns is None
            else (
                row.scheduler, format_spread(row.latency_ns, row.interval_ns), format_ns(row.lower_bound_ns or 0),
                format_percent(row.gap or 0.0),
                row.bound or "", format_time(row.seconds or 0.0), _times(row.speedup_over_single),
            )
            for row in self.schedulers
        ]  # fmt: skip
        rows += [
            (f"({each.name})", format_ns(each.latency_ns), "", "", "", "no schedule",
             _times(base / each.latency_ns if base and each.latency_ns else None))
            for each in self.references
        ]  # fmt: skip
        head = ("scheduler", "latency", "lower bound", "gap", "bound by", "found in", "speed-up")
        return table(head, rows, f"{self.model} on {self.topology}")


class Comparisons(msgspec.Struct, frozen=True):
    """Schedulers on several problems, each by itself."""

    problems: list[Comparison]


def _times(speedup: float | None) -> str:
    return f"{speedup:.2f}×" if speedup else "-"
