"""Rich tables of schedules and topologies, as commands print them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec
from rich import box
from rich.cells import cell_len
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from tvm_sched_runtime.problem import Topology
from tvm_sched_runtime.schedule import Schedule, Timeline

from ..cost_model.uncertainty import Useful
from ..docstrings import OptionDescription
from .connections import legend, matrix, part_counts
from .figures import lane_figures, ordered_lanes
from .summaries import LatencySample, ModelEnd
from .units import format_bytes, format_ns, format_percent, format_rate, format_spread, format_time

_TEXT_WIDTH = 8
"""Columns that a longer text gets at least."""


def table(head: Sequence[str], rows: Iterable[Sequence[str | Text]], title: str = "", text_columns: int = 1) -> Table:
    """Return a table; columns after the first ``text_columns`` are aligned right, cells of `Text` keep their styles.

    In a narrow terminal heads break, and long texts; numbers stay whole.
    """
    cells = [[cell if isinstance(cell, Text) else Text.from_markup(escape(cell)) for cell in row] for row in rows]
    view = Table(title=title or None, title_justify="left", title_style="bold", box=box.SIMPLE_HEAD, pad_edge=False)
    for n, name in enumerate(head):
        text = n < text_columns
        widest = max((row[n].cell_len for row in cells if n < len(row)), default=0)
        least = min(widest, _TEXT_WIDTH) if text else widest
        fixed = least >= max(widest, cell_len(name))
        view.add_column(
            name, justify="left" if text else "right", overflow="fold", min_width=least or None, no_wrap=fixed
        )
    for row in cells:
        view.add_row(*row)
    return view


def certificate_table(
    schedule: Schedule, measured: Sequence[Timeline] = (), interval: tuple[int, int] | None = None
) -> Table:
    """Return latency, bound and gap of one schedule; ``interval``: nanoseconds between which 80 % of its draws lie."""
    certificate = schedule.certificate
    rows = [("scheduler", schedule.scheduler or "-")]
    if certificate:
        rows.append(("latency", format_spread(certificate.latency_ns, interval)))
        rows.append(("lower bound", f"{format_ns(certificate.lower_bound_ns)} at these prices ({certificate.bound})"))
        rows.append(("gap", format_percent(certificate.gap)))
        rows.append(("status", certificate.status))
        rows += [
            (f"request {k}, weight {r.weight:g}: {len(r.resident)} parameters resident",
             f"{format_ns(r.latency_ns)} (bound {format_ns(r.lower_bound_ns)})")
            for k, r in enumerate(certificate.requests, 1)
        ]  # fmt: skip
    streams = {device: len(of) for device, of in _streams_of(schedule).items()}
    if any(count > 1 for count in streams.values()):
        rows.append(("streams", ", ".join(f"{device} {count}" for device, count in streams.items())))
    rows += [(f"{timeline.source} latency", format_ns(timeline.latency_ns)) for timeline in measured]
    rows.append(("found in", format_time(schedule.seconds)))
    view = table(("", ""), rows)
    view.show_header = False
    return view


def _streams_of(schedule: Schedule) -> dict[str, set[int]]:
    """Return the streams of the operators by device."""
    streams: dict[str, set[int]] = {}
    for placement in schedule.placements:
        streams.setdefault(placement.device, set()).add(placement.stream)
    return streams


def lanes_table(topology: Topology, timeline: Timeline) -> Table:
    """Return the use of each stream and channel."""
    figures = lane_figures(timeline, ordered_lanes(topology, [timeline]))
    rows = [
        (f.lane, f"{f.events:,}", format_ns(f.busy_ns), format_percent(f.busy), format_bytes(f.bytes)) for f in figures
    ]
    return table(("lane", "events", "busy", "of latency", "bytes"), rows)


def models_table(models: Sequence[ModelEnd], in_turn: bool) -> Table:
    """Return when each of several models ends, and its time or its slowdown."""
    if in_turn:
        ended = [(each.model, format_ns(each.latency_ns), format_ns(each.takes_ns or 0)) for each in models]
        return table(("part", "ends", "takes"), ended)
    rows = [
        (each.model, format_ns(each.latency_ns), "-" if each.alone_ns is None else format_ns(each.alone_ns),
         "-" if each.slowdown is None else f"{each.slowdown:.2f}×")
        for each in models
    ]  # fmt: skip
    return table(("model", "latency", "alone", "times as long"), rows)


def sample_table(sample: LatencySample) -> Table:
    """Return the percentiles of an uncertain latency."""
    rows = [(name, format_ns(ns)) for name, ns in sample.percentiles_ns.items()]
    return table(("latency", f"{sample.samples} samples"), rows)


def useful_table(useful: Sequence[Useful]) -> Table:
    """Return the kernels whose measurement would make the latency more certain."""
    rows = [
        (each.signature.partition("|")[0], str(len(each.operators)), each.operators[0], each.device,
         format_ns(each.uncertain_ns), "far from the data" if each.far else "")
        for each in useful
    ]  # fmt: skip
    head = ("most useful to measure", "operators", "such as", "on", "uncertain by", "")
    return table(head, rows, text_columns=1)


def matrix_table(topology: Topology) -> Table:
    """Return the connection of each pair of memories with its bandwidth, like ``nvidia-smi topo -m``."""
    names, cells = matrix(topology)
    view = table(("", *names), [(name, *map(str, row)) for name, row in zip(names, cells, strict=True)])
    view.caption = escape("; ".join(f"{word} {text}" for word, text in legend(cells).items()))
    view.caption_justify = "left"
    return view


def presets_table(topologies: Iterable[Topology]) -> Table:
    """Return the presets, their devices' models and the counts of their parts."""
    rows = [
        (m.name, ", ".join(dict.fromkeys(d.model or d.kind for d in m.devices)), *map(str, part_counts(m).values()))
        for m in topologies
    ]
    rows.append(("cpuN", "logical devices on this machine's cores, for any N from 1", "N", "0", "", ""))
    return table(("name", "models", "devices", "buses", "links", "switches"), rows, text_columns=2)


