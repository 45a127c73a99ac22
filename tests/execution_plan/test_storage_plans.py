"""Plans that read parameters from a file: steps and waits, and an executor that reads ahead."""

import json
import os

import msgspec
import numpy as np
import pytest
import tvm_ffi
from hypothesis import given, settings
from hypothesis import strategies as st

from execution_plan.residency_cases import as_bytes, plan_of
from thorough import examples
from tvm_sched.execution_plan import emit_plan
from tvm_sched.report.measurement import planned_timeline
from tvm_sched_bench.testing import random_problem, random_schedule
from tvm_sched_bench.testing.shapes_only import ShapesOnly
from tvm_sched_runtime.errors import InputError
from tvm_sched_runtime.problem import Bus, Costs, Device, Operator, OpGraph, Problem, Storage, Switch, Tensor, Topology
from tvm_sched_runtime.runtime import ScheduledModule, make_module, write_parameters
from tvm_sched_runtime.schedule import Placement, Schedule, Transfer, moved_parameters, resident_parameters, simulate

SIZES = {"v": 3 << 20, "w": 4096 * 3, "table": 64}


def pair(devices=1):
    """Adds v to the input, then w; of ``table``, which is not loaded, the second reads 64 bytes directly."""
    machine = tuple(Device(f"cpu{d}", 1 << 30, 1e12, {"float32": 1e12}, kind="cpu") for d in range(devices))
    topology = Topology("cold", machine, storage=Storage("disk", 1e9, queue_depth=3))
    tensors = (
        Tensor("x", 64, "input", (64,), "uint8"),
        *(Tensor(name, size, "parameter", (size,), "uint8") for name, size in SIZES.items()),
        *(Tensor(name, 64, "activation", (64,), "uint8") for name in ("a", "b", "y")),
    )
    operators = (
        Operator("first", "", ("x", "v"), ("a",)),
        Operator("second", "", ("a", "w"), ("b",)),
        Operator("third", "", ("b", "table"), ("y",)),
    )
    direct = np.full((3, devices), np.iinfo(np.int64).max)
    direct[2] = 1000
    return Problem(OpGraph("pair", operators, tensors, ("y",)), topology, Costs(np.full((3, devices), 100), direct))


def plan(problem, backend="cpu", where=("cpu0", "cpu0", "cpu0"), more=()):
    placements = tuple(
        Placement(name, device, direct_host_access=name == "third")
        for name, device in zip(("first", "second", "third"), where, strict=True)
    )
    transfers = (*(Transfer("load", where[0], name) for name in ("v", "w")), *more)
    schedule = Schedule(problem.digest, placements, (*transfers, Transfer("host_read", where[2], operator="third")))
    calls = ShapesOnly(problem.graph)
    functions = {operator.name: f"tvm_sched.test_storage.{operator.name}" for operator in problem.graph.operators}
    return emit_plan(
        problem, schedule, calls, name="p", backend=backend, functions=functions, values=tuple(calls.parameters)
    )


def test_a_load_is_a_read_in_place():
    made = plan(pair())
    assert made["queue_depth"] == 3
    assert [(step["kind"], step["name"]) for step in made["steps"] if step["kind"] == "read"] == [
        ("read", "v"),
        ("read", "w"),
    ]
    steps = {(step["kind"], step["name"]): step for step in made["steps"]}
    sources = [buffer["source"]["kind"] for buffer in made["buffers"]]
    for name in ("v", "w"):
        (place,) = steps["read", name]["inputs"]
        assert sources[place] == "parameter"
        assert steps["read", name]["outputs"] == []
    assert sources.count("parameter") == 3, "no parameter has a place in an arena"
    assert sources.count("output") == 1, "the last kernel writes where the caller reads"
    position = {(step["kind"], step["name"]): k for k, step in enumerate(made["steps"])}
    assert position["read", "v"] in steps["kernel", "first"]["waits"]
    assert position["read", "w"] in steps["kernel", "second"]["waits"]
    assert [spec["name"] for spec in made["parameters"]] == ["v", "w", "table"], "in the order of the file"


