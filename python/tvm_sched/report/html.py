"""The report: one HTML file, usable offline, with Gantt charts, topology, latencies, certificates and memory."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any, NamedTuple

import msgspec

from tvm_sched_runtime.errors import TvmSchedError
from tvm_sched_runtime.problem import Problem, Request, Workload
from tvm_sched_runtime.schedule import Schedule, Timeline, resolved
from tvm_sched_runtime.schedule.simulator import simulate

from ..cost_model.uncertainty import latency_interval
from .chart_data import chart_data
from .page import require_plotly, write_page
from .sections import View, entry_section, most_telling, summary_table


class Entry(NamedTuple):
    """One schedule in a report."""

    title: str
    schedule: Schedule
    timelines: Sequence[Timeline] = ()
    """Simulated, emulated and measured timelines, drawn below each other. If a simulated one is missing (one for each
    request of the schedule), the schedule is simulated."""
    problem: Problem | None = None
    """The schedule's problem if it differs from the report's."""


def write_report(
    path: str | os.PathLike[str],
    problem: Problem,
    entries: Sequence[Entry | tuple[Any, ...]],
    *,
    title: str = "",
    options: dict[str, Any] | None = None,
) -> None:
    """Write the report of one or more schedules.

    Parameters
    ----------
    problem : Problem
        Problem of all entries without a problem of their own.
    entries : sequence of Entry, or of tuples with its fields
        Speed-ups are over the first one.
    path, title, options
        As in `write_page`.

    Raises
    ------
    TvmSchedError
        plotly is missing, or there is nothing to show.
    """
    require_plotly()
    views = [view for entry in entries for view in _views(Entry(*entry), problem)]
    if not views:
        raise TvmSchedError("a report needs at least one schedule")
    write_page(
        path,
        title,
        [view.posed for view in views],
        summary=summary_table(views),
        entries=[entry_section(n, view) for n, view in enumerate(views)],
        charts=[chart_data(view.problem, view.schedule, view.predicted, view.others, view.resident) for view in views],
        first=most_telling(views),
        options=options,
    )


def _views(entry: Entry, default: Problem) -> list[View]:
    """Return an entry's view; of a schedule for requests one for each, with its own latency and bound."""
    posed = entry.problem or default
    predicted = [timeline for timeline in entry.timelines if timeline.source == "simulated"]
    others = tuple(timeline for timeline in entry.timelines if timeline.source != "simulated")
    runs = _runs(entry)
    if len(predicted) < len(runs):
        predicted = [simulate(posed, schedule, resident) for _, schedule, resident in runs]
    views = []
    for (title, unresolved, resident), timeline in zip(runs, predicted, strict=False):
        problem, schedule = resolved(posed, unresolved)
        workload = Workload((Request(tuple(sorted(resident))),) if resident else ())
        interval = latency_interval(problem, schedule, workload)
        views.append(View(title, schedule, problem, timeline, others, posed, frozenset(resident), interval))
    return views


def _runs(entry: Entry) -> list[tuple[str, Schedule, tuple[str, ...]]]:
    """Return the title, certified schedule and resident parameters of each kind of run that a schedule is for."""
    certificate = entry.schedule.certificate
    if certificate is None or not certificate.requests:
        return [(entry.title, entry.schedule, ())]
    runs = []
    for k, r in enumerate(certificate.requests, 1):
        title = f"{entry.title}, request {k} (weight {r.weight:g}): {len(r.resident)} parameters resident"
        own = msgspec.structs.replace(
            certificate, latency_ns=r.latency_ns, lower_bound_ns=r.lower_bound_ns, requests=()
        )
        runs.append((title, entry.schedule.replace(certificate=own), r.resident))
    return runs
