"""Data for the page's script: timelines and memory as columns of numbers, with names in tables."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Sequence
from typing import Any

from tvm_sched_runtime.pipeline import PipelinePlan
from tvm_sched_runtime.pipeline.wiring import batch_of
from tvm_sched_runtime.problem import Problem
from tvm_sched_runtime.schedule import Event, Schedule, Timeline
from tvm_sched_runtime.schedule.simulator import memory_profile

from .figures import ordered_lanes
from .units import format_bytes

MOST_GROUPS = 8
"""Number of kinds of operators with a separate colour; the others share one."""

TRANSFERS = ("load", "copy", "host_read")

MOST_STEPS = 2000
"""Largest number of drawn steps of a device's memory; if there are more, each step is the peak of an interval."""


def chart_data(
    problem: Problem,
    schedule: Schedule,
    predicted: Timeline,
    others: Sequence[Timeline],
    resident: Collection[str] = (),
) -> dict[str, Any]:
    """Return one entry's data: ``lanes``, ``groups`` (colours of bars), ``timelines``, ``memory``, ``marks``."""
    timelines = [predicted, *others]
    lanes = ordered_lanes(problem.topology, timelines)
    kinds = {operator.name: operator.kind or "operator" for operator in problem.graph.operators}
    groups = _groups(kinds, predicted)
    submodels = {placement.operator: placement.submodel for placement in schedule.placements}
    certificate = schedule.certificate
    return {
        "lanes": lanes,
        "groups": [*groups, *TRANSFERS],
        "timelines": [_columns(timeline, lanes, _operators(kinds, groups, submodels)) for timeline in timelines],
        "memory": _memory(problem, schedule, predicted, resident),
        "submodels": len(set(submodels.values())),
        "latency": predicted.latency_ns,
        "bound": certificate.lower_bound_ns if certificate else None,
    }


def _groups(kinds: dict[str, str], timeline: Timeline) -> list[str]:
    """Return the kinds that take most time, then ``"other"`` if any are left."""
    spent: dict[str, int] = defaultdict(int)
    for event in timeline.events:
        if event.kind == "kernel":
            spent[kinds.get(event.name, "operator")] += event.duration_ns
    ranked = sorted(spent, key=lambda kind: (-spent[kind], kind))
    return ranked if len(ranked) <= MOST_GROUPS else [*ranked[: MOST_GROUPS - 1], "other kinds"]


def _operators(
    kinds: dict[str, str], groups: list[str], submodels: dict[str, int]
) -> Callable[[Event], tuple[str, int, int]]:
    """Return the kind, group and submodel (-1: none) of each operator's events."""
    group_id = {group: n for n, group in enumerate(groups)}

    def describe(event: Event) -> tuple[str, int, int]:
        submodel = submodels.get(event.name, -1) if event.kind in ("kernel", "host_read") else -1
        if event.kind != "kernel":
            return event.kind, len(groups) + TRANSFERS.index(event.kind), submodel
        kind = kinds.get(event.name, "operator")
        return kind, group_id.get(kind, len(groups) - 1), submodel

    return describe


def pipeline_chart(problem: Problem, plan: PipelinePlan, timelines: Sequence[Timeline]) -> dict[str, Any]:
    """Return the data of a pipeline's chart: stages from top to bottom, one colour for each batch."""
    place = {f"{stage.device}/0": s for s, stage in enumerate(plan.stages)}
    lanes = sorted(ordered_lanes(problem.topology, timelines), key=lambda lane: place.get(lane, len(place)))
    events = [event for timeline in timelines for event in timeline.events]
    batches = 1 + max((batch_of(event.name) for event in events), default=0)
    colours = min(batches, MOST_GROUPS)

    def describe(event: Event) -> tuple[str, int, int]:
        return event.kind, batch_of(event.name) % colours, -1

    return {
        "lanes": lanes,
        "groups": [f"batches {g}, {g + colours}, …" if batches > colours else f"batch {g}" for g in range(colours)],
        "timelines": [_columns(timeline, lanes, describe) for timeline in timelines],
        "memory": [],
        "submodels": 0,
        "latency": timelines[0].latency_ns,
        "bound": None,
    }


def _columns(timeline: Timeline, lanes: list[str], describe: Callable[[Event], tuple[str, int, int]]) -> dict[str, Any]:
    """Return one row for each lane of each event; names and kinds are positions in tables."""
    lane_id = {lane: n for n, lane in enumerate(lanes)}
    names, kind_names = _Table(), _Table()
    columns: dict[str, list[int]] = {
        key: [] for key in ("lane", "start", "time", "bytes", "name", "kind", "group", "submodel")
    }
    for event in timeline.events:
        kind, group, submodel = describe(event)
        row = (event.start_ns, event.duration_ns, event.bytes, names[event.name], kind_names[kind], group, submodel)
        for lane in event.lanes:
            for key, value in zip(columns, (lane_id[lane], *row), strict=True):
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


def _memory(
    problem: Problem, schedule: Schedule, predicted: Timeline, resident: Collection[str]
) -> list[dict[str, Any]]:
    """Return the steps of each device's memory: from ``times[i]`` on it holds ``sizes[i]`` bytes."""
    lines = []
    profile = memory_profile(problem, schedule, problem.parameters & set(resident))
    for steps, device in zip(profile, problem.topology.devices, strict=True):
        times = [0, *(time for time, _ in steps), max(predicted.latency_ns, steps[-1][0] if steps else 0)]
        sizes = [0, *(held for _, held in steps), steps[-1][1] if steps else 0]
        peak = format_bytes(max(sizes))
        times, sizes = _envelope(times, sizes)
        lines.append(
            {"device": device.name, "times": times, "sizes": sizes, "peak": peak, "limit": format_bytes(device.memory)}
        )
    return lines


def _envelope(times: list[int], sizes: list[int]) -> tuple[list[int], list[int]]:
    """Reduce steps to about `MOST_STEPS` that are nowhere lower and have the same maximum."""
    if len(times) <= MOST_STEPS:
        return times, sizes
    width = max(1, -(-times[-1] // MOST_STEPS))
    highest: dict[int, int] = {}
    held = 0
    for time, size in zip(times, sizes, strict=True):
        part = time // width
        highest[part] = max(highest.get(part, held), size)
        held = size
    return [*(part * width for part in highest), times[-1]], [*highest.values(), sizes[-1]]
