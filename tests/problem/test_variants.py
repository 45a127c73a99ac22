"""Problems with variants: what a choice makes of them, their files, what is refused."""

import msgspec
import numpy as np
import pytest

from tvm_sched_bench.testing import random_problem, random_variants
from tvm_sched_runtime.errors import InputError, ProblemError
from tvm_sched_runtime.problem import (
    Alternative,
    Costs,
    Operator,
    OpGraph,
    Problem,
    Tensor,
    Variants,
    all_alternatives,
    merge_problems,
    problem_of,
)  # fmt: skip
from variant_cases import CHOICE, gated


def test_a_choice_puts_operators_tensors_and_costs_in_the_place_of_the_groups():
    problem = gated()
    chosen = problem.resolve(CHOICE)
    assert [o.name for o in chosen.graph.operators] == ["up", "product", "multiply"]
    assert [t.name for t in chosen.graph.tensors] == ["x", "a", "y", "b"]
    assert chosen.costs.operator_ns[:, 0].tolist() == [100, 95, 10]
    assert chosen.variants is None
    graph = problem.resolve({})
    assert graph.graph == problem.graph
    assert graph.digest != problem.digest
    assert graph.digest == Problem(problem.graph, problem.topology, problem.costs).digest


@pytest.mark.parametrize("seed", range(20))
def test_files_keep_variants_and_digests(seed, tmp_path):
    problem = random_variants(random_problem(seed, memory="generous"), seed)
    problem.save(tmp_path / "p.json")
    read = Problem.load(tmp_path / "p.json")
    assert read.digest == problem.digest
    assert read.variants == problem.variants


def test_two_models_with_variants_are_one_problem():
    both = merge_problems([gated(), gated()])
    chosen = both.resolve({"gated.2/gate": "apart"})
    assert [o.name for o in chosen.graph.operators] == [
        "gated/up", "gated/gate", "gated.2/up", "gated.2/product", "gated.2/multiply",
    ]  # fmt: skip
    assert chosen.costs.operator_ns[:, 0].tolist() == [100, 100, 100, 95, 10]


def test_a_cost_model_sees_all_alternatives_and_gets_its_rows_back():
    problem = gated()
    seen = []

    def costs(graph, topology):
        seen.append(graph)
        return Costs(np.arange(1, 1 + 2 * len(graph.operators)).reshape(-1, 2))

    made = problem_of(problem.graph, problem.variants.groups, problem.topology, costs)
    assert [o.name for o in seen[0].operators] == ["up", "gate", "product", "multiply"]
    assert seen[0].operators[3].outputs == ("y (apart)",)
    assert made.costs.operator_ns.tolist() == [[1, 2], [3, 4]]
    assert made.variants.costs.operator_ns.tolist() == [[5, 6], [7, 8]]


def test_only_alternatives_that_fit_into_no_device_are_left_out():
    """A second alternative needs 2,000 bytes between its operators; devices have 1,000."""
    problem = gated()
    (group,) = problem.variants.groups
    large = Alternative(
        "large", (Operator("p", "", ("x",), ("c",)), Operator("q", "", ("c", "a"), ("y",))), (Tensor("c", 2000),)
    )

    def made(*alternatives):
        groups = [msgspec.structs.replace(group, alternatives=alternatives)]
        rows = lambda graph, _: Costs(np.arange(1, 1 + 2 * len(graph.operators)).reshape(-1, 2))  # noqa: E731
        return problem_of(problem.graph, groups, problem.topology, rows)

    both = made(large, *group.alternatives)
    assert both.variants.groups == problem.variants.groups
    assert both.variants.costs.operator_ns.tolist() == [[9, 10], [11, 12]]
    assert made(large).variants is None


def test_other_faults_of_groups_are_no_reason_to_leave_them_out():
    problem = gated()
    gone = msgspec.structs.replace(problem.variants.groups[0], operators=("gone",))
    with pytest.raises(ProblemError, match="'gone'"):
        problem_of(problem.graph, [gone], problem.topology, lambda g, _: Costs(np.ones((len(g.operators), 2), int)))


def changed(**fields):
    """The problem in which the group, or what ``alternative`` names of its alternative, is otherwise."""
    problem = gated()
    group = problem.variants.groups[0]
    if "alternative" in fields:
        fields = {"alternatives": (msgspec.structs.replace(group.alternatives[0], **fields["alternative"]),)}
    return Problem(
        problem.graph, problem.topology, problem.costs,
        Variants([msgspec.structs.replace(group, **fields)], problem.variants.costs),
    )  # fmt: skip


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"operators": ("gone",)}, "'gone', which the graph does not have"),
        ({"operators": ()}, "no operators"),
        ({"alternatives": ()}, "no alternatives"),
        ({"graph_alternative": "apart"}, "a name of its own"),
        ({"alternative": {"operators": ()}}, r"costs of the variants are \(2, 2\)"),
        ({"alternative": {"operators": (Operator("p"), Operator("q"))}}, r"does not make \['y'\]"),
        ({"alternative": {"operators": (Operator("p", "", ("z",), ("y",)), Operator("q", "", (), ("b",)))}},
         "reads 'z', which is no tensor of its own"),
        ({"alternative": {"operators": (Operator("p", "", (), ("y", "a")), Operator("q", "", (), ("b",)))}},
         "neither its own nor read outside"),
    ],
)  # fmt: skip
def test_what_does_not_fit_the_graph_is_refused(fields, said):
    with pytest.raises(ProblemError, match=said):
        changed(**fields)


def test_groups_that_wait_for_each_other_are_refused():
    """The first and the last of a chain: a group is computed as one, and the second stands between the two."""
    problem = gated()
    operators = (*problem.graph.operators, Operator("last", "add", ("y", "a"), ("z",)))
    graph = OpGraph("chain", operators, (*problem.graph.tensors, Tensor("z", 10)), ("z",))
    group = msgspec.structs.replace(problem.variants.groups[0], operators=("up", "last"))
    with pytest.raises(ProblemError, match="wait for each other"):
        Problem(graph, problem.topology, Costs(np.ones((3, 2))), Variants([group], problem.variants.costs))


@pytest.mark.parametrize("choice", [{"gone": "apart"}, {"gate": "gone"}])
def test_a_choice_of_what_is_not_there_is_refused(choice):
    with pytest.raises(InputError, match=r"'gone'.*there are '"):
        gated().resolve(choice)


def test_all_alternatives_make_each_tensor_once():
    problem = gated()
    graph = all_alternatives(problem.graph, problem.variants.groups)
    assert sorted(t.name for t in graph.tensors) == ["a", "b", "x", "y", "y (apart)"]
