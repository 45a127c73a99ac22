"""The report: one HTML file with Gantt charts, topology, latencies, certificates and memory, that needs no network."""

from __future__ import annotations

import os
import platform
from collections.abc import Sequence
from datetime import datetime, timezone
from html import escape
from importlib import metadata, resources
from typing import Any, NamedTuple

import msgspec

from .. import __version__
from ..errors import TvmSchedError
from ..files import write_atomically
from ..problem import Problem
from ..schedule import Schedule, Timeline
from ..schedule.simulate import simulate
from .chart_data import chart_data
from .sections import entry_section, most_telling, summary_table, topology_section

PACKAGES = ("apache-tvm", "ortools", "numpy", "plotly")


class Entry(NamedTuple):
    """One schedule in a report.

    Parameters
    ----------
    title : str
    schedule : Schedule
    timelines : sequence of Timeline
        Simulated, emulated, measured; they are drawn above each other. Without a simulated one the schedule is
        simulated.
    problem : Problem or None
        The schedule's problem where it is not the report's.
    """

    title: str
    schedule: Schedule
    timelines: Sequence[Timeline] = ()
    problem: Problem | None = None


class View(NamedTuple):
    """An entry with all that is drawn: its problem, the simulated timeline, and the others."""

    title: str
    schedule: Schedule
    problem: Problem
    predicted: Timeline
    others: tuple[Timeline, ...]


def require_plotly() -> str:
    """The JavaScript of plotly; call it before long work to find out early whether a report can be written.

    Raises
    ------
    TvmSchedError
        The package plotly is not installed.
    """
    try:
        from plotly.offline import get_plotlyjs
    except ImportError:
        raise TvmSchedError(
            "an HTML report needs the package plotly, which is not installed: pip install 'tvm-sched[report]'"
        ) from None
    return str(get_plotlyjs())


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
    path
        The file, replaced as a whole.
    problem : Problem
        Problem of all entries that name no other.
    entries : sequence of Entry, or of tuples with its fields
        The first one is what the speed-ups are over.
    title : str
        Heading; the model's and the topology's name when empty.
    options : dict, optional
        What the reader should know besides: the command's options, say.

    Raises
    ------
    TvmSchedError
        plotly is missing, or there is nothing to show.
    """
    script = require_plotly()
    views = [_view(Entry(*entry), problem) for entry in entries]
    if not views:
        raise TvmSchedError("a report needs at least one schedule")
    write_atomically(path, _page(script, title, views, options or {}).encode())


def _view(entry: Entry, default: Problem) -> View:
    problem = entry.problem or default
    predicted = [timeline for timeline in entry.timelines if timeline.source == "simulated"]
    others = tuple(timeline for timeline in entry.timelines if timeline.source != "simulated")
    if not predicted:
        predicted = [simulate(problem, entry.schedule)]
    return View(entry.title, entry.schedule, problem, predicted[0], others)


def _page(plotly: str, title: str, views: list[View], options: dict[str, Any]) -> str:
    first = views[0].problem
    title = title or f"{first.graph.name} on {first.topology.name}"
    sections = [entry_section(n, view) for n, view in enumerate(views)]
    drawn = {view.problem.topology.name: view.problem.topology for view in views}
    parts = {
        "title": escape(title),
        "subtitle": _subtitle(views),
        "style": _asset("page.css"),
        "summary": summary_table(views),
        "entries": "\n".join(sections),
        "topologies": "\n".join(topology_section(topology) for topology in drawn.values()),
        "details": _details(views, options),
        "data": _json({"open": most_telling(views), "entries": [_chart(view) for view in views]}),
        "plotly": plotly.replace("</script", "<\\/script"),
        "script": _asset("page.js"),
    }
    page = _asset("page.html")
    return "".join(parts.get(piece, piece) for piece in _pieces(page))


def _chart(view: View) -> dict[str, Any]:
    return chart_data(view.problem, view.schedule, view.predicted, view.others)


def _pieces(page: str) -> list[str]:
    """Split the template at its ``{{name}}`` marks: text, name, text, name, ..."""
    return [piece for part in page.split("{{") for piece in part.split("}}")]


def _asset(name: str) -> str:
    return resources.files(__package__).joinpath(name).read_text("utf-8")


def _json(data: Any) -> str:
    """JSON that can stand inside of a script element."""
    return msgspec.json.encode(data).decode().replace("<", "\\u003c")


def _subtitle(views: list[View]) -> str:
    problems = {view.problem.digest: view.problem for view in views}.values()
    said = [
        f"{escape(p.graph.name)}: {len(p.graph.operators):,} operators on {escape(p.topology.name)} "
        f"({len(p.topology.devices)} devices), problem <code>{p.digest}</code>"
        for p in problems
    ]
    return "<br>".join(said)


def _details(views: list[View], options: dict[str, Any]) -> str:
    """Versions and options, as rows of a table."""
    rows = [("tvm_sched", __version__), ("Python", platform.python_version()), ("machine", platform.platform())]
    for name in PACKAGES:
        try:
            rows.append((name, metadata.version(name)))
        except metadata.PackageNotFoundError:
            rows.append((name, "not installed"))
    rows.append(("written", datetime.now(timezone.utc).strftime("%Y-%m-%d %H:%M UTC")))
    sources = {view.problem.costs.source or "unknown" for view in views}
    rows.append(("latencies of operators from", ", ".join(sorted(sources))))
    rows += [
        (str(name), value if isinstance(value, str) else msgspec.json.encode(value).decode())
        for name, value in options.items()
    ]
    return "".join(f"<tr><th>{escape(name)}</th><td>{escape(value)}</td></tr>" for name, value in rows)
