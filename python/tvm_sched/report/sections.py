"""Parts of the report without scripts: tables, figures and drawings as HTML text."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from typing import Any, NamedTuple

import msgspec

from tvm_sched_runtime.pipeline.pipeline_plan import PipelineCertificate
from tvm_sched_runtime.problem import Problem, Topology
from tvm_sched_runtime.schedule import Certificate, Schedule, Timeline
from tvm_sched_runtime.schedule.simulator import memory_profile

from .connections import Connection, legend, matrix
from .drawing import topology_svg
from .figures import device_of_lane, lane_figures, ordered_lanes
from .units import between_text, format_bytes, format_ns, format_percent, format_rate, format_time

NONE = '<span class="none">–</span>'


class View(NamedTuple):
    """An entry of the report: its problem, the simulated timeline, and the other timelines.

    If the problem has variants, ``problem`` and ``schedule`` are those of the choice; ``posed`` is the problem with
    variants. ``resident`` are the parameters on the devices when the run begins.
    """

    title: str
    schedule: Schedule
    problem: Problem
    predicted: Timeline
    others: tuple[Timeline, ...]
    posed: Problem
    resident: frozenset[str]
    interval: tuple[int, int] | None
    """Nanoseconds between which 80 % of the latencies lie by the errors of the prices, if these have any."""


def table(head: Sequence[str], rows: Sequence[Sequence[str]], style: str = "", numbers: int = 1) -> str:
    """Return a table whose columns from ``numbers`` on are aligned right; cells are HTML."""

    def cells(tag: str, values: Sequence[str]) -> str:
        return "".join(
            f"<{tag}{' class=number' if n >= numbers else ''}>{value}</{tag}>" for n, value in enumerate(values)
        )

    body = "".join(f"<tr>{cells('td', row)}</tr>" for row in rows)
    top = f"<thead><tr>{cells('th', head)}</tr></thead>"
    return f'<div class="scroll"><table class="{style}">{top}<tbody>{body}</tbody></table></div>'


def summary_table(views: Sequence[View]) -> str:
    """Return a row for each schedule: latencies, bound, gap; speed-ups are over the first of the same `_case`, if any."""
    head = [
        "Schedule",
        "Scheduler",
        "Latency",
        "Interval",
        "Measured",
        "Lower bound at these prices",
        "Gap",
        "Bound by",
        "Speed-up",
        "Found in",
        "",
    ]
    first: dict[Any, int] = {}
    longest: dict[Any, int] = {}
    compared = len(views) > len({_case(view) for view in views})
    if not compared:
        head.remove("Speed-up")
    for view in views:
        longest[_case(view)] = max(longest.get(_case(view), 1), view.predicted.latency_ns)
    rows = []
    for n, view in enumerate(views):
        latency, certificate = view.predicted.latency_ns, view.schedule.certificate
        base = first.setdefault(_case(view), latency)
        rows.append(
            [
                f'<a href="#entry-{n}" data-entry="{n}">{escape(view.title)}</a>',
                escape(view.schedule.scheduler) or NONE,
                f"<b>{format_ns(latency)}</b>",
                between_text(view.interval) if view.interval else NONE,
                " / ".join(format_ns(timeline.latency_ns) for timeline in view.others) or NONE,
                format_ns(certificate.lower_bound_ns) if certificate else NONE,
                format_percent(certificate.gap) if certificate else NONE,
                escape(certificate.bound) if certificate else NONE,
                *([f"{base / latency:.2f}×" if latency else NONE] if compared else ()),
                format_time(view.schedule.seconds) if view.schedule.seconds else NONE,
                _bar(latency, certificate.lower_bound_ns if certificate else 0, longest[_case(view)]),
            ]
        )
    return table(head, rows, "summary", numbers=2)


def most_telling(views: Sequence[View]) -> int:
    """Return the entry to open first: the one with the largest speed-up over the first of its case."""
    first: dict[Any, int] = {}
    latencies = [max(view.predicted.latency_ns, 1) for view in views]
    speedups = [first.setdefault(_case(v), ns) / ns for v, ns in zip(views, latencies, strict=True)]
    return speedups.index(max(speedups))


def _case(view: View) -> tuple[Any, ...]:
    """Return a key that is equal for comparable schedules: model, machine, inputs and resident parameters.

    The problem's digest is no key: a compiled model has the problem of the alternatives that its schedule chose.
    """
    graph = view.posed.graph
    inputs = ((t.name, t.shape, t.size) for t in graph.tensors if t.kind == "input")
    return graph.name, view.posed.topology.name, tuple(sorted(inputs)), view.resident


def _bar(latency: int, bound: int, longest: int) -> str:
    """Return the latency as a bar; its dark part is the lower bound."""
    title = f"lower bound {format_ns(bound)} of {format_ns(latency)}"
    return (
        f'<span class="bar" title="{title}"><i style="width:{100 * latency / longest:.2f}%"></i>'
        f'<b style="width:{100 * bound / longest:.2f}%"></b></span>'
    )


def entry_section(n: int, view: View) -> str:
    """Return the section of one schedule: figures, places of its charts, tables of devices and channels, options."""
    problem, schedule = view.problem, view.schedule
    return f"""<section class="entry" id="entry-{n}" data-entry="{n}">
