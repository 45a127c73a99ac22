"""The price of direct host access where tiles of a product read an operand several times."""

import msgspec
import pytest

from tvm_sched.cost_model import learned
from tvm_sched.cost_model.features import describe
from tvm_sched.cost_model.host_rereads import WIDTH, crossing_bytes
from tvm_sched.schedulers import solve
from tvm_sched_runtime.problem import (
    FORBIDDEN,
    HOST,
    Bus,
    Costs,
    Device,
    Operator,
    OpGraph,
    Problem,
    Tensor,
    Topology,
    load_topology,
    problem_of,
)
from tvm_sched_runtime.problem.costs import concatenate_costs

H100 = {
    # Rows, kind of kernel: microseconds of a CUDA graph that reads a weight of 4096 x 4096 float32 in host memory, less the
    # copies of activations (benchmarks/data/gpu_record_1.jsonl and _3.jsonl); a copy of the weight took 1225.
    (1, "library.matmul"): 1680,
    (32, "library.matmul"): 3125,
    (512, "library.matmul"): 15360,
    (1, "matmul"): 1781,
    (32, "matmul"): 2767,
    (512, "matmul"): 34380,
}


def product(rows: int, kind: str, columns: int = 4096, depth: int = 4096, first: str = "activation") -> OpGraph:
    tensors = [
        Tensor("a", 4 * rows * depth, "input", (rows, depth), "float32"),
        Tensor("x", 4 * rows * depth, "activation", (rows, depth), "float32"),
        Tensor("w", 4 * depth * columns, "parameter", (depth, columns), "float32"),
        Tensor("y", 4 * rows * columns, "activation", (rows, columns), "float32"),
    ]
    copy = Operator("copy", kind="copy", inputs=("a",), outputs=("x",))
    by = Operator(
        "product", kind=kind, inputs=("x" if first == "activation" else "a", "w"), outputs=("y",),
        flops=2 * rows * columns * depth,
    )  # fmt: skip
    return OpGraph("product", (copy, by), tuple(tensors), ("x", "y"))


def crossing(graph: OpGraph) -> int:
    return int(crossing_bytes(graph, describe(graph))[1])


@pytest.mark.parametrize(
    ("rows", "kind", "readings"),
    [
        (4096, "library.matmul", 64),  # tiles of 64 x 64
        (65, "library.matmul", 2),
        (1, "library.matmul", 1),
        (512, "matmul", 16),  # TVM's are 32 x 32
        (1, "matmul", 1),
    ],
)
def test_weights_are_read_once_for_each_tile_of_rows(rows, kind, readings):
    assert crossing(product(rows, kind)) == WIDTH * readings * 4 * 4096**2


def test_an_input_is_read_once_for_each_tile_of_columns():
    graph = product(512, "matmul", columns=64, depth=8, first="input")
    assert crossing(graph) == WIDTH * (2 * 4 * 512 * 8 + 16 * 4 * 8 * 64)


def test_a_tensor_that_is_both_operands_is_read_for_both():
    graph = product(64, "matmul", columns=64, depth=64, first="input")
    (copy, by), (a, x, _, y) = graph.operators, graph.tensors
    squared = msgspec.structs.replace(by, inputs=("a", "a"))
    both = OpGraph("square", (copy, squared), (a, x, y), ("x", "y"))
    assert crossing(both) == WIDTH * (2 + 2) * 4 * 64 * 64


def test_a_convolution_reads_its_filters_once_for_each_tile_of_pixels():
    tensors = (
        Tensor("a", 4 * 16 * 256, "input", (1, 16, 16, 16), "float32"),
        Tensor("x", 4 * 16 * 256, "activation", (1, 16, 16, 16), "float32"),
        Tensor("w", 4 * 32 * 16 * 9, "parameter", (32, 16, 3, 3), "float32"),
        Tensor("y", 4 * 32 * 256, "activation", (1, 32, 16, 16), "float32"),
    )
    by = Operator("conv", kind="conv2d", inputs=("x", "w"), outputs=("y",), flops=2 * 32 * 256 * 16 * 9)
    graph = OpGraph("conv", (Operator("copy", kind="copy", inputs=("a",), outputs=("x",)), by), tensors, ("x", "y"))
    assert crossing(graph) == WIDTH * 8 * 4 * 32 * 16 * 9  # 256 pixels in tiles of 32


def test_other_kernels_read_each_byte_once():
    graph = product(8, "matmul")
    assert crossing_bytes(graph, describe(graph))[0] == 4 * 8 * 4096


@pytest.mark.parametrize("case", list(H100), ids=str)
def test_the_h100_within_a_factor_of_1_5(case):
    rows, kind = case
    predicted = crossing(product(rows, kind)) / (4 * 4096**2) * 1225
    assert 1 / 1.5 < predicted / H100[case] < 1.5


def test_learned_prices_wait_for_all_readings_and_occupy_the_bus_for_them():
    machine = load_topology("v100-server")
    problem = problem_of(product(512, "matmul"), (), machine, learned)
    for d, device in enumerate(machine.devices):
        route, weight = machine.route(HOST, d), 4 * 4096**2
        waits = route.nanoseconds(int(WIDTH * 16 * weight)) + int(device.launch_overhead * 1e9)
        assert problem.costs.direct_ns[1, d] == max(waits, problem.costs.operator_ns[1, d])
        assert problem.host_read_ns(1, d) == problem.host_reads_ns[1, d] == route.nanoseconds(int(WIDTH * 16 * weight))


def test_loads_wait_for_all_readings():
    device = Device("gpu", 1 << 30, 1e12, {"float32": 1e12}, kind="cuda", bus="pcie")
    machine = Topology("one", (device,), (Bus("pcie", 1e9),))
    first, then = Operator("p", inputs=("v",), outputs=("x",)), Operator("q", inputs=("x", "w"), outputs=("y",))
    parameters = Tensor("v", 1000, "parameter"), Tensor("w", 1000, "parameter")
    graph = OpGraph("two", (first, then), (*parameters, Tensor("x", 8), Tensor("y", 8)), ("y",))
    never = [[FORBIDDEN], [FORBIDDEN]]
    several = Costs([[FORBIDDEN], [10]], [[4000], [FORBIDDEN]], host_read_ns=[[3500], [FORBIDDEN]])
    for costs, latency in ((several, 3500 + 1000 + 10), (several.replace(host_read_ns=never), 4000 + 10)):
        problem = Problem(graph, machine, costs)
        assert Problem.from_json(problem.to_json()).costs == costs
        known = solve(problem, options={"work": 0.1}).certificate
        assert (known.latency_ns, known.lower_bound_ns) == (latency, latency)


def test_parts_of_costs_keep_the_time_of_the_bus():
    several = Costs([[1, 1], [1, 1]], [[9, 9], [9, 9]], host_read_ns=[[5, 6], [7, FORBIDDEN]])
    assert several.rows([1]).host_read_ns.tolist() == [[7, FORBIDDEN]]
    assert several.columns([0]).host_read_ns.tolist() == [[5], [7]]
    both = concatenate_costs([Costs([[1, 1]]), several])
    assert both.host_read_ns.tolist() == [[FORBIDDEN, FORBIDDEN], [5, 6], [7, FORBIDDEN]]
    assert several != several.replace(host_read_ns=None)
