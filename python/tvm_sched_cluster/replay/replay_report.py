"""The report of replays: figures of the policies, and charts over time; one HTML file that needs no network."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from html import escape

from tvm_sched.report.page import write_frame
from tvm_sched.report.sections import NONE, table

from .replay_results import FIGURES, PodReplays, Replays

_COLOURS = ("#2563c9", "#c0392b", "#2a8a57", "#9a6a00", "#7b3fb5", "#0e7c86", "#8a3b5c")
_WIDTH, _HEIGHT, _LEFT, _BOTTOM = 900, 240, 60, 28
_FIELDS = {"GPUs used": "used", "Fragmentation": "fragmentation", "Seconds without service": "unavailable"}
Points = Sequence[tuple[float, float]]


def write_replay_report(path: str | os.PathLike[str], replays: Replays) -> None:
    """Write the figures of each policy, and charts of each one's first run."""
    runs = {each.policy: each.runs[0] for each in replays.policies}
    rows = [[escape(each.policy), *each.cells(NONE)] for each in replays.policies]
    head = ["Policy", *(name[0].upper() + name[1:] for name in FIGURES)]
    classes = sorted({name for run in runs.values() for name in run.services})
    per_class = [
        [escape(name), *(_part(run.services, name) for run in runs.values())] for name in classes
    ]  # fmt: skip
    accepted = {
        name: [(w.end, w.accepted / w.requests) for w in run.windows if w.requests] for name, run in runs.items()
    }
    running: dict[str, Points] = {name: [(w.end, float(w.running)) for w in run.windows] for name, run in runs.items()}
    first = next(iter(runs.values()))
    running["bound"] = [(w.end, w.bound) for w in first.windows if w.bound is not None]

    def over_time(field: str) -> dict[str, Points]:
        return {name: [(w.end, float(getattr(w, field))) for w in run.windows] for name, run in runs.items()}

    main = "".join(
        (
            f"<section><h2>Policies</h2>{table(head, rows)}</section>",
            _section("Requests accepted in each window", accepted),
            _section("Services that run, and the most that any policy can run", running),
            *(_section(title, over_time(field)) for title, field in _FIELDS.items()),
            f"<section><h2>Accepted by service, %</h2>{table(['Service', *map(escape, runs)], per_class)}</section>",
        )
    )
    write_frame(
        path,
        f"Replay on {replays.cluster}",
        subtitle=f"{replays.gpus:,} GPUs; requests: {escape(replays.requests)}; {first.requests:,} in the first run",
        main=main,
        details={"bound": "linear programs over mixes, for any policy, even one that knows what comes"},
        data={},
        scripts=[],
    )


def write_pod_report(path: str | os.PathLike[str], replays: PodReplays) -> None:
    """Write the figures of each policy on pods, and the GPUs allocated by those asked for, in each one's first run."""
    rows = [
        [
            escape(each.policy),
            each.allocated_at_100.text(100, 2),
            each.allocated.text(100, 2),
            each.bound.text(100, 2) if each.bound else NONE,
            each.decision_ms.text(1, 2),
        ]
        for each in replays.policies
    ]
    head = ["Policy", "GPUs allocated at 100 %, %", "At the end, %", "Bound, %", "Decision, ms"]
    lines = {each.policy: each.runs[0].curve for each in replays.policies}
    title = "GPUs allocated, by the GPUs that the pods asked for"
    write_frame(
        path,
        f"Pods on {replays.nodes:,} nodes",
        subtitle=f"{replays.gpus:,} GPUs; pods: {escape(replays.requests)}",
        main=f"<section><h2>Policies</h2>{table(head, rows)}</section>"
        f"<section><h2>{title}</h2>{line_chart(title, lines, unit='of all GPUs', scale=1)}</section>",
        details={"bound": "a linear program over kinds of pods and of nodes, for any policy"},
        data={},
        scripts=[],
    )


def _part(services: Mapping[str, object], name: str) -> str:
    figures = services.get(name)
    return NONE if figures is None else f"{100 * figures.accepted / max(figures.requests, 1):.1f}"  # type: ignore[attr-defined]


def _section(title: str, series: Mapping[str, Points]) -> str:
    return f"<section><h2>{escape(title)}</h2>{line_chart(title, series)}</section>"


def line_chart(title: str, series: Mapping[str, Points], unit: str = "days", scale: float = 86400) -> str:
    """Return a drawing of lines, by default over days, with a legend; `bound` is dashed."""
    shown = {name: points for name, points in series.items() if points}
    every = [point for points in shown.values() for point in points]
    if not every:
        return ""
    longest = max(x for x, _ in every) or 1.0
    highest = max(y for _, y in every) or 1.0

    def at(x: float, y: float) -> str:
        return (
            f"{_LEFT + x / longest * (_WIDTH - _LEFT - 10):.1f},{10 + (1 - y / highest) * (_HEIGHT - _BOTTOM - 10):.1f}"
        )

    lines, legend = [], []
    for n, (name, points) in enumerate(shown.items()):
        colour = "currentColor" if name == "bound" else _COLOURS[n % len(_COLOURS)]
        dashed = ' stroke-dasharray="6 4"' if name == "bound" else ""
        path = " ".join(at(x, y) for x, y in points)
        lines.append(f'<polyline fill="none" stroke="{colour}" stroke-width="2"{dashed} points="{path}"/>')
        legend.append(f'<span><svg width="24" height="8"><line x1="0" x2="24" y1="4" y2="4" stroke="{colour}" '
                      f'stroke-width="2"{dashed}/></svg> {escape(name)}</span>')  # fmt: skip
    marks = "".join(
        f'<text x="{_LEFT - 6}" y="{float(at(0, highest * part).split(",")[1]) + 4:.1f}" text-anchor="end" '
        f'font-size="12" fill="currentColor">{highest * part:.3g}</text>'
        for part in (0, 0.5, 1)
    ) + "".join(
        f'<text x="{at(longest * part, 0).split(",")[0]}" y="{_HEIGHT - 8}" text-anchor="{anchor}" font-size="12" '
        f'fill="currentColor">{longest * part / scale:.3g} {unit}</text>'
        for part, anchor in ((0, "start"), (0.5, "middle"), (1, "end"))
    )
    return (
        f'<svg viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img" aria-label="{escape(title)}" style="max-width:100%">'
        f"{''.join(lines)}{marks}</svg><p class='hint'>{' &nbsp; '.join(legend)}</p>"
    )
