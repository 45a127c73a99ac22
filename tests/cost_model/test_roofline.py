"""The roofline model, checked by hand and against the rules of a problem."""

import random

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from tvm_sched.cost_model import roofline
from tvm_sched.cost_model.roofline_model import memory_ns
from tvm_sched_bench.testing import random_graph, random_topology
from tvm_sched_runtime.problem import FORBIDDEN, Bus, Device, Operator, OpGraph, Problem, Tensor, Topology

GPU = Device("gpu", 1 << 40, 1e9, {"float32": 1e9, "float16": 4e9}, launch_overhead=1e-6, bus="pcie")
CPU = Device("cpu", 1 << 40, 1e8, {"float32": 1e8}, kind="cpu")
MACHINE = Topology("t", (GPU, CPU), (Bus("pcie", 1e8, 5e-6),))


def one_operator(flops=0, x=0, w=0, y=0, dtype="float32", inputs=("x", "w")):
    tensors = (Tensor("x", x, "input"), Tensor("w", w, "parameter"), Tensor("y", y, dtype=dtype))
    return OpGraph("g", (Operator("o", "k", inputs, ("y",), flops),), tensors, ("y",))


def nanoseconds(graph, topology=MACHINE):
    costs = roofline(graph, topology)
    return costs.operator_ns[0].tolist(), costs.direct_ns[0].tolist()


def test_bound_by_arithmetic():
    assert nanoseconds(one_operator(flops=10_000, w=100)) == ([1_000 + 10_000, 100_000], [1_000 + 10_000, FORBIDDEN])


def test_bound_by_memory():
    on_device, direct = nanoseconds(one_operator(flops=1, x=1_000, w=3_000, y=2_000))
    assert on_device == [1_000 + 6_000, 60_000]
    assert direct == [1_000 + 5_000 + 40_000, FORBIDDEN]  # the bus: 5 us and 4,000 bytes at 100 MB/s


def test_the_memory_alone_takes_its_bytes():
    graph = one_operator(flops=10**9, x=1_000, w=3_000, y=2_000)
    assert [memory_ns(graph, MACHINE, {"o": name}) for name in ("gpu", "cpu")] == [6_000, 60_000]


def test_devices_read_their_memory_at_the_same_time():
    """Two operators of 3,000 bytes each, then one that reads 4,000 of theirs and writes nothing to speak of."""
    tensors = (
        Tensor("x", 1_000, "input"), Tensor("y", 1_000, "input"), Tensor("a", 2_000, "activation"),
        Tensor("b", 2_000, "activation"), Tensor("z", 0, "activation"),
    )  # fmt: skip
    operators = (
        Operator("o", "k", ("x",), ("a",)), Operator("p", "k", ("y",), ("b",)), Operator("q", "k", ("a", "b"), ("z",)),
    )  # fmt: skip
    graph = OpGraph("g", operators, tensors, ("z",))
    assert memory_ns(graph, MACHINE, dict.fromkeys("opq", "gpu")) == 10_000, "one after the other"
    assert memory_ns(graph, MACHINE, {"o": "gpu", "p": "cpu", "q": "gpu"}) == 30_000 + 4_000, "the slower path"


def test_direct_host_access_keeps_other_bytes_in_memory():
    assert nanoseconds(one_operator(w=100, y=900_000))[1][0] == 1_000 + 900_000


def test_peak_of_the_output_dtype():
    assert nanoseconds(one_operator(flops=10**6, dtype="float16"))[0] == [1_000 + 250_000, 10_000_000]
    assert nanoseconds(one_operator(flops=10**6, dtype="int8"))[0][0] == 1_000 + 1_000_000


def test_an_input_that_stands_twice_is_read_once():
    assert nanoseconds(one_operator(x=1_000, inputs=("x", "x"))) == nanoseconds(one_operator(x=1_000, inputs=("x",)))


def test_no_direct_host_access_without_host_tensors():
    assert nanoseconds(one_operator(inputs=()))[1] == [FORBIDDEN, FORBIDDEN]


def test_empty_graph():
    costs = roofline(OpGraph("g", (), (), ()), MACHINE)
    assert Problem(OpGraph("g", (), (), ()), MACHINE, costs).costs.operator_ns.shape == (0, 2)


@given(st.integers(0, 10**6), st.integers(1, 12), st.integers(1, 4))
def test_costs_make_a_problem(seed, operators, devices):
    graph = random_graph(random.Random(seed), operators, largest=10**9)
    topology = random_topology(random.Random(seed), devices)
    costs = roofline(graph, topology)
    problem = Problem(graph, topology, costs)  # refuses direct host access that is faster than the bus
    for o in range(operators):
        for d in range(devices):
            possible = bool(graph.index.host_inputs[o]) and not problem.reads_host_in_place(d)
            assert (costs.direct_ns[o, d] != FORBIDDEN) == possible


def test_times_are_rounded_up():
    graph = one_operator(flops=1)
    assert nanoseconds(graph, Topology("t", (Device("d", 1, 1e9, {"float32": 3e9}),)))[0] == [1]


def test_a_large_graph():
    count = 10_000
    tensors = [Tensor("x", 4, "input"), *(Tensor(f"t{i}", 4 * i, dtype="float32") for i in range(count))]
    operators = [Operator(f"o{i}", "k", ("x",), (f"t{i}",), i) for i in range(count)]
    graph = OpGraph("g", tuple(operators), tuple(tensors), ())
    topology = random_topology(random.Random(1), 8)
    costs = roofline(graph, topology)
    assert costs.operator_ns.shape == (count, 8)
    assert np.all(np.diff(costs.operator_ns[:, 0]) >= 0)
