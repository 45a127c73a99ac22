"""Parameters that leave a device after their last reader: memory, rules, warm runs, plans and the executor."""

from random import Random

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from schedule.cases import bus, device, graph, problem, schedule, topology
from schedule.reference import reference_run
from strategies import scheduled_problems
from thorough import examples
from tvm_sched.execution_plan import emit_plan
from tvm_sched.schedulers import solve
from tvm_sched_bench.testing.shapes_only import ShapesOnly
from tvm_sched_runtime.errors import InfeasibleError, ScheduleError
from tvm_sched_runtime.problem import Problem
from tvm_sched_runtime.runtime import ScheduledModule, make_module
from tvm_sched_runtime.schedule import (
    Schedule,
    ScheduleIndex,
    Transfer,
    memory_profile,
    moved_parameters,
    resident_parameters,
    simulate,
    verify,
    violations,
)

BYTES = 100


def chain(memory, operators=4, ns=50):
    """Each operator reads 100 bytes of its own, which take 100 ns to load, and 10 bytes of the one before."""
    tensors = {f"w{k}": BYTES for k in range(operators)} | {f"a{k}": 10 for k in range(operators)}
    steps = [(f"o{k}", f"w{k}" + (f" a{k - 1}" if k else ""), f"a{k}") for k in range(operators)]
    g = graph(tensors, steps, [f"a{operators - 1}"])
    return problem(g, topology(device("d0", "pcie", memory), buses=[bus("pcie")]), [[ns]] * operators)


def evicting(s, *names):
    """The schedule with the transfers of some parameters marked."""
    marked = tuple(msgspec.structs.replace(t, evict=t.tensor in names) for t in s.transfers)
    return msgspec.structs.replace(s, transfers=marked)


def test_memory_by_hand():
    """Loads end at 100 and 200 ns, kernels run from 100 to 150 and from 200 to 250; w0 goes at 150, w1 stays."""
    p = chain(1000, operators=2)
    s = evicting(schedule(p, ["o0 d0", "o1 d0"], ["load w0 d0", "load w1 d0"]), "w0")
    verify(p, s)
    assert memory_profile(p, s) == [[(0, 100), (100, 210), (150, 110), (200, 120), (250, 110)]]
    assert simulate(p, s).latency_ns == 250


def test_what_passes_through_goes_when_the_copy_has_left():
    g = graph({"w1": 100, "a": 10}, [("p", "w1", "a")])
    places = topology(device("d0", "b0"), device("d1", "b1"), buses=[bus("b0"), bus("b1")], peer_access=True)
    p = problem(g, places, [[None, 50]])
    s = schedule(p, ["p d1"], ["load w1 d0", "copy w1 d0 d1"])
    first = msgspec.structs.replace(s.transfers[0], evict=True)
    s = msgspec.structs.replace(s, transfers=(first, s.transfers[1]))
    assert memory_profile(p, s) == [[(0, 100), (200, 0)], [(100, 100), (200, 110), (250, 100)]]


def test_only_parameters_that_are_not_returned():
    g = graph({"w1": 100, "x": 10, "a": 10}, [("p", "w1 x", "a")], ["a", "w1"])
    p = problem(g, topology(device("d0", "pcie"), buses=[bus("pcie")]), [[50]])
    s = schedule(p, ["p d0"], ["load w1 d0", "load x d0"])
    for name, why in (("w1", "which the model returns"), ("x", "of kind 'input'")):
        (found,) = violations(p, evicting(s, name))
        assert (found.rule, found.device) == ("evict", "d0")
        assert why in found.message
    with pytest.raises(ScheduleError, match="evict is wrong"):
        Transfer("host_read", "d0", operator="p", evict=True)


