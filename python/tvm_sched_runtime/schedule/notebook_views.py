"""Small pictures and tables of schedules and timelines for notebooks."""

from __future__ import annotations

from collections import Counter
from html import escape
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .schedule import Schedule
    from .timeline import Timeline

_COLOURS = {"kernel": "#4c78a8", "load": "#8797ad", "copy": "#d1495b", "host_read": "#e0b93b"}
_WORDS = {"kernel": "kernels", "load": "loads", "copy": "copies", "host_read": "reads of host memory"}
_LEFT, _WIDTH, _LANE = 120, 640, 20
MOST_EVENTS = 5000
"""Largest number of events in a picture; if there are more, the longest are drawn."""


def timeline_html(timeline: Timeline) -> str:
    """Return a picture (SVG) of a timeline: a row for each lane, and the latency."""
    lanes = sorted({lane for event in timeline.events for lane in event.lanes})
    row = {lane: 24 + n * _LANE for n, lane in enumerate(lanes)}
    scale, height = _WIDTH / max(timeline.latency_ns, 1), 24 + _LANE * len(lanes) + 8
    parts = [
        f'<text x="{_LEFT - 6}" y="{y + 14}" text-anchor="end">{escape(lane)}</text>'
        f'<rect x="{_LEFT}" y="{y + 2}" width="{_WIDTH}" height="{_LANE - 4}" fill="#8882"/>'
        for lane, y in row.items()
    ]
    drawn = sorted(timeline.events, key=lambda event: -event.duration_ns)[:MOST_EVENTS]
    for event in sorted(drawn, key=lambda event: event.start_ns):
        text = f"{event.name}: {event.kind}, {event.duration_ns / 1e3:,.1f} µs from {event.start_ns / 1e3:,.1f} µs"
        for lane in event.lanes:
            parts.append(
                f'<rect x="{_LEFT + event.start_ns * scale:.1f}" y="{row[lane] + 2}" height="{_LANE - 4}" '
                f'width="{max(event.duration_ns * scale, 0.5):.1f}" fill="{_COLOURS[event.kind]}">'
                f"<title>{escape(text)}</title></rect>"
            )
    kinds = [kind for kind in _COLOURS if any(event.kind == kind for event in timeline.events)]
    legend = " ".join(f'<tspan fill="{_COLOURS[kind]}">■</tspan> {_WORDS[kind]}' for kind in kinds)
    left = (
        f", the longest {MOST_EVENTS:,} of {len(timeline.events):,} events" if len(drawn) < len(timeline.events) else ""
    )
    title = f"{timeline.source}: {timeline.latency_ns / 1e6:,.3f} ms{left}"
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_LEFT + _WIDTH + 8} {height}" role="img" '
        f'style="max-width:{_LEFT + _WIDTH + 8}px;width:100%;font:12px sans-serif" fill="currentColor">'
        f'<text x="4" y="15">{escape(title)} &#160; {legend}</text>{"".join(parts)}</svg>'
    )


def schedule_html(schedule: Schedule) -> str:
    """Return a table of a schedule: its certificate, and what runs on each device."""
    known = schedule.certificate
    rows = [("scheduler", schedule.scheduler or "-")]
    if known:
        rows += [
            ("latency", f"{known.latency * 1e3:,.3f} ms"),
            ("no schedule is below", f"{known.lower_bound * 1e3:,.3f} ms ({known.bound or 'bound'})"),
            ("gap", f"{known.gap:.1%}"),
            ("status", known.status),
        ]
    counts = Counter(placement.device for placement in schedule.placements)
    rows += [(device, f"{count:,} operators") for device, count in sorted(counts.items())]
    rows.append(("transfers", f"{len(schedule.transfers):,}"))
    cells = "".join(f"<tr><th>{escape(name)}</th><td>{escape(value)}</td></tr>" for name, value in rows)
    return f"<table>{cells}</table>"
