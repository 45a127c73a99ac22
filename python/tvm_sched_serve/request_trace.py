"""A span of the server's time as a trace that Perfetto opens: requests, runs, and the executor's kernels within them.

The format: "Trace Event Format", https://docs.google.com/document/d/1CvAClvFfyA5R-PhYUmn5OOQtYMH4h6I0nSsKchNAySU.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import msgspec

from .request_context import RequestContext, RunRecord

MAX_RECORDS = 100_000
"""Requests and kernels of one recording; what comes later is counted and left out."""
_REQUESTS = 1
"""Number of the process that shows the requests."""


class RequestTrace:
    """Collects what happens while it watches."""

    timelines = True

    def __init__(self) -> None:
        self._begin_ns = time.perf_counter_ns()
        self._requests: list[RequestContext] = []
        self._runs: list[RunRecord] = []
        self._kernels = 0
        self._left_out = 0

    def request(self, context: RequestContext) -> None:
        """Keep a request."""
        if len(self._requests) < MAX_RECORDS:
            self._requests.append(context)
        else:
            self._left_out += 1

    def run(self, record: RunRecord) -> None:
        """Keep a run."""
        if self._kernels < MAX_RECORDS:
            self._runs.append(record)
            self._kernels += 1 + len((record.timeline or {}).get("events", ()))
        else:
            self._left_out += 1

    def document(self) -> bytes:
        """Return the trace as JSON."""
        events = [*self._request_events(), *self._run_events()]
        other = {"made by": "tvm_sched", "requests": len(self._requests), "runs": len(self._runs)}
        if self._left_out:
            other["left out"] = self._left_out
        return msgspec.json.encode({"displayTimeUnit": "ms", "otherData": other, "traceEvents": events})

    def _at(self, nanoseconds: int) -> float:
        """Return microseconds from the beginning of the recording."""
        return (nanoseconds - self._begin_ns) / 1e3

    def _request_events(self) -> Iterator[dict[str, Any]]:
        yield _named(_REQUESTS, 0, "process_name", "requests")
        for number, each in enumerate(self._requests, 1):
            common = {"cat": "request", "id": number, "pid": _REQUESTS, "tid": 0}
            arguments: dict[str, Any] = {"request id": each.id, "protocol": each.protocol, "status": each.status}
            arguments |= {"model": each.model, "version": each.version} if each.model else {}
            arguments |= {"tokens": each.tokens} if each.tokens else {}
            arguments |= {"traceparent": each.parent} if each.parent else {}
            spans = [(each.id, each.arrived_ns, each.ended_ns, arguments)]
            spans += [(name, begin, end, {}) for name, begin, end in each.phases()]
            for name, begin, end, more in spans:
                yield {"name": name, "ph": "b", "ts": self._at(begin), "args": more, **common}
                if name != each.id:
                    yield {"name": name, "ph": "e", "ts": self._at(end), **common}
            yield {"name": each.id, "ph": "e", "ts": self._at(each.ended_ns), **common}

    def _run_events(self) -> Iterator[dict[str, Any]]:
        processes: dict[tuple[str, str], int] = {}
        tracks: dict[tuple[int, str, str], int] = {}
        for run in self._runs:
            model = run.model, run.version
            if model not in processes:
                processes[model] = _REQUESTS + 1 + len(processes)
                yield _named(processes[model], 0, "process_name", f"{run.model} version {run.version}")
            process = processes[model]
            for name, lane, begin, end, arguments in _slices(run):
                track = process, run.thread, lane
                if track not in tracks:
                    tracks[track] = len(tracks) + 1
                    yield _named(process, tracks[track], "thread_name", f"{run.thread} {lane}")
                yield {
                    "name": name, "ph": "X", "ts": self._at(begin), "dur": (end - begin) / 1e3, "pid": process,
                    "tid": tracks[track], "args": arguments,
                }  # fmt: skip


def _slices(run: RunRecord) -> Iterator[tuple[str, str, int, int, dict[str, Any]]]:
    """Yield name, lane, begin, end and arguments of a run, then of the executor's events within it."""
    yield "run", "runs", run.begin_ns, run.end_ns, {"requests": list(run.requests)}
    if run.timeline is None:
        return
    # The executor counts from its own start, and returns at once when it ends.
    start = max(run.begin_ns, run.end_ns - int(run.timeline["wall_ns"]))
    scale = float(run.timeline["scale"])
    for each in run.timeline["events"]:
        event = each.get("event")
        if not event:
            continue
        begin, end = (start + int(scale * each[name]) for name in ("start_ns", "end_ns"))
        for lane in event["lanes"]:
            yield event["name"], lane, begin, end, {"kind": event["kind"], "bytes": event.get("bytes", 0)}


def _named(process: int, thread: int, what: str, name: str) -> dict[str, Any]:
    return {"name": what, "ph": "M", "ts": 0, "pid": process, "tid": thread, "args": {"name": name}}
