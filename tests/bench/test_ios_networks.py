"""Networks of IOS: shapes, slices of channels, costs of kernels, published stages."""

import json
from pathlib import Path

import pytest

from tvm_sched.schedulers import solve
from tvm_sched_bench.testing.ios_networks import load_network, problem_of
from tvm_sched_runtime.errors import FormatError
from tvm_sched_runtime.problem import Device, Topology, Workload
from tvm_sched_runtime.schedule import simulate

DATA = Path(__file__).resolve().parents[3] / "shared" / "data" / "ios"
ONE = Topology("one", (Device("gpu", 1 << 34, 1e9, {"float32": 1e12}, kind="cuda", launch_overhead=5e-6),))


def conv(name, inputs, channels, shape, kernel=1, **more):
    sizes = {"kernel": [kernel, kernel], "padding": [kernel // 2, kernel // 2]}
    return {"type": "conv", "name": name, "inputs": inputs, "output_shape": [channels, *shape], **sizes, **more}


def network(tmp_path, inner, exit_node, stages=None):
    path = tmp_path / "network.json"
    given = {"type": "placeholder", "name": "0", "output_shape": [4, 8, 8]}
    block = {"inner_nodes": inner, "exit_node": exit_node, "stages": stages}
    path.write_text(json.dumps({"name": "small", "input": given, "blocks": [block]}))
    return path


def test_a_reader_of_some_channels_reads_these_alone(tmp_path):
    merged = conv("1", [[["0", 0, 4]]], 6, (8, 8), kernel=3)
    reader = conv("2", [[["1", 2, 6]]], 3, (8, 8))
    total = {"type": "identity", "name": "3", "inputs": [[["1", 0, 2]], [["2", 0, 3]]], "output_shape": [5, 8, 8]}
    graph = load_network(network(tmp_path, [merged, reader], total)).graph()
    sizes = {tensor.name: tensor.size for tensor in graph.tensors}
    operators = {operator.name: operator for operator in graph.operators}
    assert operators["1"].outputs == ("1[0:2]", "1[2:6]")
    assert operators["2"].inputs == ("1[2:6]", "w2")
    assert operators["3"].inputs == ("1[0:2]", "2[0:3]")
    assert (sizes["1[2:6]"], sizes["w1"], sizes["w2"]) == (4 * 4 * 64, 4 * 6 * 4 * 9, 4 * 3 * 4)
    assert (operators["1"].flops, operators["2"].flops, operators["3"].flops) == (2 * 6 * 64 * 36, 2 * 3 * 64 * 4, 0)


def test_an_operator_of_several_layers_takes_the_time_of_its_kernels(tmp_path):
    relu = {"type": "relu", "name": "1", "inputs": [[["0", 0, 4]]], "output_shape": [4, 8, 8]}
    depthwise = conv("2", [[["1", 0, 4]]], 4, (4, 4), kernel=3, groups=4, stride=[2, 2])
    pointwise = conv("3", [[["2", 0, 4]]], 8, (4, 4))
    whole = {"type": "sequential", "name": "4", "nodes": [relu, depthwise, pointwise], "output_shape": [8, 4, 4]}
    pooled = {
        "type": "pool",
        "name": "5",
        "inputs": [[["4", 0, 8]]],
        "output_shape": [8, 1, 1],
        "pool_type": "global_avg",
    }
    found = load_network(network(tmp_path, [whole], pooled))
    problem = problem_of(found, ONE, "occupancy")
    # 5000 ns a launch, then bytes at one a nanosecond: 1024 in and out; 1024, 144 weights, 256 out; 256, 128, 512 out.
    assert problem.costs.operator_ns.tolist() == [[15000 + 2048 + 1424 + 896], [5000 + 512 + 32]]
    assert [operator.flops for operator in problem.graph.operators] == [256 + 2 * 64 * 9 + 2 * 128 * 4, 128]
    assert found.shapes(16)["4"] == (8, 8, 8)


def test_published_stages_are_a_schedule(tmp_path):
    nodes = [conv(str(n), [[["0", 0, 4]]], 4, (8, 8)) for n in (1, 2)]
    last = {"type": "identity", "name": "3", "inputs": [[["1", 0, 4], ["2", 0, 4]]], "output_shape": [4, 8, 8]}
    found = load_network(network(tmp_path, nodes, last, stages=[[["1"], ["2"]], [["3"]]]))
    problem = problem_of(found, ONE, "occupancy")
    schedule = found.schedule(problem)
    assert [(p.operator, p.stream, p.stage) for p in schedule.placements] == [("1", 0, 1), ("2", 1, 1), ("3", 0, 0)]
    assert simulate(problem, schedule).latency_ns == simulate(problem, solve(problem, method="ios")).latency_ns


def test_a_file_that_is_no_network_is_refused(tmp_path):
    path = network(tmp_path, [conv("1", [[["7", 0, 4]]], 4, (8, 8))], conv("2", [[["1", 0, 4]]], 4, (8, 8)))
    with pytest.raises(FormatError, match="operator '1' reads '7', which is not before it"):
        load_network(path)
    path.write_text("[]")
    with pytest.raises(FormatError, match="is not a network of IOS"):
        load_network(path)


@pytest.mark.parametrize(
    ("name", "operators", "edges", "parts", "largest"),
    [("inception_v3", 119, 153, 13, 12), ("nasnet_large", 374, 572, 24, 21), ("squeezenet", 50, 65, 12, 6)],
)
def test_the_published_networks(name, operators, edges, parts, largest):
    if not DATA.is_dir():
        pytest.skip("the exported networks of IOS (shared/data/ios) are not here")
    found = load_network(DATA / "graphs" / f"{name}.json")
    shapes, graph, cells = found.shapes(), found.graph(), found.cells()
    assert all(
        shapes[layer.name] == layer.output_shape
        for operator in found.operators
        for layer in (*operator.layers, operator)
    )
    assert (len(graph.operators), sum(map(len, graph.index.predecessors))) == (operators, edges)
    assert (len(cells), max(map(len, cells))) == (parts, largest)
    Workload(submodels=cells).check(problem_of(found, ONE, "occupancy"))