def test_a_device_may_read_what_another_has_loaded():
    problem = pair(2)
    topology = msgspec.structs.replace(problem.topology, switches=(Switch("memory", ("cpu0", "cpu1"), 1e9),))
    problem = Problem(problem.graph, topology, problem.costs)
    moved = (Transfer("copy", "cpu1", "w", "cpu0"), Transfer("copy", "cpu1", "a", "cpu0"))
    made = plan(problem, where=("cpu0", "cpu1", "cpu1"), more=moved)
    steps = {(step["kind"], step["name"]): step for step in made["steps"]}
    assert steps["host_read", "w"]["duration_ns"] == SIZES["w"], "as long as the model says, but nothing is copied"
    names = [(step["kind"], step["name"]) for step in made["steps"]]
    assert {names[k] for k in steps["kernel", "second"]["waits"]} == {("host_read", "w"), ("copy", "a")}


@settings(max_examples=examples(40), deadline=None)
@given(seed=st.integers(0, 100_000), style=st.sampled_from(("storage", "disk")))
def test_queues_and_waits_give_the_simulators_times(seed, style):
    problem = as_bytes(random_problem(seed, operators=4 + seed % 20, devices=1 + seed % 3, style=style))
    schedule = random_schedule(problem, seed)
    made = plan_of(problem, schedule)
    assert planned_timeline(made).latency_ns == simulate(problem, schedule).latency_ns
    for resident in (0.5, 1.0, moved_parameters(problem, schedule)[::2]):
        left_out = resident_parameters(problem, schedule, resident)
        end, free, latency = {}, {}, 0
        for k, step in enumerate(made["steps"]):
            moves = step.get("event", {}).get("kind") in ("load", "copy")
            if moves and step["name"] in left_out:
                continue
            start = max([free.get(step["queue"], 0), *(end.get(w, 0) for w in step["waits"])])
            end[k] = free[step["queue"]] = start + step["duration_ns"]
            if step["kind"] == "kernel":
                latency = max(latency, end[k])
        assert latency == simulate(problem, schedule, resident=resident).latency_ns


VALUES = {name: np.arange(size, dtype=np.uint8) * 3 + 1 for name, size in SIZES.items()}


@pytest.fixture
def module(tmp_path):
    """A module over a file of the parameters, and the names of the kernels in the order of their calls."""
    called = []

    def kernel(name):
        def add(*tensors):
            called.append(name)
            one, other, result = (np.from_dlpack(tensor) for tensor in tensors)
            result[:] = one + other[:64]

        return add

    for name in ("first", "second", "third"):
        tvm_ffi.register_global_func(f"tvm_sched.test_storage.{name}", kernel(name), override=True)
    write_parameters(tmp_path / "p.safetensors", VALUES, ["v", "w"])
    return ScheduledModule(make_module([plan(pair())], {})), tmp_path / "p.safetensors", called


def test_the_executor_reads_the_file_and_computes(module):
    loaded, file, called = module
    loaded.load_parameters(file)
    loaded.configure(trace=True)
    given = np.arange(64, dtype=np.uint8)
    expected = given + sum(value[:64] for value in VALUES.values()).astype(np.uint8)
    (result,) = loaded.run(given)
    np.testing.assert_array_equal(result, expected)
    assert called == ["first", "second", "third"]
    events = loaded.timeline()["events"]
    ends = {(event["event"]["kind"], event["event"]["name"]): event["end_ns"] for event in events}
    starts = {(event["event"]["kind"], event["event"]["name"]): event["start_ns"] for event in events}
    assert starts["kernel", "first"] >= ends["load", "v"]
    assert starts["kernel", "second"] >= ends["load", "w"]
    stages = [stage for stage in loaded.stages() if stage["name"] == "read parameters"]
    assert stages[-1]["bytes"] == SIZES["v"] + SIZES["w"]
    assert stages[-1]["model"] == "counted"
    assert {"open parameters", "first bytes", "reads of the first run"} <= {stage["name"] for stage in loaded.stages()}
    for _ in range(2):  # what was read stays
        np.testing.assert_array_equal(loaded.run(given)[0], expected)
    loaded.configure(resident=1.0)
    loaded.run(given)
    loaded.run(given)
    assert "load" not in {event["event"]["kind"] for event in loaded.timeline()["events"]}


