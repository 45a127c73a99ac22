"""The table and the page of a sweep: charts over the variants of a machine, and the schedule of the chosen one."""

from __future__ import annotations

import os
from collections.abc import Sequence
from html import escape
from typing import Any

from rich.table import Table

from ..sweep import Row, Solved, Sweep, shown
from .figures import ordered_lanes
from .page import asset, require_plotly, write_frame
from .tables import table
from .units import format_percent, format_spread, format_time

MOST_EVENTS = 400_000
"""Largest number of events of all timelines in a page; with more, the page has no schedules."""
MOST_OPEN = 4
"""Number of answers about further GPUs that are shown; the others are folded."""
_KINDS = ("kernel", "load", "copy", "host_read")


def _number(value: float | None, digits: int = 3) -> str:
    return "-" if value is None else f"{value:,.{0 if value >= 1000 else max(digits - len(str(int(value))), 0)}f}"


def _latency(row: Row) -> str:
    interval = None if row.interval is None else (round(row.interval[0] * 1e9), round(row.interval[1] * 1e9))
    return format_spread(round((row.latency or 0.0) * 1e9), interval)


def _cells(row: Row, keys: Sequence[str], priced: bool) -> list[str]:
    """Return a row of the table as texts."""
    known = row.latency is not None
    return [
        *(shown(key, row.values[key]) for key in keys),
        f"{row.used} of {row.devices}" if known else str(row.devices),
        _latency(row) if row.latency is not None else row.error.partition("\n")[0][:60],
        format_time(row.lower_bound) if row.lower_bound is not None else "-",
        format_percent(1 - row.lower_bound / row.latency) if row.latency and row.lower_bound is not None else "-",
        _number(row.throughput),
        *([_number(row.price, 3), _number(row.cost, 5)] if priced else []),
    ]


def _head(sweep: Sweep) -> tuple[list[str], bool]:
    priced = any(row.price is not None for row in sweep.rows)
    prices = ["price an hour", "price of 1,000"] if priced else []
    return [*sweep.keys, "devices used", "latency", "lower bound", "gap", "inferences a second", *prices], priced


def sweep_table(sweep: Sweep) -> Table:
    """Return the rows of a sweep as a table."""
    head, priced = _head(sweep)
    keys = list(sweep.keys)
    return table(head, [_cells(row, keys, priced) for row in sweep.rows], text_columns=0)


def write_sweep_page(path: str | os.PathLike[str], sweep: Sweep, solved: Sequence[Solved]) -> None:
    """Write the page of a sweep.

    Raises
    ------
    TvmSchedError
        plotly is missing.
    """
    script = require_plotly()
    head, priced = _head(sweep)
    keys = list(sweep.keys)
    rows = [_cells(row, keys, priced) for row in sweep.rows]
    cells = "".join(
        f'<tr data-row="{n}" tabindex="0">{"".join(f"<td>{escape(cell)}</td>" for cell in row)}</tr>'
        for n, row in enumerate(rows)
    )
    paying = [answer for answer in sweep.answers if sweep.target is None or answer is not sweep.answers[0]]
    answers = "".join(f"<li>{escape(answer)}</li>" for answer in paying)
    title = "Where does another GPU stop paying?"
    opened = " open" if len(paying) <= MOST_OPEN else ""
    answers = (
        answers
        and f'<details class="paying"{opened}><summary>{title}</summary><ul class="answers">{answers}</ul></details>'
    )
    options = ", ".join(f"{name} {value}" for name, value in sweep.options.items())
    missing = sweep.wanted - len(sweep.rows)
    left = f" Interrupted: {missing} of {sweep.wanted} variants are missing." if missing else ""
    write_frame(
        path,
        f"{sweep.model} on {sweep.wanted} variants of a machine",
        subtitle=escape(
            f"Predicted. Each point is a schedule of its own, computed by {sweep.scheduler} ({options or 'no options'}); "
            f"nothing between the points is computed or drawn. No schedule of these kernels is below the bound.{left}"
        ),
        main=asset("sweep.html")
        .replace("{{answers}}", answers)
        .replace("{{head}}", "".join(f"<th>{escape(name)}</th>" for name in head))
        .replace("{{rows}}", cells),
        details={"scheduler": sweep.scheduler, "options": sweep.options, "varied": sweep.keys},
        data=_data(sweep, solved),
        scripts=[script.replace("</script", "<\\/script"), asset("sweep.js")],
    )


def _data(sweep: Sweep, solved: Sequence[Solved]) -> dict[str, Any]:
    """Return the script's data: rows, and the events of each row's timeline as columns of numbers."""
    events = sum(len(each.timeline.events) for each in solved if each.timeline)
    names: dict[str, int] = {}
    charts = [_timeline(each, names) for each in solved] if events <= MOST_EVENTS else []
    # JavaScript's objects keep the order of the keys of `Row.values`, which is that of the sweep.
    return {
        "keys": sweep.keys, "target": sweep.target, "rows": sweep.rows, "timelines": charts, "names": list(names),
        "kinds": _KINDS,
    }  # fmt: skip


def _timeline(each: Solved, names: dict[str, int]) -> dict[str, Any] | None:
    if each.timeline is None or each.problem is None:
        return None
    lanes = ordered_lanes(each.problem.topology, [each.timeline])
    at = {lane: n for n, lane in enumerate(lanes)}
    rows = [
        (
            at[lane],
            event.start_ns,
            event.duration_ns,
            names.setdefault(event.name, len(names)),
            _KINDS.index(event.kind),
        )
        for event in each.timeline.events
        for lane in event.lanes
    ]
    columns = zip(*rows, strict=True) if rows else ([], [], [], [], [])
    return {"lanes": lanes, **dict(zip(("lane", "start", "time", "name", "kind"), map(list, columns), strict=True))}
