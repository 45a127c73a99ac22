"""The frame of all reports: one HTML file, usable offline, with its styles, script and data."""

from __future__ import annotations

import os
import platform
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timezone
from html import escape
from importlib import metadata, resources
from typing import Any

import msgspec

from tvm_sched_runtime._version import __version__
from tvm_sched_runtime.errors import TvmSchedError
from tvm_sched_runtime.files import write_atomically
from tvm_sched_runtime.problem import Problem

from .sections import topology_section

PACKAGES = ("apache-tvm", "ortools", "numpy", "plotly")


def require_plotly() -> str:
    """Return the JavaScript of plotly; call this before long work to find out early whether it is missing.

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


def write_page(
    path: str | os.PathLike[str],
    title: str,
    problems: Sequence[Problem],
    *,
    summary: str,
    entries: Iterable[str],
    charts: Sequence[Mapping[str, Any]],
    first: int = 0,
    options: Mapping[str, Any] | None = None,
) -> None:
    """Write a page.

    Parameters
    ----------
    path
        The file, which is replaced atomically.
    title : str
        Heading; if empty, the first problem's model and topology.
    problems : sequence of Problem
        At least one; each topology is drawn once.
    summary, entries : str, iterable of str
        HTML of the top, and of the sections of class ``entry``.
    charts : sequence of mapping
        One for each entry, see `chart_data`.
    first : int
        The entry that is open at the beginning.
    options : mapping, optional
        Further details for the reader.

    Raises
    ------
    TvmSchedError
        plotly is missing.
    """
    script = require_plotly()
    drawn = {problem.topology.name: problem.topology for problem in problems}
    sources = {problem.costs.source or "unknown" for problem in problems}
    write_frame(
        path,
        title or f"{problems[0].graph.name} on {problems[0].topology.name}",
        subtitle=_subtitle(problems),
        main="\n".join(
            [
                f"<section>{summary}</section>",
                '<nav class="tabs" aria-label="Schedules"></nav>',
                *entries,
                *(topology_section(topology) for topology in drawn.values()),
            ]
        ),
        details={"latencies of operators from": ", ".join(sorted(sources)), **(options or {})},
        data={"open": first, **_with_one_table_of_names(charts)},
        scripts=[script.replace("</script", "<\\/script"), asset("page.js")],
    )


def write_frame(
    path: str | os.PathLike[str],
    title: str,
    *,
    subtitle: str,
    main: str,
    details: Mapping[str, Any],
    data: Any,
    scripts: Sequence[str],
) -> None:
    """Write a page of any kind.

    Parameters
    ----------
    subtitle, main : str
        HTML.
    details : mapping
        Details for the reader; versions are added.
    data
        Data of the scripts, in the element ``report-data``.
    scripts : sequence of str
        JavaScript, run in this order.
    """
    parts = {
        "title": escape(title),
        "subtitle": subtitle,
        "style": asset("page.css"),
        "main": main,
        "details": _details(details),
        "data": _json(data),
        "scripts": "\n".join(f"<script>{script}</script>" for script in scripts),
    }
    page = "".join(parts.get(piece, piece) for piece in _pieces(asset("page.html")))
    write_atomically(path, page.encode())


def _pieces(page: str) -> list[str]:
    """Split the template at its ``{{name}}`` marks: text, name, text, name, ..."""
    return [piece for part in page.split("{{") for piece in part.split("}}")]


def asset(name: str) -> str:
    """Return a file of this package that is part of pages."""
    return resources.files(__package__).joinpath(name).read_text("utf-8")


def _with_one_table_of_names(charts: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the charts with names as positions in one table: schedules of one problem share most names."""
    position: dict[str, int] = {}
    entries = []
    for chart in charts:
        timelines = []
        for timeline in chart["timelines"]:
            own = [position.setdefault(name, len(position)) for name in timeline["names"]]
            columns = {key: value for key, value in timeline.items() if key != "names"}
            timelines.append({**columns, "name": [own[i] for i in timeline["name"]]})
        entries.append({**chart, "timelines": timelines})
    return {"names": list(position), "entries": entries}


def _json(data: Any) -> str:
    """Return JSON that is safe inside a script element."""
    return msgspec.json.encode(data).decode().replace("<", "\\u003c")


def _subtitle(problems: Sequence[Problem]) -> str:
    lines = [
        f"{escape(p.graph.name)}: {len(p.graph.operators):,} operators on {escape(p.topology.name)} "
        f"({len(p.topology.devices)} devices), problem <code>{p.digest}</code>"
        for p in {problem.digest: problem for problem in problems}.values()
    ]
    return "<br>".join(lines)


def _details(options: Mapping[str, Any]) -> str:
    """Return versions and options as rows of a table."""
    rows = [("tvm_sched", __version__), ("Python", platform.python_version()), ("machine", platform.platform())]
    for name in PACKAGES:
        try:
            rows.append((name, metadata.version(name)))
        except metadata.PackageNotFoundError:
            rows.append((name, "not installed"))
    rows.append(("written", datetime.now(timezone.utc).strftime("%Y-%m-%d %H:%M UTC")))
    rows += [
        (str(name), value if isinstance(value, str) else msgspec.json.encode(value).decode())
        for name, value in options.items()
    ]
    return "".join(f"<tr><th>{escape(name)}</th><td>{escape(value)}</td></tr>" for name, value in rows)
