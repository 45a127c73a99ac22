"""Figures of a schedule's timelines for tables and pages: busy time, bytes and counts by lane."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass

from tvm_sched_runtime.problem import Topology
from tvm_sched_runtime.schedule import Timeline


@dataclass(frozen=True)
class LaneFigures:
    """Figures of one lane."""

    lane: str
    events: int
    busy_ns: int
    """Sum of the events' times; events of one lane do not overlap."""
    bytes: int
    busy: float
    """``busy_ns`` as a fraction of the timeline's latency."""


def device_of_lane(lane: str) -> str:
    """Return the device of a kernel's lane: ``"gpu0"`` of ``"gpu0/1"``."""
    return lane.rsplit("/", 1)[0]


def ordered_lanes(topology: Topology, timelines: Iterable[Timeline]) -> list[str]:
    """Return the lanes in use: streams in the topology's order of devices, then channels in its order, then any others."""
    streams: set[str] = set()
    others: dict[str, None] = {}
    for timeline in timelines:
        for event in timeline.events:
            if event.kind == "kernel":
                streams.update(event.lanes)
            else:
                others.update(dict.fromkeys(event.lanes))
    devices = topology.device_id
    known = sorted(streams, key=lambda lane: (devices.get(device_of_lane(lane), len(devices)), lane))
    channels = [name for name in topology.channels if name in others]
    return [*known, *channels, *(name for name in others if name not in set(topology.channels) and name not in streams)]


def lane_figures(timeline: Timeline, lanes: Iterable[str]) -> list[LaneFigures]:
    """Return the figures of each of ``lanes``, in their order."""
    count: dict[str, int] = defaultdict(int)
    busy: dict[str, int] = defaultdict(int)
    size: dict[str, int] = defaultdict(int)
    for event in timeline.events:
        for lane in event.lanes:
            count[lane] += 1
            busy[lane] += event.duration_ns
            size[lane] += event.bytes
    span = max(timeline.latency_ns, 1)
    return [LaneFigures(lane, count[lane], busy[lane], size[lane], busy[lane] / span) for lane in lanes]


def time_by_kind(timeline: Timeline) -> dict[str, int]:
    """Return the nanoseconds spent in each kind of event: ``kernel``, ``load``, ``copy``, ``host_read``."""
    spent: dict[str, int] = defaultdict(int)
    for event in timeline.events:
        spent[event.kind] += event.duration_ns
    return dict(spent)
