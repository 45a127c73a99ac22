"""Buses that are shared fairly: by hand, and where nothing is shared as the simulator has it."""

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from schedule import cases
from thorough import examples
from tvm_sched.schedulers import solve
from tvm_sched_bench.testing import fair_latency, random_problem
from tvm_sched_runtime.errors import InfeasibleError, InputError
from tvm_sched_runtime.problem import Link
from tvm_sched_runtime.schedule import simulate


def two_on_a_bus():
    """Two operators with weights of 1000 and 500 bytes; a bus of a byte a nanosecond for both devices."""
    graph = cases.graph(
        {"w1": 1000, "w2": 500, "a": 10, "b": 1}, [("p", "w1", "a"), ("q", "a w2", "b")], outputs=("b",)
    )
    devices = cases.device("d0", "bus"), cases.device("d1", "bus")
    topology = cases.topology(*devices, buses=(cases.bus("bus"),), links=(Link(("d0", "d1"), 1e9),))
    return cases.problem(graph, topology, [[100, 100], [100, 100]])


def test_two_loads_at_once_each_take_twice_as_long():
    """In turns w1 is there after 1000; fairly w2 after 1000 and w1 after 1500. The copy of 10 follows p."""
    problem = two_on_a_bus()
    schedule = cases.schedule(problem, ["p d0", "q d1"], ["load w1 d0", "load w2 d1", "copy a d0 d1"])
    assert simulate(problem, schedule).latency_ns == 1600, "w2 at 1500, a at 1110"
    assert fair_latency(problem, schedule) * 1e9 == pytest.approx(1710), "w1 at 1500, p until 1600, a at 1610"


def test_a_direct_read_and_a_load_share_the_bus():
    """q reads its 500 bytes directly and computes for 20 more; w1 is loaded into d1 without a reader until q has ended."""
    graph = cases.graph(
        {"w1": 1000, "w2": 500, "a": 1, "b": 1}, [("p", "w2", "a"), ("q", "w1", "b")], outputs=("a", "b")
    )
    devices = cases.device("d0", "bus"), cases.device("d1", "bus")
    topology = cases.topology(*devices, buses=(cases.bus("bus"),), links=(Link(("d0", "d1"), 1e9),))
    problem = cases.problem(graph, topology, [[100, 100], [100, 100]], [[520, 520], [None, None]])
    schedule = cases.schedule(problem, ["p d0 direct", "q d1"], ["host_read p d0", "load w1 d1"])
    assert fair_latency(problem, schedule) * 1e9 == pytest.approx(1600), "the read until 1000, the load until 1500"
    alone = cases.schedule(problem, ["p d0 direct", "q d0"], ["host_read p d0", "load w1 d0"])
    assert fair_latency(problem, alone) * 1e9 == pytest.approx(1600)


@settings(max_examples=examples(30), deadline=None)
@given(seed=st.integers(0, 10**6), operators=st.integers(0, 10), name=st.sampled_from(["single", "heft", "pipelined"]))
def test_one_device_on_a_bus_of_its_own_is_as_the_simulator_has_it(seed, operators, name):
    problem = random_problem(seed, operators, 1, memory="generous")
    try:
        schedule = solve(problem, method=name)
    except InfeasibleError:
        return
    if any(transfer.evict or transfer.kind == "host_read" for transfer in schedule.transfers):
        return
    assert fair_latency(problem, schedule) * 1e9 == pytest.approx(simulate(problem, schedule).latency_ns)


def test_what_was_not_thought_of_is_refused():
    problem = two_on_a_bus()
    evicting = cases.schedule(problem, ["p d0", "q d0"], ["load w1 d0", "load w2 d0"])
    transfers = tuple(msgspec.structs.replace(t, evict=True) for t in evicting.transfers)
    with pytest.raises(InputError, match="without evictions"):
        fair_latency(problem, evicting.replace(transfers=transfers))
