"""Cost models by name."""

from importlib.metadata import EntryPoint

import pytest

from tvm_sched import registry
from tvm_sched.cost_model import COST_MODELS, cost_model_names, costs, get_cost_model, register_cost_model, roofline
from tvm_sched_runtime.errors import InputError
from tvm_sched_runtime.problem import Costs, Operator, OpGraph, Tensor, load_topology

GRAPH = OpGraph("g", (Operator("o", "k", (), ("y",)),), (Tensor("y", 4),), ("y",))


def constant(graph, topology):
    return Costs([[7] * len(topology.devices) for _ in graph.operators], source="constant")


@pytest.fixture(autouse=True)
def own_registry(monkeypatch):
    COST_MODELS.names()
    monkeypatch.setattr(COST_MODELS, "entries", dict(COST_MODELS.entries))


def test_roofline_is_the_default():
    topology = load_topology("a40x2")
    assert costs(GRAPH, topology) == roofline(GRAPH, topology)
    assert "roofline" in cost_model_names()


def test_decorator():
    assert register_cost_model("constant")(constant) is constant
    assert costs(GRAPH, load_topology("a40x2"), "constant").operator_ns.tolist() == [[7, 7]]
    register_cost_model("constant")(constant)
    with pytest.raises(InputError, match="'constant' is registered already"):
        register_cost_model("constant")(roofline)


def test_unknown_name():
    with pytest.raises(InputError, match="'roffline'; did you mean 'roofline'"):
        get_cost_model("roffline")


def test_entry_points(monkeypatch):
    entry = EntryPoint("theirs", f"{roofline.__module__}:roofline", COST_MODELS.group)
    monkeypatch.setattr(registry, "entry_points", lambda group: [entry])
    monkeypatch.setattr(COST_MODELS, "installed_loaded", False)
    assert "theirs" in cost_model_names()
    assert get_cost_model("theirs") is roofline


def test_a_cell_of_a_notebook_runs_twice():
    def define(value):
        def mine(graph, topology):
            return Costs([[value] * len(topology.devices) for _ in graph.operators])

        register_cost_model("mine")(mine)

    define(1)
    define(2)
    assert costs(GRAPH, load_topology("a40x2"), "mine").operator_ns.tolist() == [[2, 2]]
