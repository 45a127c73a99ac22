"""Several problems as one."""

import pytest

from tvm_sched.errors import InputError
from tvm_sched.problem import Costs, Operator, OpGraph, Problem, Tensor, load_topology, merge_graphs, merge_problems
from tvm_sched.schedule import simulate
from tvm_sched.schedulers import solve


def chain(name, nanoseconds, topology="a40x2"):
    """Two operators, one after the other, with nothing to load."""
    machine = load_topology(topology)
    graph = OpGraph(
        name, (Operator("a", outputs=("x",)), Operator("b", inputs=("x",), outputs=("y",))),
        (Tensor("x", 8), Tensor("y", 8)), ("y",),
    )  # fmt: skip
    return Problem(graph, machine, Costs([[nanoseconds] * len(machine.devices)] * 2, source="hand"))


def test_names_costs_and_outputs_of_both():
    merged = merge_problems([chain("one", 10), chain("two", 20)])
    assert [o.name for o in merged.graph.operators] == ["one/a", "one/b", "two/a", "two/b"]
    assert merged.graph.outputs == ("one/y", "two/y")
    assert merged.graph.name == "one+two"
    assert merged.costs.operator_ns[:, 0].tolist() == [10, 10, 20, 20]
    assert merged.costs.source == "hand"


def test_models_on_two_devices_run_side_by_side():
    """By hand: 20 ns on one device beside 40 ns on the other; on one device 60 ns."""
    merged = merge_problems([chain("one", 10), chain("two", 20)])
    assert simulate(merged, solve(merged, "single")).latency_ns == 60
    best = solve(merged, "anytime", {"time_limit": 5})
    assert best.certificate.latency_ns == 40
    assert best.certificate.lower_bound_ns <= 40


def test_equal_names_are_numbered():
    graphs = [chain(name, 1).graph for name in ("m", "m", "m.2", "m")]
    names = [o.name for o in merge_graphs(graphs).operators]
    assert names[::2] == ["m/a", "m.3/a", "m.2/a", "m.4/a"]


def test_one_problem_stays_what_it_is():
    problem = chain("one", 10)
    assert merge_problems([problem]) is problem


def test_what_cannot_be_merged_is_refused():
    with pytest.raises(InputError, match="one topology"):
        merge_problems([chain("one", 1), chain("two", 1, "p4d")])
    with pytest.raises(InputError, match="no problem"):
        merge_problems([])
    with pytest.raises(InputError, match="no graph"):
        merge_graphs([])
