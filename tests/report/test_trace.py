"""The trace obeys the rules of the Chrome trace format that Perfetto reads."""

import json
import threading
from itertools import pairwise

import msgspec
import numpy as np
import pytest
import tvm_ffi

from tvm_sched.execution_plan import emit_plan
from tvm_sched.report.measurement import StartStage, measured_timeline
from tvm_sched.report.trace import TracePart, write_parts, write_trace
from tvm_sched_bench.testing.shapes_only import ShapesOnly
from tvm_sched_runtime.problem import Concurrency, Costs, Device, Operator, OpGraph, Problem, Tensor, Topology
from tvm_sched_runtime.runtime import ScheduledModule, make_module
from tvm_sched_runtime.schedule import Placement, Schedule
from tvm_sched_runtime.schedule.simulator import simulate

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


def test_stages_of_a_start_are_a_process_of_their_own(problem, exact, tmp_path):
    stages = [
        StartStage("process", 0.0, 0.25, 0, "not counted"),
        StartStage("read parameters", 0.25, 0.5, 10**9, "counted"),
        StartStage("first run", 0.375, 0.75, 0, "partly"),
    ]
    write_trace(tmp_path / "t.json", [simulate(problem, exact)], problem, exact, start=stages)
    events = json.loads((tmp_path / "t.json").read_text())["traceEvents"]
    (pid,) = (e["pid"] for e in events if e["name"] == "process_name" and e["args"]["name"] == "start of the process")
    threads = {e["tid"]: e["args"]["name"] for e in events if e["name"] == "thread_name" and e["pid"] == pid}
    drawn = [e for e in events if e["ph"] == "X" and e["pid"] == pid]
    assert [(threads[e["tid"]], e["ts"], e["dur"]) for e in drawn] == [
        ("process", 0, 250_000), ("read parameters", 250_000, 250_000), ("first run", 375_000, 375_000)
    ]  # fmt: skip
    assert drawn[1]["args"] == {"in the predicted latency": "counted", "bytes": 10**9, "GB/s": 4.0}


def test_parts_have_titles(problem, single, exact, tmp_path):
    parts = [TracePart(simulate(problem, s), problem, s, s.scheduler) for s in (single, exact)]
    write_parts(tmp_path / "t.json", parts)
    events = json.loads((tmp_path / "t.json").read_text())["traceEvents"]
    names = [event["args"]["name"] for event in events if event["name"] == "process_name"]
    assert names == ["single, predicted", "anytime, predicted"]


def test_a_timeline_alone(problem, single, tmp_path):
    write_trace(tmp_path / "t.json", [simulate(problem, single)])
    assert any(event["ph"] == "X" for event in json.loads((tmp_path / "t.json").read_text())["traceEvents"])


@pytest.mark.parametrize(("backend", "kind"), [("cpu", "cpu"), ("emulated", "cuda")])
def test_each_stream_of_a_run_has_a_line(tmp_path, backend, kind):
    """Two operators on two streams of one device ran at once: each in a thread of the trace that is named for its stream."""
    tensors = tuple(Tensor(n, 64, "input" if n == "x" else "activation", (64,), "uint8") for n in ("x", "y0", "y1"))
    operators = tuple(Operator(f"o{n}", "k", ("x",), (f"y{n}",)) for n in range(2))
    device = Device("gpu0", 1 << 20, 1e9, {"float32": 1e9}, kind=kind)
    costs = Costs([[10**7]] * 2, concurrency=Concurrency(np.full((2, 1, 1), 0.5)))
    problem = Problem(OpGraph("g", operators, tensors, ("y0", "y1")), Topology("one", (device,)), costs)
    schedule = Schedule(problem.digest, tuple(Placement(f"o{n}", "gpu0", stream=n) for n in range(2)))
    meet = threading.Barrier(2)
    for operator in operators:
        tvm_ffi.register_global_func(
            operator.name, lambda source, target: meet.wait(timeout=20) and None, override=True
        )
    values = ShapesOnly(problem.graph)
    plan = emit_plan(problem, schedule, values, name="p", backend=backend, functions={}, values=())
    module = ScheduledModule(make_module([plan], {}))
    module.configure(trace=True)
    module.run(np.zeros(64, dtype="uint8")) if backend == "cpu" else module.run_times(np.zeros(64, dtype="uint8"))
    ran = measured_timeline(module.timeline(), problem.digest)
    write_parts(
        tmp_path / "t.json",
        [TracePart(simulate(problem, schedule), problem, schedule), TracePart(ran, problem, schedule)],
    )
    events = json.loads((tmp_path / "t.json").read_text())["traceEvents"]
    for pid in (1, 2):
        line = {e["tid"]: e["args"]["name"] for e in events if e["name"] == "thread_name" and e["pid"] == pid}
        kernels = {e["name"]: e for e in events if e["ph"] == "X" and e["pid"] == pid}
        assert {name: line[e["tid"]] for name, e in kernels.items()} == {"o0": "gpu0/0", "o1": "gpu0/1"}
        a, b = kernels.values()
        if pid == 1 or backend == "cpu":  # there they wait for each other; emulated ones may be late by any time
            assert max(a["ts"], b["ts"]) < min(a["ts"] + a["dur"], b["ts"] + b["dur"]), "at once"
