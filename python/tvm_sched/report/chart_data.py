"""What the page's script draws: timelines and memory as columns of numbers, with names in tables."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import Any

from ..problem import Problem
from ..schedule import Schedule, Timeline
from ..schedule.simulate import memory_profile
from .figures import ordered_lanes
from .units import format_bytes

MOST_GROUPS = 8
"""Kinds of operators with a colour of their own; the others share one."""

TRANSFERS = ("load", "copy", "host_read")


def chart_data(problem: Problem, schedule: Schedule, predicted: Timeline, others: Sequence[Timeline]) -> dict[str, Any]:
    """Data of one entry: ``lanes``, ``groups`` (what bars are coloured by), ``timelines``, ``memory``, ``marks``."""
    timelines = [predicted, *others]
    lanes = ordered_lanes(problem.topology, timelines)
    kinds = {operator.name: operator.kind or "operator" for operator in problem.graph.operators}
    groups = _groups(kinds, predicted)
    submodels = {placement.operator: placement.submodel for placement in schedule.placements}
    certificate = schedule.certificate
    return {
        "lanes": lanes,
        "groups": [*groups, *TRANSFERS],
        "timelines": [_columns(timeline, lanes, kinds, groups, submodels) for timeline in timelines],
        "memory": _memory(problem, schedule, predicted),
        "submodels": len(set(submodels.values())),
        "latency": predicted.latency_ns,
        "bound": certificate.lower_bound_ns if certificate else None,
    }


def _groups(kinds: dict[str, str], timeline: Timeline) -> list[str]:
    """The kinds that take most time, then ``"other"`` if any are left."""
    spent: dict[str, int] = defaultdict(int)
    for event in timeline.events:
        if event.kind == "kernel":
            spent[kinds.get(event.name, "operator")] += event.duration_ns
    ranked = sorted(spent, key=lambda kind: (-spent[kind], kind))
    return ranked if len(ranked) <= MOST_GROUPS else [*ranked[: MOST_GROUPS - 1], "other kinds"]


def _columns(
    timeline: Timeline, lanes: list[str], kinds: dict[str, str], groups: list[str], submodels: dict[str, int]
) -> dict[str, Any]:
    """One row for each lane of each event; names and kinds are positions in tables."""
    lane_id = {lane: n for n, lane in enumerate(lanes)}
    group_id = {group: n for n, group in enumerate(groups)}
    names, kind_names = _Table(), _Table()
    columns: dict[str, list[int]] = {
        key: [] for key in ("lane", "start", "time", "bytes", "name", "kind", "group", "submodel")
    }
    for event in timeline.events:
        kernel = event.kind == "kernel"
        kind = kinds.get(event.name, "operator") if kernel else event.kind
        group = group_id.get(kind, len(groups) - 1) if kernel else len(groups) + TRANSFERS.index(event.kind)
        row = (event.start_ns, event.duration_ns, event.bytes, names[event.name], kind_names[kind], group)
        submodel = submodels.get(event.name, -1) if event.kind in ("kernel", "host_read") else -1
        for lane in event.lanes:
            for key, value in zip(columns, (lane_id[lane], *row, submodel), strict=True):
                columns[key].append(value)
    return {
        "source": timeline.source,
        "latency": timeline.latency_ns,
        "names": list(names),
        "kinds": list(kind_names),
        **columns,
    }


class _Table(dict[str, int]):
    """Numbers strings in order of first use."""

    def __missing__(self, key: str) -> int:
        self[key] = len(self)
        return self[key]


def _memory(problem: Problem, schedule: Schedule, predicted: Timeline) -> list[dict[str, Any]]:
    """Steps of each device's memory: from ``times[i]`` on it holds ``sizes[i]`` bytes."""
    lines = []
    for steps, device in zip(memory_profile(problem, schedule), problem.topology.devices, strict=True):
        times = [0, *(time for time, _ in steps), max(predicted.latency_ns, steps[-1][0] if steps else 0)]
        sizes = [0, *(held for _, held in steps), steps[-1][1] if steps else 0]
        peak = format_bytes(max(sizes))
        lines.append(
            {"device": device.name, "times": times, "sizes": sizes, "peak": peak, "limit": format_bytes(device.memory)}
        )
    return lines