def some_evicted(p, s, seed):
    """The schedule with a random half of its moved parameters marked on a random half of their devices."""
    random, kept = Random(seed), set(p.graph.outputs)
    kinds = {t.name: t.kind for t in p.graph.tensors}
    marked = tuple(
        msgspec.structs.replace(t, evict=random.random() < 0.5)
        if kinds.get(t.tensor) == "parameter" and t.tensor not in kept
        else t
        for t in s.transfers
    )
    return msgspec.structs.replace(s, transfers=marked)


@settings(max_examples=examples(150), deadline=None)
@given(scheduled_problems(max_operators=14, max_devices=4), st.integers(0, 1000))
def test_agrees_with_the_reference(pair, seed):
    p, whole = pair
    s = some_evicted(p, whole, seed)
    times, before = ScheduleIndex.of(p, s).times, ScheduleIndex.of(p, whole).times
    assert times.peak_memory.tolist() == reference_run(p, s).peak
    assert times.latency_ns == before.latency_ns
    assert (times.peak_memory <= before.peak_memory).all()
    assert Schedule.from_json(s.to_json()) == s
    assert ScheduleIndex.of(p, s).to_schedule().transfers == s.transfers


def test_what_is_evicted_does_not_remain():
    p = chain(1000)
    s = evicting(solve(p, method="pipelined"), "w1")
    assert moved_parameters(p, s) == ["w0", "w2", "w3"]
    assert resident_parameters(p, s, 1.0) == {"w0", "w2", "w3"}
    assert resident_parameters(p, s, ["w0", "w1"]) == {"w0"}
    assert simulate(p, s, resident=1.0).latency_ns == 100 + 3 * 50  # w1 arrives at 100 ns; o1, o2, o3 follow


def test_a_model_larger_than_the_memory_runs_on_one_device():
    """Two parameters and three activations are there at most: 220 bytes. The 50 ns of a kernel hide behind a load."""
    p = chain(220, operators=10)
    with pytest.raises(InfeasibleError, match="short of 800 bytes"):
        solve(p, method="single")
    with pytest.raises(InfeasibleError, match="short of 800 bytes"):
        solve(p, method="pipelined", options={"evict": False})
    s = solve(p, method="pipelined")
    assert s.certificate.latency_ns == 10 * BYTES + 50
    assert s.certificate.gap < 0.001
    assert all(t.evict for t in s.transfers)
    assert not any(t.evict for t in solve(chain(2000, operators=10), method="pipelined").transfers)
    with pytest.raises(InfeasibleError, match="short of 1 bytes"):
        solve(chain(219, operators=10), method="pipelined")


def test_exact_streams_where_nothing_else_fits():
    s = solve(chain(220, operators=10), method="anytime", options={"time_limit": 5})
    assert s.certificate.latency_ns == 10 * BYTES + 50


def plan_of(p, s):
    calls = ShapesOnly(p.graph)
    return emit_plan(p, s, calls, name="p", backend="emulated", functions={}, values=tuple(calls.parameters))


def test_the_executor_streams_within_the_memory():
    p = chain(64 * 8, operators=10, ns=90)  # buffers begin at multiples of 64 bytes
    tensors = tuple(msgspec.structs.replace(t, shape=(t.size,), dtype="uint8") for t in p.graph.tensors)
    p = Problem(msgspec.structs.replace(p.graph, tensors=tensors), p.topology, p.costs)
    s = solve(p, method="pipelined")
    plan = plan_of(p, s)
    assert plan["devices"][0]["arena_bytes"] <= 64 * 8
    module = ScheduledModule(make_module([plan], {}))
    module.configure(resident=1.0, trace=True, emulation_scale=1)
    inputs = [np.zeros(spec["shape"], spec["dtype"]) for spec in plan["arguments"]]
    for _ in range(2):  # the second run loads everything again
        module.run_times(*inputs)
        events = [event["event"] for event in module.timeline()["events"] if event["event"]]
        loads = sorted(event["name"] for event in events if event["kind"] == "load")
        assert loads == sorted(f"w{k}" for k in range(10))