<h2>{escape(view.title)} <small>{escape(problem.graph.name)} on {escape(problem.topology.name)}</small></h2>
{_cards(view)}
<div class="tools">
{chart_tools(_colour_choice(view))}
</div>
{timeline_chart(f"Timeline of {view.title}")}
<div class="columns">
<div><h3>Devices</h3>{_devices(view)}
<h3>Scheduler</h3>{_options(schedule)}</div>
<div><h3>Buses and links</h3>{_channels(problem, view.predicted)}</div>
</div>
{_useful(problem, schedule)}
</section>"""


def _colour_choice(view: View) -> str:
    many = len({placement.submodel for placement in view.schedule.placements}) > 1
    submodel = '<option value="submodel">submodel</option>' if many else ""
    return f'<label>Colour by <select class="colours"><option value="kind">operator kind</option>{submodel}</select></label>'


def chart_tools(choice: str = "") -> str:
    """Return the buttons of a timeline's chart, and a hint on how to move in it."""
    return f"""<span class="buttons"><button data-zoom="0.5" title="Zoom in" aria-label="Zoom in">+</button>
 <button data-zoom="2" title="Zoom out" aria-label="Zoom out">−</button>
 <button data-zoom="0" title="Show all">Fit</button></span>
 {choice}
 <label><input type="checkbox" class="patterns"> Patterns</label>
 <span class="hint">Drag to zoom, Shift-drag or arrow keys to move, Ctrl-wheel or + and − to zoom,
 double-click or 0 to see all.</span>"""


def timeline_chart(label: str) -> str:
    """Return the places of a timeline's chart and table of events, which the page's script fills."""
    head = "".join(f"<th>{name}</th>" for name in ("Event", "Kind", "On", "Start", "Time", "Bytes", "Source"))
    return f"""<div class="gantt" tabindex="0" role="group" aria-label="{escape(label)}"></div>
<details class="events"><summary>Events in view as a table</summary><p class="hint"></p>
<div class="scroll" tabindex="0" role="region" aria-label="Events in view">
<table><thead><tr>{head}</tr></thead><tbody></tbody></table></div></details>"""


def _useful(problem: Problem, schedule: Schedule) -> str:
    """Return the kernels whose measurement helps most; empty if the latencies have no error intervals."""
    from ..cost_model.uncertainty import most_useful

    rows = [
        [escape(each.signature.partition("|")[0]), escape(each.operators[0]), escape(each.device),
         str(len(each.operators)), format_ns(each.uncertain_ns), "far from the data" if each.far else NONE]
        for each in most_useful(problem, schedule)
    ]  # fmt: skip
    if not rows:
        return ""
    head = ["Kernel", "Such as", "On", "Operators", "Uncertain by", ""]
    return f"<h3>Most useful to measure</h3>{table(head, rows, numbers=3)}"


def _cards(view: View) -> str:
    between = f", {between_text(view.interval)}" if view.interval else ""
    shown = [("Predicted latency", format_ns(view.predicted.latency_ns), f"simulated{between}")]
    shown += [
        (f"{timeline.source.capitalize()} latency", format_ns(timeline.latency_ns), _against(timeline, view.predicted))
        for timeline in view.others
    ]
    return cards(
        [*shown, *certificate_cards(view.schedule.certificate, view.schedule.seconds, view.schedule.scheduler)]
    )


