"""Timelines in the Chrome trace format, which Perfetto (https://ui.perfetto.dev) and chrome://tracing open.

The format: "Trace Event Format", https://docs.google.com/document/d/1CvAClvFfyA5R-PhYUmn5OOQtYMH4h6I0nSsKchNAySU.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from typing import Any

import msgspec

from ..files import write_atomically
from ..problem import Problem
from ..schedule import Event, Schedule, Timeline
from ..schedule.simulate import memory_profile
from .figures import ordered_lanes

NAMES = {"simulated": "predicted", "emulated": "emulated", "measured": "measured"}
"""Name of the process that shows a timeline of each source."""


def write_trace(
    path: str | os.PathLike[str],
    timelines: Sequence[Timeline],
    problem: Problem | None = None,
    schedule: Schedule | None = None,
) -> None:
    """Write one trace of one or more timelines: a process for each, a thread for each lane, on one time axis.

    Parameters
    ----------
    path
        The file, replaced as a whole.
    timelines : sequence of Timeline
        Predicted and measured ones of one schedule overlay, as all start at time 0.
    problem : Problem, optional
        Gives kinds of operators and the order of lanes.
    schedule : Schedule, optional
        With the problem: adds submodels, and the memory of each device as counters.
    """
    events = [event for pid, timeline in enumerate(timelines, 1) for event in trace_events(pid, timeline, problem, schedule)]
    text = b",\n".join(map(msgspec.json.encode, events))
    other = msgspec.json.encode(_about(timelines, problem, schedule))
    write_atomically(path, b'{"displayTimeUnit":"ms","otherData":' + other + b',"traceEvents":[\n' + text + b"\n]}\n")


def trace_events(
    pid: int, timeline: Timeline, problem: Problem | None = None, schedule: Schedule | None = None
) -> Iterator[dict[str, Any]]:
    """Events of one timeline as the process ``pid``: metadata, complete events, counters."""
    lanes = ordered_lanes(problem.topology, [timeline]) if problem else list(timeline.lanes)
    name = NAMES[timeline.source]
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
            yield {"name": f"memory of {device.name}", "ph": "C", "ts": time / 1e3, "pid": pid, "tid": 0, "args": {"bytes": held}}


def _about(timelines: Sequence[Timeline], problem: Problem | None, schedule: Schedule | None) -> dict[str, Any]:
    about: dict[str, Any] = {"made by": "tvm_sched", "problem": timelines[0].problem if timelines else ""}
    about |= {f"{NAMES[timeline.source]} latency, ns": timeline.latency_ns for timeline in timelines}
    if problem:
        about |= {"model": problem.graph.name, "topology": problem.topology.name}
    if schedule:
        about["scheduler"] = schedule.scheduler
        if schedule.certificate:
            about |= {"lower bound, ns": schedule.certificate.lower_bound_ns, "bound": schedule.certificate.bound}
    return about
