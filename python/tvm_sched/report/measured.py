"""Timelines of an artifact: what its plan promises, and what its last run did."""

from __future__ import annotations

from typing import Any

from ..files import convert
from ..schedule import Event, Timeline


def planned_timeline(plan: dict[str, Any], problem: str = "") -> Timeline:
    """The timeline that a plan (``docs/formats/plan.md``) promises.

    Each step starts when the one before it on its queue, and those that it waits for, have ended; so this is what
    `simulate` says of the schedule from which the plan was made.
    """
    ends: list[int] = []
    free: dict[int, int] = {}
    events = []
    for step in plan["steps"]:
        start = max([free.get(step["queue"], 0), *(ends[before] for before in step.get("waits", ()))])
        ends.append(start + step.get("duration_ns", 0))
        free[step["queue"]] = ends[-1]
        events += _events(step.get("event"), start, ends[-1])
    return _timeline("simulated", problem, events)


def measured_timeline(raw: dict[str, Any], problem: str = "") -> Timeline:
    """The timeline of the last run, of what `ScheduledModule.timeline` returns; emulated times in the plan's time."""
    events = [event for row in raw["events"] for event in _events(row["event"], row["start_ns"], row["end_ns"])]
    source = "emulated" if raw["backend"] == "emulated" else "measured"
    return _timeline(source, problem, events)


def _events(said: dict[str, Any] | None, start: int, end: int) -> list[Event]:
    """The event of a step; a step of which the plan says nothing (a copy to an output, say) is none."""
    if not said or "kind" not in said:
        return []
    return [convert({**said, "start_ns": start, "end_ns": max(start, end)}, Event, "event of a plan")]


def _timeline(source: Any, problem: str, events: list[Event]) -> Timeline:
    kernels = [event.end_ns for event in events if event.kind == "kernel"]
    return Timeline(source, problem, tuple(events), max(kernels, default=0))