def certificate_cards(
    certificate: Certificate | PipelineCertificate | None, seconds: float, method: str
) -> list[tuple[str, str, str]]:
    """Return the cards of the certificate and of the search time."""
    shown = []
    if certificate:
        shown.append(
            ("Lower bound", format_ns(certificate.lower_bound_ns), f"at these prices: {escape(certificate.bound)}")
        )
        shown.append(("Gap", format_percent(certificate.gap), "at most this share could be saved"))
        shown.append(("Status", escape(certificate.status), "how the search ended"))
    if seconds:
        shown.append(("Found in", format_time(seconds), escape(method)))
    return shown


def cards(shown: Sequence[tuple[str, str, str]]) -> str:
    """Return the main figures, each with name, value and note."""
    each = (
        f'<div class="card"><span>{name}</span><b>{value}</b><small>{note}</small></div>' for name, value, note in shown
    )
    return f'<div class="cards">{"".join(each)}</div>'


def _against(timeline: Timeline, predicted: Timeline) -> str:
    if not predicted.latency_ns:
        return ""
    difference = timeline.latency_ns / predicted.latency_ns - 1
    return (
        f"{difference:+.1%} of the prediction" if abs(difference) < 9.995 else f"{difference + 1:.0f}× the prediction"
    )


def _devices(view: View) -> str:
    problem, schedule, predicted = view.problem, view.schedule, view.predicted
    profiles = memory_profile(problem, schedule, view.resident & problem.parameters)
    lanes = [
        lane
        for lane in ordered_lanes(problem.topology, [predicted])
        if device_of_lane(lane) in problem.topology.device_id
    ]
    busy: dict[str, int] = {}
    for figures in lane_figures(predicted, lanes):
        name = device_of_lane(figures.lane)
        busy[name] = busy.get(name, 0) + figures.busy_ns
    count = {device.name: 0 for device in problem.topology.devices}
    for placement in schedule.placements:
        count[placement.device] += 1
    rows = [
        [
            escape(device.name),
            f"{count[device.name]:,}",
            format_ns(busy.get(device.name, 0)),
            format_percent(busy.get(device.name, 0) / max(predicted.latency_ns, 1)),
            format_bytes(max((held for _, held in profile), default=0)),
            format_bytes(device.memory),
        ]
        for device, profile in zip(problem.topology.devices, profiles, strict=True)
    ]
    return table(["Device", "Operators", "Busy", "of latency", "Peak memory", "Memory"], rows)


def _channels(problem: Problem, predicted: Timeline) -> str:
    used = set(problem.topology.channels)
    lanes = [lane for lane in ordered_lanes(problem.topology, [predicted]) if lane in used]
    rows = [
        [escape(f.lane), f"{f.events:,}", format_bytes(f.bytes), format_ns(f.busy_ns), format_percent(f.busy)]
        for f in lane_figures(predicted, lanes)
    ]
    if not rows:
        return "<p>Nothing travels.</p>"
    return table(["Channel", "Transfers", "Bytes", "Busy", "of latency"], rows)


def _options(schedule: Schedule) -> str:
    rows = [["scheduler", escape(schedule.scheduler) or NONE]]
    rows += [[escape(name), escape(msgspec.json.encode(value).decode())] for name, value in schedule.options.items()]
    return table(["Option", "Value"], rows)


def _two_lines(connection: Connection) -> str:
    """Return a cell of the matrix in two lines, narrow enough for eight devices."""
    rate = "" if connection.bandwidth is None else f"<small>{escape(format_rate(connection.bandwidth))}</small>"
    return escape(connection.by) + rate


def topology_section(topology: Topology) -> str:
    """Return the drawing and the matrix of one topology."""
    names, cells = matrix(topology)
    rows = [
        [
            f"<b>{escape(name)}</b>",
            *(f'<span title="{escape(", ".join(c.channels))}">{_two_lines(c)}</span>' for c in row),
        ]
        for name, row in zip(names, cells, strict=True)
    ]
    words = " · ".join(f"<b>{escape(word)}</b> {escape(text)}" for word, text in legend(cells).items())
    source = f'<p class="hint">Source of the figures: {escape(topology.source)}</p>' if topology.source else ""
    fastest = max(device.memory_bandwidth for device in topology.devices)
    return f"""<section class="topology-of"><h2>Topology {escape(topology.name)}
<small>{len(topology.devices)} devices, memory up to {format_rate(fastest)}</small></h2>
<div class="columns"><div class="scroll">{topology_svg(topology)}</div>
<div>{table(["from, to", *map(escape, names)], rows, "matrix")}
<p class="hint">{words}</p>{source}</div></div></section>"""
