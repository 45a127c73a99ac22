"""Timelines in the Chrome trace format, which Perfetto (https://ui.perfetto.dev) and chrome://tracing open.

The format: "Trace Event Format", https://docs.google.com/document/d/1CvAClvFfyA5R-PhYUmn5OOQtYMH4h6I0nSsKchNAySU.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import msgspec

from tvm_sched_runtime.files import write_atomically
from tvm_sched_runtime.problem import Problem
from tvm_sched_runtime.schedule import Event, Schedule, Timeline
from tvm_sched_runtime.schedule.simulator import memory_profile

from .figures import ordered_lanes
from .measurement import StartStage

NAMES = {"simulated": "predicted", "emulated": "emulated", "measured": "measured"}
"""Name of the process that shows a timeline of each source."""


class TracePart(NamedTuple):
    """A timeline in a trace, with its problem and schedule if known."""

    timeline: Timeline
    problem: Problem | None = None
    """Problem, for kinds of operators and the order of lanes."""
    schedule: Schedule | None = None
    """Schedule; with the problem it adds submodels, and the memory of each device to a simulated timeline."""
    title: str = ""
    """Prefix of the process's name."""


def write_trace(
    path: str | os.PathLike[str],
    timelines: Sequence[Timeline],
    problem: Problem | None = None,
    schedule: Schedule | None = None,
    *,
    start: Sequence[StartStage] = (),
) -> None:
    """Write one trace of the timelines of one schedule, which overlay as all start at time 0; see `write_parts`."""
    write_parts(path, [TracePart(timeline, problem, schedule) for timeline in timelines], start)


def write_parts(path: str | os.PathLike[str], parts: Sequence[TracePart], start: Sequence[StartStage] = ()) -> None:
    """Write one trace: a process for each part, a thread for each of its lanes, one time axis.

    Parameters
    ----------
    path
        The file, which is replaced atomically.
    start
        Stages from the start of the process to its first output, which become a process of their own. Its time 0 is the
        start of the process.
    """
    events = [event for pid, part in enumerate(parts, 1) for event in trace_events(pid, part)]
    events += _start_events(len(parts) + 1, start)
    text = b",\n".join(map(msgspec.json.encode, events))
    other = msgspec.json.encode(_trace_metadata(parts))
    write_atomically(path, b'{"displayTimeUnit":"ms","otherData":' + other + b',"traceEvents":[\n' + text + b"\n]}\n")


def trace_events(pid: int, part: TracePart) -> Iterator[dict[str, Any]]:
    """Yield the events of one part as the process ``pid``: metadata, complete events, counters."""
    timeline, problem, schedule, title = part
    lanes = ordered_lanes(problem.topology, [timeline]) if problem else list(timeline.lanes)
    name = f"{title}, {NAMES[timeline.source]}" if title else NAMES[timeline.source]
    yield _metadata(pid, 0, "process_name", name=name)
    yield _metadata(pid, 0, "process_sort_index", sort_index=pid)
    for tid, lane in enumerate(lanes, 1):
        yield _metadata(pid, tid, "thread_name", name=lane)
        yield _metadata(pid, tid, "thread_sort_index", sort_index=tid)
    thread = {lane: tid for tid, lane in enumerate(lanes, 1)}
    kinds = {operator.name: operator.kind for operator in problem.graph.operators} if problem else {}
    submodels = {p.operator: p.submodel for p in schedule.placements} if schedule else {}
    for event in timeline.events:
        arguments = _arguments(event, kinds, submodels)
        for lane in event.lanes:
            yield {
                "name": event.name,
                "cat": event.kind,
                "ph": "X",
                "ts": event.start_ns / 1e3,
                "dur": event.duration_ns / 1e3,
                "pid": pid,
                "tid": thread[lane],
                "args": arguments,
            }
    if problem and schedule and timeline.source == "simulated":
        yield from _memory(pid, problem, schedule)


def _start_events(pid: int, stages: Sequence[StartStage]) -> Iterator[dict[str, Any]]:
    """Yield the stages of a start, each in a thread of its name, since they may overlap."""
    if not stages:
        return
    yield _metadata(pid, 0, "process_name", name="start of the process")
    yield _metadata(pid, 0, "process_sort_index", sort_index=pid)
    thread = {name: tid for tid, name in enumerate(dict.fromkeys(stage.name for stage in stages), 1)}
    for name, tid in thread.items():
        yield _metadata(pid, tid, "thread_name", name=name)
        yield _metadata(pid, tid, "thread_sort_index", sort_index=tid)
    for stage in stages:
        arguments: dict[str, Any] = {"in the predicted latency": stage.model}
        if stage.bytes:
            arguments["bytes"] = stage.bytes
            if stage.end_s > stage.start_s:
                arguments["GB/s"] = round(stage.bytes / (stage.end_s - stage.start_s) * 1e-9, 3)
        yield {
            "name": stage.name,
            "cat": "start",
            "ph": "X",
            "ts": stage.start_s * 1e6,
            "dur": (stage.end_s - stage.start_s) * 1e6,
            "pid": pid,
            "tid": thread[stage.name],
            "args": arguments,
        }


def _metadata(pid: int, tid: int, what: str, **arguments: Any) -> dict[str, Any]:
    return {"name": what, "ph": "M", "ts": 0, "pid": pid, "tid": tid, "args": arguments}


def _arguments(event: Event, kinds: dict[str, str], submodels: dict[str, int]) -> dict[str, Any]:
    arguments: dict[str, Any] = {"kind": event.kind, "bytes": event.bytes}
    if kinds.get(event.name) and event.kind in ("kernel", "host_read"):
        arguments["operator kind"] = kinds[event.name]
    if event.name in submodels and event.kind in ("kernel", "host_read"):
        arguments["submodel"] = submodels[event.name]
    if event.kind != "kernel":
        arguments["over"] = ", ".join(event.lanes)
        if event.duration_ns:
            arguments["GB/s"] = round(event.bytes / event.duration_ns, 3)
    return arguments


def _memory(pid: int, problem: Problem, schedule: Schedule) -> Iterator[dict[str, Any]]:
    for device, steps in zip(problem.topology.devices, memory_profile(problem, schedule), strict=True):
        for time, held in steps:
            yield {
                "name": f"memory of {device.name}",
                "ph": "C",
                "ts": time / 1e3,
                "pid": pid,
                "tid": 0,
                "args": {"bytes": held},
            }


def _trace_metadata(parts: Sequence[TracePart]) -> dict[str, Any]:
    """Return the model, topology, scheduler and latencies, for the viewer's page of metadata."""
    about: dict[str, Any] = {"made by": "tvm_sched"}
    for timeline, problem, schedule, title in parts:
        prefix = f"{title}, " if title else ""
        about[f"{prefix}{NAMES[timeline.source]} latency, ns"] = timeline.latency_ns
        about[f"{prefix}problem"] = timeline.problem
        if problem:
            about |= {f"{prefix}model": problem.graph.name, f"{prefix}topology": problem.topology.name}
        if schedule:
            about[f"{prefix}scheduler"] = schedule.scheduler
        if schedule and schedule.certificate:
            about[f"{prefix}lower bound, ns"] = schedule.certificate.lower_bound_ns
    return about
