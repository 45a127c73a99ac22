"""Why no schedule is faster, in words, on problems that are worked out by hand."""

import json

import numpy as np
import pytest

from checker.cases import chain_of_readers
from tvm_sched.report.explanation import explain, lemma_sentence
from tvm_sched.schedulers import solve
from tvm_sched_runtime.problem import Bus, Costs, Device, Operator, OpGraph, Problem, Tensor, Topology
from variant_cases import CHOICE, gated


def one_bus(operator_ns, table=1000):
    """Two operators that read a parameter each over one bus, 1000 ns each; of the second's only ``table`` bytes are read."""
    device = Device("gpu", 10**6, 1e12, {"float32": 1e12}, bus="pcie")
    operators = (
        Operator("first", "", ("v",), ("x",)),
        Operator("second", "", ("w", "x"), ("y",), read_bytes={"w": table}),
    )
    tensors = (Tensor("v", 1000, "parameter"), Tensor("w", 1000, "parameter"), Tensor("x", 1), Tensor("y", 1))
    graph = OpGraph("pair", operators, tensors, ("y",))
    return Problem(
        graph, Topology("one", (device,), (Bus("pcie", 1e9),)), Costs(np.array(operator_ns), source="by hand")
    )


def test_what_the_buses_carry():
    told = "\n".join(explain(problem := one_bus([[10], [10]]), solve(problem, method="single")))
    assert "pair on one, latencies by hand, 2 operators" in told
    assert "cannot end before 2.01 µs: the buses carry what it and all before it read" in told


@pytest.mark.parametrize(("times", "words"), [([[10], [5000]], "second"), ([[9000], [10]], "first -> second")])
def test_the_path(times, words):
    told = explain(problem := one_bus(times), solve(problem, method="single"))
    assert any("the longest path takes" in line and words in line for line in told)


def test_a_lemma_that_is_a_path_names_no_operators():
    told = lemma_sentence({"rule": "path", "first": "a", "last": "b", "ns": 10})
    assert told == "from the end of a to that of b 10 ns pass at least: so long is the longest path between."


def test_path_and_bus():
    problem = chain_of_readers()
    told = explain(problem, solve(problem, method="single"))
    assert "Counted with 25.0% of its time on the paths and 75.0% of its time on pcie, whichever is less" in told[-3]
    assert "all operators take 618 ns" in told[-3]
    assert told[-2].endswith("The path that counts most: o0 -> o1 -> o2 -> o3.")


def test_variants_are_explained_for_the_choice():
    problem = gated()
    schedule = solve(problem, method="anytime", options={"time_limit": 1})
    assert schedule.choice == CHOICE
    told = explain(problem, schedule)
    assert "groups of operators with alternatives: 1" in told[0]
    assert any(line.startswith("Why, for operators that stand for all alternatives") for line in told)
    assert any("the group gate lies between, and none of its 2 alternatives is faster" in line for line in told)


def test_bounds_without_evidence_say_why():
    document = json.loads(one_bus([[10], [10]]).to_json())
    document["costs"]["concurrency"] = {"utilisation": [[[0.5]], [[0.5]]], "pairs": [[0, 0, 1, 15]]}
    problem = Problem.from_json(json.dumps(document))
    assert any(
        "What the bound rests on cannot be told" in line for line in explain(problem, solve(problem, method="single"))
    )


def test_a_model_that_computes_nothing():
    graph = OpGraph("empty", (), (Tensor("x", 4, "input"),), ("x",))
    problem = Problem(graph, one_bus([[10], [10]]).topology, Costs(np.zeros((0, 1), dtype=np.int64)))
    told = explain(problem, solve(problem, method="single"))
    assert "takes 0 s" in told[1]
    assert not any(line.startswith("Why") for line in told)
