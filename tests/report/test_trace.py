"""The trace obeys the rules of the Chrome trace format that Perfetto reads."""

import json
from itertools import pairwise

import msgspec
import pytest

from tvm_sched.report.trace import Part, write_parts, write_trace
from tvm_sched.schedule.simulator import simulate

PHASES = {"X": {"name", "cat", "ts", "dur", "pid", "tid", "args"}, "M": {"name", "ts", "pid", "tid", "args"}}
PHASES["C"] = PHASES["M"]


@pytest.fixture
def trace(problem, exact, tmp_path):
    timeline = simulate(problem, exact)
    real = msgspec.structs.replace(timeline, source="measured")
    write_trace(tmp_path / "t.json", [timeline, real], problem, exact)
    return json.loads((tmp_path / "t.json").read_text())


def test_every_event_has_the_fields_of_its_phase(trace):
    assert trace["displayTimeUnit"] in ("ms", "ns")
    for event in trace["traceEvents"]:
        assert set(event) - {"ph"} == PHASES[event["ph"]]
        assert event["ts"] >= 0
        assert isinstance(event["pid"], int)
        assert isinstance(event["tid"], int)
        if event["ph"] == "X":
            assert event["dur"] >= 0
        if event["ph"] == "C":
            assert all(isinstance(value, int) for value in event["args"].values())


def test_a_process_a_timeline_and_a_thread_a_lane(trace, problem, exact):
    timeline = simulate(problem, exact)
    named = [event for event in trace["traceEvents"] if event["ph"] == "M"]
    processes = {event["pid"]: event["args"]["name"] for event in named if event["name"] == "process_name"}
    assert processes == {1: "predicted", 2: "measured"}
    for pid in processes:
        threads = [e["args"]["name"] for e in named if e["name"] == "thread_name" and e["pid"] == pid]
        assert sorted(threads) == sorted(timeline.lanes)


def test_events_are_those_of_the_timeline_in_microseconds(trace, problem, exact):
    timeline = simulate(problem, exact)
    drawn = [event for event in trace["traceEvents"] if event["ph"] == "X" and event["pid"] == 1]
    expected = [(event, lane) for event in timeline.events for lane in event.lanes]
    assert len(drawn) == len(expected)
    for mark, (event, _) in zip(drawn, expected, strict=True):
        assert (mark["name"], mark["cat"], mark["args"]["bytes"]) == (event.name, event.kind, event.bytes)
        assert mark["ts"] * 1000 == pytest.approx(event.start_ns)
        assert mark["dur"] * 1000 == pytest.approx(event.duration_ns, abs=1e-6)


def test_slices_of_a_thread_do_not_overlap(trace):
    """Perfetto drops complete events of one thread that overlap without nesting."""
    rows = {}
    for event in trace["traceEvents"]:
        if event["ph"] == "X":
            rows.setdefault((event["pid"], event["tid"]), []).append((event["ts"], event["ts"] + event["dur"]))
    for spans in rows.values():
        spans.sort()
        for (_, end), (start, _) in pairwise(spans):
            assert start >= end - 1e-6


def test_parts_have_titles(problem, single, exact, tmp_path):
    parts = [Part(simulate(problem, s), problem, s, s.scheduler) for s in (single, exact)]
    write_parts(tmp_path / "t.json", parts)
    events = json.loads((tmp_path / "t.json").read_text())["traceEvents"]
    names = [event["args"]["name"] for event in events if event["name"] == "process_name"]
    assert names == ["single, predicted", "anytime, predicted"]


def test_a_timeline_alone(problem, single, tmp_path):
    write_trace(tmp_path / "t.json", [simulate(problem, single)])
    assert any(event["ph"] == "X" for event in json.loads((tmp_path / "t.json").read_text())["traceEvents"])
