"""Several problems as one."""

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from thorough import examples
from tvm_sched.bounds import lower_bound
from tvm_sched.schedulers import solve
from tvm_sched_bench.testing import random_problem
from tvm_sched_bench.testing.variant_problems import random_variants
from tvm_sched_runtime.errors import GraphError, InputError
from tvm_sched_runtime.problem import (
    Costs,
    Operator,
    OpGraph,
    Problem,
    Request,
    Scenario,
    Tensor,
    load_topology,
    merge_graphs,
    merge_problems,
    merge_scenarios,
    problems_of_models,
)
from tvm_sched_runtime.schedule import requests_of_part, simulate


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


def test_models_on_two_devices_run_concurrently():
    """By hand: 20 ns on one device beside 40 ns on the other; on one device 60 ns."""
    merged = merge_problems([chain("one", 10), chain("two", 20)])
    assert simulate(merged, solve(merged, method="single")).latency_ns == 60
    best = solve(merged, method="anytime", options={"time_limit": 5})
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


def test_the_graph_names_its_models():
    graphs = [chain(name, 1).graph for name in ("one", "two", "one")]
    merged = merge_graphs(graphs)
    assert merged.models == ("one", "two", "one.2")
    assert merged.operators_of_models == [[0, 1], [2, 3], [4, 5]]
    assert chain("one", 1).graph.operators_of_models == [[0, 1]]
    again = merge_graphs([merged, chain("m", 1).graph])
    assert again.models == ("one+two+one/one", "one+two+one/two", "one+two+one/one.2", "m")
    assert again.operators_of_models == [[0, 1], [2, 3], [4, 5], [6, 7]]


def test_a_models_name_may_begin_like_anothers():
    """Even where an operator's name goes on like the other model's."""
    first = chain("a", 1)
    named = tuple(msgspec.structs.replace(operator, name=f"b/{operator.name}") for operator in first.graph.operators)
    first = Problem(msgspec.structs.replace(first.graph, operators=named), first.topology, first.costs)
    merged = merge_problems([first, chain("a/b", 1)])
    assert merged.graph.models == ("a", "a.b")
    assert merged.graph.operators_of_models == [[0, 1], [2, 3]]
    parts = problems_of_models(merged)
    assert [[tensor.name for tensor in part.graph.tensors] for part in parts] == [["a/x", "a/y"], ["a.b/x", "a.b/y"]]


def test_what_is_resident_in_one_is_resident_in_the_whole():
    problem = random_problem(1, 5, 2, memory="generous")
    warm = Scenario(problem, [tensor.name for tensor in problem.graph.tensors if tensor.kind == "parameter"])
    merged = merge_scenarios([warm, Scenario(problem)])
    first, second = (
        requests_of_part(part, merged.workload.requests)[0].resident for part in problems_of_models(merged.problem)
    )
    assert len(warm.resident) == len(merged.resident) == len(first) > 0
    assert not second


def test_an_operator_is_of_some_model():
    graph = merge_graphs([chain("one", 1).graph, chain("two", 1).graph])
    with pytest.raises(GraphError, match="'two/a' belongs to none of the models one"):
        msgspec.structs.replace(graph, models=("one",))
    with pytest.raises(GraphError, match="twice"):
        msgspec.structs.replace(graph, models=("one", "one", "two"))


def test_models_are_in_the_file():
    merged, one = merge_problems([chain("one", 10, "cpu2"), chain("two", 20, "cpu2")]), chain("one", 10)
    assert b'"models"' not in one.to_json()
    assert Problem.from_json(merged.to_json()).graph.models == ("one", "two")


@settings(max_examples=examples(20), deadline=None)
@given(seed=st.integers(0, 10_000), variants=st.booleans())
def test_the_problems_of_the_models_are_those_that_were_merged(seed, variants):
    problems = [random_problem(seed, 5, 3, memory="generous")]
    problems.append(random_problem(seed, 5, 3, memory="generous"))  # the same machine
    problems = [random_variants(problem, seed + k) if variants else problem for k, problem in enumerate(problems)]
    merged = merge_problems(problems)
    for problem, part in zip(problems, problems_of_models(merged), strict=True):
        assert len(part.graph.operators) == len(problem.graph.operators)
        assert part.costs.operator_ns.tolist() == problem.costs.operator_ns.tolist()
        assert lower_bound(part).ns == lower_bound(problem).ns
        assert bool(part.variants) == bool(problem.variants)
        if part.variants:
            assert part.variants.costs.operator_ns.tolist() == problem.variants.costs.operator_ns.tolist()
    warm = Request(tuple(t.name for t in merged.graph.tensors if t.kind == "parameter"))
    assert [len(requests_of_part(part, [warm])[0].resident) for part in problems_of_models(merged)] == [
        sum(tensor.kind == "parameter" for tensor in problem.graph.tensors) for problem in problems
    ]


def test_one_problem_is_that_of_its_model():
    problem = chain("one", 10)
    assert problems_of_models(problem) == [problem]
