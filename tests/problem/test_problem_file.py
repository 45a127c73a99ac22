"""Problems and their files: round trips, and what is said of wrong ones."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tvm_sched.cost_model import costs
from tvm_sched_bench.testing import random_problem
from tvm_sched_runtime.errors import CostsError, FormatError, InputError, ProblemError
from tvm_sched_runtime.problem import (
    FORBIDDEN,
    Costs,
    Device,
    Operator,
    OpGraph,
    Problem,
    Tensor,
    Topology,
    load_topology,
)

GRAPH = OpGraph(
    "small",
    (Operator("A", "matmul", ("x", "w"), ("a",), 1000), Operator("B", "relu", ("a",), ("b",), 10)),
    (Tensor("x", 64, "input"), Tensor("w", 4096, "parameter"), Tensor("a", 64), Tensor("b", 64)),
    ("b",),
)


def small_problem():
    topology = load_topology("a40x2")
    return Problem(GRAPH, topology, costs(GRAPH, topology))


@given(st.integers(0, 10**6), st.integers(0, 12))
def test_round_trip(seed, operators):
    problem = random_problem(seed, operators=operators, memory="generous")
    again = Problem.from_json(problem.to_json())
    assert (again.graph, again.topology, again.costs) == (problem.graph, problem.topology, problem.costs)
    assert again.digest == problem.digest
    assert again.to_json() == problem.to_json()


def test_digest_changes_with_any_number():
    problem = small_problem()
    more = problem.costs.operator_ns.copy()
    more[0, 0] += 1
    assert Problem(problem.graph, problem.topology, Costs(more, problem.costs.direct_ns)).digest != problem.digest


def test_files(tmp_path):
    path = tmp_path / "p.json"
    small_problem().save(path)
    assert Problem.load(path).digest == small_problem().digest
    assert [entry.name for entry in tmp_path.iterdir()] == ["p.json"]
    with pytest.raises(FormatError, match="No such file"):
        Problem.load(tmp_path / "none.json")
    with pytest.raises(FormatError, match="cannot be written"):
        small_problem().save(tmp_path / "no such folder" / "p.json")


def set_at(data, path, value):
    *steps, last = path
    for step in steps:
        data = data[step]
    if value is None:
        del data[last]
    else:
        data[last] = value


@pytest.mark.parametrize(
    ("path", "value", "said"),
    [
        (["version"], 2, ["version 2", "newer", "reads (version 1)", "upgrade"]),
        (["version"], True, ["$.version", "True"]),
        (["version"], None, ["$.version"]),
        (["format"], "other", ["$.format", "'other'", "'tvm_sched.problem'"]),
        (["graph", "tensors", 1, "size"], "big", ["$.graph.tensors[1].size", "`int`", "found 'big'"]),
        (["graph", "tensors", 1, "size"], -5, ["$.graph.tensors[1]", "'w'", "-5", "0 or more"]),
        (["graph", "tensors", 1, "size"], 1 << 64, ["$.graph.tensors[1]", "'w'", "at most 9007199254740992 bytes"]),
        (["graph", "operators", 0, "flops"], 1 << 64, ["$.graph.operators[0]", "'A'", "0 to 9223372036854775807"]),
        (["graph", "tensors", 1, "kind"], "weight", ["$.graph.tensors[1].kind", "weight"]),
        (["graph", "tensors", 1, "colour"], 1, ["$.graph.tensors[1]", "colour", "the fields are name, size, kind"]),
        (["graph", "operators", 0, "name"], None, ["$.graph.operators[0]", "`name`"]),
        (["graph", "operators", 1, "inputs"], ["b"], ["cycle: B -> B", "$.graph"]),
        (["graph", "operators", 1, "name"], "A", ["'A' occurs twice"]),
        (["topology", "buses", 0, "bandwidth"], 0, ["'pcie0'", "bandwidth is 0", "above 0", "$.topology.buses[0]"]),
        (["topology", "devices", 1, "name"], "gpu0", ["device 'gpu0' occurs twice"]),
        (["topology", "links", 0, "devices"], ["gpu0", "gpu9"], ["'gpu9'", "['gpu0', 'gpu1']"]),
        (["topology", "devices"], [], ["no devices"]),
        (
            ["graph", "tensors", 2, "size"],
            10**15,
            ["'A'", "'a'", "1000000000000000 bytes", "48000000000 bytes of memory"],
        ),
        (["costs", "operator_ns", 0], [1], ["[1, 2] columns"]),
        (["costs", "operator_ns", 0, 0], -1, ["operator_ns[0][0]", "-1 ns"]),
        (["costs", "operator_ns", 0, 0], 1 << 70, ["64 bits"]),
        (["costs", "operator_ns", 0, 0], -(1 << 70), ["64 bits"]),
        (["costs", "operator_ns", 0, 0], 1.5, ["$.costs.operator_ns[0][0]", "found 1.5"]),
        (["costs", "operator_ns"], [[1, 1]], ["(1, 2)", "(2, 2)"]),
        (["costs", "direct_ns", 0, 0], 1, ["'A'", "'gpu0'", "faster than the bus"]),
        (["costs", "host_read_ns"], [[1, None], [None, None]], ["'A'", "'gpu0'", "host_read_ns is 1", "at least that"]),
        (["costs", "host_read_ns"], [[10**9, None], [None, None]], ["'A'", "'gpu0'", "faster than the bus"]),
        (["costs", "host_read_ns"], [[None, None]], ["host_read_ns is (1, 2)", "(2, 2)"]),
        (["costs", "direct_ns", 1, 0], 10**9, ["'B'", "'gpu0'", "nothing to read"]),
        (["extra"], 1, ["extra", "the fields are graph, topology, costs"]),
    ],
)
def test_errors_say_where_what_and_what_is_allowed(path, value, said, tmp_path):
    data = json.loads(small_problem().to_json())
    set_at(data, path, value)
    file = tmp_path / "wrong.json"
    file.write_text(json.dumps(data))
    with pytest.raises(InputError) as error:
        Problem.load(file)
    for part in [str(file), *said]:
        assert part in str(error.value)


@pytest.mark.parametrize("text", ["", "{", "[]", "3", '{"format": 1}', "\x00"])
def test_not_a_problem(text):
    with pytest.raises(FormatError, match=r"p\.json"):
        Problem.from_json(text, "p.json")


def test_an_operator_that_runs_nowhere():
    topology = Topology("t", (Device("d", 1 << 20, 1e9, {"float32": 1e9}),))
    with pytest.raises(ProblemError, match="'A' can run on no device of 't'"):
        Problem(GRAPH, topology, Costs([[FORBIDDEN], [1]]))


def test_costs_of_another_graph():
    topology = load_topology("a40x2")
    with pytest.raises(ProblemError, match="costs are for 1 operators and 2 devices"):
        Problem(GRAPH, topology, Costs([[1, 1]]))


@pytest.mark.parametrize(
    "wrong",
    [
        lambda data: data["costs"].update(operator_ns=[[1 << 62] * 2] * 2),
        lambda data: data["costs"].update(operator_ns=[[FORBIDDEN - 1] * 2] * 2, direct_ns=[[None] * 2] * 2),
        lambda data: data["topology"]["buses"][0].update(bandwidth=1e-300),
        lambda data: data["topology"]["links"][0].update(latency=1e300),
        lambda data: data["topology"]["devices"][0].update(wait_overhead=1e300),
        lambda data: data["topology"]["devices"][0].update(stream_overhead=1e10),
    ],
)
@pytest.mark.parametrize("direct", [None, 10**9])
def test_times_whose_sum_leaves_64_bits(wrong, direct):
    data = json.loads(small_problem().to_json())
    data["costs"]["direct_ns"] = [[direct] * 2, [None] * 2]
    wrong(data)
    with pytest.raises(ProblemError, match=r"add up to .* s; at most .* s are allowed"):
        Problem.from_json(json.dumps(data))


def test_a_route_through_host_memory_whose_bandwidth_is_rounded_to_zero():
    data = json.loads(small_problem().to_json())
    data["topology"] |= {"peer_access": False, "links": []}
    for bus in data["topology"]["buses"]:
        bus["bandwidth"] = 5e-324
    with pytest.raises(ProblemError, match="add up to inf s"):
        Problem.from_json(json.dumps(data))


@pytest.mark.parametrize("field", ["utilisation", "crowding"])
def test_rows_of_different_lengths(field):
    data = json.loads(small_problem().to_json())
    data["costs"]["concurrency"] = {"utilisation": [[[1.0]] * 2] * 2, "crowding": [[0.5] * 2] * 2}
    data["costs"]["concurrency"][field][0] = data["costs"]["concurrency"][field][0][:1]
    with pytest.raises(CostsError, match=f"rows of {field} differ in length"):
        Problem.from_json(json.dumps(data))


def test_the_roofline_of_absurd_numbers():
    device = Device("d", 1 << 60, 1e-300, {"float32": 1e-300})
    topology = Topology("slow", (device,))
    with pytest.raises(ProblemError, match="add up to"):
        Problem(GRAPH, topology, costs(GRAPH, topology))
