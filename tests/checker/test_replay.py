"""Replays by hand: memory to the byte, and parameters that leave."""

import json

import pytest

from tvm_sched_check import Refused
from tvm_sched_check.document import Problem as Document
from tvm_sched_check.replay import Replay
from tvm_sched_runtime.problem import Bus, Costs, Device, Operator, OpGraph, Problem, Tensor, Topology

PLACEMENTS = [{"operator": "o", "device": "gpu"}]
LOAD = {"kind": "load", "tensor": "w", "device": "gpu"}


def one_operator(memory):
    """An operator of 50 ns reads a parameter of 100 bytes, which takes 100 ns on the bus, and makes 20 bytes."""
    device = Device("gpu", 1000, 1e12, {"float32": 1e12}, bus="pcie")
    topology = Topology("one", (device,), (Bus("pcie", 1e9),))
    graph = OpGraph("g", (Operator("o", "", ("w",), ("y",)),), (Tensor("w", 100, "parameter"), Tensor("y", 20)), ("y",))
    document = json.loads(Problem(graph, topology, Costs([[50]])).to_json())
    document["topology"]["devices"][0]["memory"] = memory
    return Document(document)


def test_memory_suffices_to_the_byte():
    assert Replay(one_operator(120), PLACEMENTS, [LOAD]).latency == 150
    with pytest.raises(Refused, match="rule 5: 'gpu' holds 120 bytes at 100 ns"):
        Replay(one_operator(119), PLACEMENTS, [LOAD])


@pytest.mark.parametrize(("evict", "latency"), [(False, 50), (True, 150)])
def test_a_parameter_that_leaves_is_loaded_in_warm_runs_too(evict, latency):
    assert Replay(one_operator(1000), PLACEMENTS, [{**LOAD, "evict": evict}], {"w"}).latency == latency