def test_values_that_are_in_no_file_are_not_waited_for(module):
    loaded, file, _ = module
    for name, value in VALUES.items():
        loaded.set_parameter(name, value)
    given = np.zeros(64, np.uint8)
    expected = sum(value[:64] for value in VALUES.values()).astype(np.uint8)
    np.testing.assert_array_equal(loaded.run(given)[0], expected)
    loaded.load_parameters(file)
    loaded.set_parameter("w", np.zeros(SIZES["w"], np.uint8))
    np.testing.assert_array_equal(loaded.run(given)[0], (expected - VALUES["w"][:64]).astype(np.uint8))


def test_a_forked_child_reads_by_itself(module):
    loaded, file, _ = module
    loaded.load_parameters(file)
    child = os.fork()
    if child == 0:
        (result,) = loaded.run(np.zeros(64, np.uint8))
        right = result[:] == sum(value[:64] for value in VALUES.values()).astype(np.uint8)
        os._exit(0 if right.all() else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_an_emulated_plan_takes_the_models_time():
    problem = pair()
    loaded = ScheduledModule(make_module([plan(problem, backend="emulated")], {}))
    loaded.configure(times_only=True, emulation_scale=1)
    assert loaded.run_times(np.zeros(64, np.uint8)) >= planned_timeline(plan(problem)).latency_ns * 1e-9


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"outputs": [0]}, "a read has one input, a parameter, and no output"),
        ({"inputs": []}, "a read has one input, a parameter, and no output"),
    ],
)
def test_the_reader_checks_reads(change, message):
    made = plan(pair())
    next(step for step in made["steps"] if step["kind"] == "read").update(change)
    with pytest.raises((InputError, ValueError), match=message):
        make_module([json.loads(json.dumps(made))], {})


def test_emulated_gpus_execute_the_reads_of_the_plan(module):
    """Two GPUs on buses of two bytes a nanosecond take turns on a disk of one; the file has the order of the loads."""
    buses = tuple(Bus(f"pcie{d}", 2e9) for d in range(2))
    gpus = tuple(Device(f"gpu{d}", 1 << 30, 1e12, {"float32": 1e12}, bus=f"pcie{d}") for d in range(2))
    topology = Topology("cold", gpus, buses, storage=Storage("disk", 1e9))
    problem = Problem(pair().graph, topology, Costs(np.full((3, 2), 100)))
    placements = tuple(
        Placement(name, device) for name, device in (("first", "gpu0"), ("second", "gpu1"), ("third", "gpu1"))
    )
    loads = (("gpu0", "x"), ("gpu0", "v"), ("gpu1", "w"), ("gpu1", "table"))
    moves = (*(Transfer("load", *load) for load in loads), Transfer("copy", "gpu1", "a", "gpu0"))
    schedule = Schedule(problem.digest, placements, moves)
    calls = ShapesOnly(problem.graph)
    functions = {operator.name: f"tvm_sched.test_storage.{operator.name}" for operator in problem.graph.operators}
    made = emit_plan(
        problem, schedule, calls, name="p", backend="emulated", functions=functions, values=tuple(calls.parameters)
    )
    assert [spec["name"] for spec in made["parameters"]] == ["v", "w", "table"], "in the order of the file"
    _, file, called = module
    loaded = ScheduledModule(make_module([made], {}))
    loaded.load_parameters(file)
    loaded.configure(trace=True)
    given = np.arange(64, dtype=np.uint8)
    expected = given + sum(VALUES[name][:64] for name in ("v", "w", "table"))
    np.testing.assert_array_equal(loaded.run(given)[0], expected)
    assert called == ["first", "second", "third"]
    timeline = loaded.timeline()
    times = {
        (event["event"]["kind"], event["event"]["name"]): (event["start_ns"], event["end_ns"])
        for event in timeline["events"]
        if event.get("event")
    }
    ends = np.cumsum([64, SIZES["v"], SIZES["w"], 64]).tolist()  # a byte a nanosecond, one after another
    assert [times["load", name][1] for _, name in loads] == ends
    assert times["kernel", "first"] == (ends[1], ends[1] + 100), "while the disk reads w"
    arrived = ends[3] + 32  # the 64 bytes of a come over gpu1's bus, behind its two loads
    assert times["kernel", "second"] == (arrived, arrived + 100)
    assert timeline["latency_ns"] == simulate(problem, schedule).latency_ns