def options_table(options: Iterable[OptionDescription]) -> Table:
    """Return the options of a method."""
    rows = [(f"  {o.name}", o.type, msgspec.json.encode(o.default).decode(), o.description) for o in options]
    return table(("  option", "type", "default", ""), rows, text_columns=4)


def devices_table(topology: Topology) -> Table:
    """Return the devices with their figures."""
    rows = [
        (
            device.name,
            device.model or device.kind,
            device.bus or "host memory",
            format_bytes(device.memory),
            format_rate(device.memory_bandwidth),
            f"{device.peak_flops['float32'] / 1e12:.3g} Tflop/s",
            format_time(device.launch_overhead),
        )
        for device in topology.devices
    ]
    return table(("device", "model", "bus", "memory", "its bandwidth", "float32", "launch"), rows, text_columns=3)


def buses_table(topology: Topology) -> Table:
    """Return the buses, links, switches and storage with their figures."""
    rows = [
        (
            bus.name,
            "bus",
            ", ".join(d.name for d in topology.devices if d.bus == bus.name),
            *_connection(bus.bandwidth, bus.duplex, bus.latency),
        )
        for bus in topology.buses
    ]
    rows += [
        (" - ".join(link.devices), f"link, {link.ways} way{'s' * (link.ways > 1)}", ", ".join(link.devices),
         *_connection(link.bandwidth, link.duplex, link.latency))
        for link in topology.links
    ]  # fmt: skip
    rows += [
        (switch.name, "switch", ", ".join(switch.devices), *_connection(switch.bandwidth, True, switch.latency))
        for switch in topology.switches
    ]
    if disk := topology.storage:
        rows.append((disk.name, "storage", "host memory", *_connection(disk.bandwidth, False, disk.latency)))
    return table(("name", "what", "joins", "bandwidth", "directions", "latency"), rows, text_columns=3)


def _connection(bandwidth: float, duplex: bool, latency: float) -> tuple[str, str, str]:
    return format_rate(bandwidth), "both at once" if duplex else "one at a time", format_time(latency)
