"""Orders of least peak against all orders, a case worked by hand, and their effect on partitions and plans."""

import itertools
from unittest.mock import patch

import numpy as np
import pytest
from chain_cases import chain_problem
from exhaustive import small_problem
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from strategies import SEEDS, problems
from thorough import examples
from tvm_sched.pipeline import order_partition, order_plan, partition, plan_pipeline
from tvm_sched.pipeline.least_peak import least_peak, order_of_stage
from tvm_sched_runtime.errors import InfeasibleError, InputError
from tvm_sched_runtime.pipeline import PartitionProblem, PipelinePlan, StageTensor, verify
from tvm_sched_runtime.pipeline.stage_pricing import Activation, price
from tvm_sched_runtime.problem import Bus, Costs, Device, Operator, OpGraph, Problem, Tensor, Topology

TWO_BRANCHES = [
    StageTensor(0, (1, 2), 0, 4), StageTensor(1, (3,), 0, 6), StageTensor(2, (4,), 0, 6), StageTensor(3, (5,), 0, 1),
    StageTensor(4, (5,), 0, 1), StageTensor(5, (), 0, 1),
]  # fmt: skip
"""Node 0 sends 4 bytes to two branches, each of which widens to 6 bytes and shrinks to 1; node 5 joins them.

Branch after branch: 4, 4 + 6, 4 + 6 + 1, 4 + 1 + 6 = 11 bytes at most. Both at once: 4 + 6 + 6 = 16.
"""


def truth(problem, nodes):
    """Most bytes held at once, straight from the rules of ``docs/model.md``: look at each tensor at each step."""
    inside = set(nodes)
    most = 0.0
    for step, running in enumerate(nodes):
        held = 0.0
        for tensor in problem.tensors:
            readers = inside.intersection(tensor.readers)
            waiting = readers.intersection(nodes[step:])
            if tensor.producer in inside:
                kept = tensor.leaves or len(readers) < len(tensor.readers)
                made = tensor.producer in nodes[: step + 1]
                held += tensor.size if made and (kept or waiting or tensor.producer == running) else 0
            else:
                held += tensor.size if waiting else 0
        most = max(most, held)
    return most


def graph_of(tensors, parameters=(), memory=float("inf")):
    n = 1 + max(tensor.producer for tensor in tensors)
    parameters = np.array(parameters or [0] * n, dtype=float)
    return PartitionProblem([f"n{v}" for v in range(n)], np.ones(n), parameters, tensors, memory, 2)


def orders(problem, nodes):
    """All orders of a stage."""
    edges = [(u, v) for u, v in problem.edges if u in nodes and v in nodes]
    return [order for order in itertools.permutations(nodes) if all(order.index(u) < order.index(v) for u, v in edges)]


def test_two_branches_run_one_after_the_other():
    problem = graph_of(TWO_BRANCHES, (0, 10, 0, 0, 0, 0), memory=20)
    found = order_of_stage(problem, range(6))
    assert (found.given_peak, found.peak, found.bound) == (16, 11, 11)
    assert found.order in {(0, 1, 3, 2, 4, 5), (0, 2, 4, 1, 3, 5)}
    given_order = partition(problem, 1, "equal-split")
    assert given_order.cost == 6 + 2 * (10 + 16 - 20)
    ordered, (stage,) = order_partition(problem, given_order)
    assert stage == found
    assert ordered.cost == 6 + 2 * (10 + 11 - 20)
    assert ordered.bound <= ordered.cost


def test_a_given_order_that_is_the_best_stays():
    found = order_of_stage(graph_of(TWO_BRANCHES), [0, 2, 4, 1, 3, 5])
    assert (found.order, found.search, found.peak) == (tuple(range(6)), "given", 11)


@given(SEEDS, st.sets(st.integers(0, 6), min_size=1), st.sampled_from([0, 3, 20_000]), st.sampled_from([1, 32]))
@settings(max_examples=examples(150), deadline=None)
def test_no_order_has_a_smaller_peak(seed, inside, ideals, width):
    problem = small_problem(seed, 7, limited=True)
    nodes = [int(v) for v in problem.kahn(np.random.default_rng(seed).random(7)) if v in inside]
    with patch("tvm_sched.pipeline.least_peak._WIDEST", width):
        found = order_of_stage(problem, nodes, ideals=ideals)
    run = tuple(nodes[i] for i in found.order)
    possible = orders(problem, nodes)
    assert run in possible
    least = min(truth(problem, order) for order in possible)
    assert found.peak == truth(problem, run) <= found.given_peak == truth(problem, nodes)
    assert found.bound <= least <= found.peak
    if ideals == 20_000:
        assert found.bound == found.peak == least


@given(SEEDS, st.integers(1, 3))
@settings(max_examples=examples(40), deadline=None)
def test_an_order_changes_overflow_alone_and_never_for_the_worse(seed, stages):
    problem = small_problem(seed, 8, limited=True)
    before = partition(problem, stages, "slicegraph", {"evaluations": 1, "order": "random"})
    after, peaks = order_partition(problem, before)
    assert after.cost == problem.bottleneck(after.stage_of, after.order) <= before.cost
    lists = problem.stage_lists(after.stage_of, after.order)
    assert [each.peak for each in peaks] == [truth(problem, nodes) for nodes in lists]
    roomy = small_problem(seed, 8)
    for nodes, each in zip(lists, peaks, strict=True):  # the C++ costs know the same peaks
        over = max(sum(problem.parameters[nodes]) + each.peak - problem.memory, 0)
        assert problem.stage_cost(nodes) - roomy.stage_cost(nodes) == pytest.approx(problem.overflow_time * over)


def test_the_exact_search_improves_on_list_scheduling():
    searches = set()
    with patch("tvm_sched.pipeline.least_peak._WIDEST", 1):
        for seed in range(40):
            problem = small_problem(seed, 9)
            found = order_of_stage(problem, range(9))
            assert found.peak == found.bound
            searches.add(found.search)
    assert searches == {"given", "beam", "ideals"}


def test_sizes_are_added_exactly():
    # The first adds 1 byte for good, the second 3 while it runs: 1e16 + 4 as given, 1e16 + 3 (no double) if swapped.
    held = [Activation(1e16, -1, (0, 1), False), Activation(1, 0, (), True), Activation(3, 1, (), False)]
    assert least_peak(held, 2).order == (1, 0)
    assert least_peak([Activation(0.1, -1, (0,), False), Activation(0.2, 0, (), True)], 1).peak == pytest.approx(0.3)
    assert least_peak([], 0).peak == 0


def test_a_wide_stage_of_many_operators_ends():
    # 200 branches of a large and a small tensor from one source: one branch after the other holds one large tensor.
    width = 200
    tensors = [StageTensor(0, tuple(range(1, width + 1)), 0, 1)]
    tensors += [StageTensor(v, (v + width,), 0, 100) for v in range(1, width + 1)]
    tensors += [StageTensor(v + width, (2 * width + 1,), 0, 1) for v in range(1, width + 1)]
    tensors.append(StageTensor(2 * width + 1, (), 0, 1))
    found = order_of_stage(graph_of(tensors), range(2 * width + 2), ideals=10)
    assert found.given_peak == 1 + 100 * width
    assert found.peak == 100 + width  # the last large tensor, and what the other branches made
    assert found.bound <= found.peak


def test_a_stage_of_a_thousand_operators_has_a_bound():
    count = 1100
    tensors = [StageTensor(v, (v + 1,), 0, 1 + v % 3) for v in range(count - 1)]
    found = order_of_stage(graph_of([*tensors, StageTensor(count - 1, (), 0, 1)]), range(count))
    assert (found.peak, found.bound, found.search) == (5, 5, "given")  # sizes 2 and 3 side by side


def branched_problem(memory, weight=2):
    """`TWO_BRANCHES` on one device, breadth first; each operator has a parameter of ``weight`` bytes."""
    names = [Tensor(f"t{v}", int(tensor.size)) for v, tensor in enumerate(TWO_BRANCHES)]
    reads = [[f"t{u}" for u, tensor in enumerate(TWO_BRANCHES) if v in tensor.readers] for v in range(6)]
    weights = [Tensor(f"w{v}", weight, "parameter") for v in range(6) if weight]
    operators = tuple(
        Operator(f"op{v}", inputs=(*reads[v], *([f"w{v}"] if weight else [])), outputs=(f"t{v}",)) for v in range(6)
    )
    graph = OpGraph("branches", operators, (*names, *weights), ("t5",))
    device = Device("gpu0", memory, 1e9, {"float32": 1e12}, bus="pcie")
    return Problem(graph, Topology("one", (device,), (Bus("pcie", 1e9),)), Costs(np.full((6, 1), 100)))


def test_a_plan_is_priced_again():
    problem = branched_problem(memory=20)
    (stage,) = price(problem, [(0, range(6))])
    assert (stage.peak_bytes, stage.overflow_ns) == (16, 12 + 16 - 20)
    plan = PipelinePlan(problem.digest, (stage,))
    ordered, (order,) = order_plan(problem, plan)
    assert (order.given_peak, order.peak, ordered.stages[0].peak_bytes) == (16, 11, 11)
    assert ordered.stages[0].overflow_ns == 12 + 11 - 20
    assert ordered.cost_ns == plan.cost_ns - 5
    verify(problem, ordered)


def test_a_certificate_has_the_cost_of_the_new_order():
    problem = branched_problem(memory=20)
    plan = plan_pipeline(problem, 1, "equal-split")
    ordered, _ = order_plan(problem, plan)
    assert ordered.certificate.cost_ns == ordered.cost_ns <= plan.certificate.cost_ns
    assert ordered.certificate.lower_bound_ns == plan.certificate.lower_bound_ns


def test_a_stage_whose_activations_do_not_fit_as_given_gets_another_order():
    assert plan_pipeline(branched_problem(memory=11, weight=0), 1, "equal-split").stages[0].peak_bytes == 11
    with pytest.raises(InfeasibleError):
        plan_pipeline(branched_problem(memory=10, weight=0), 1, "equal-split")


def test_a_chain_has_one_order():
    problem = chain_problem()
    plan = plan_pipeline(problem, 2, "tarnawski-dp")
    assert order_plan(problem, plan)[0] == plan


@given(problems())
@settings(max_examples=examples(30), deadline=None)
def test_ordered_plans_hold(problem):
    try:
        plan = plan_pipeline(problem, 1, "equal-split")
    except (InfeasibleError, InputError):  # no plan, or an operator that runs nowhere
        assume(False)
    ordered, peaks = order_plan(problem, plan)
    assert ordered.cost_ns <= plan.cost_ns
    assert [stage.peak_bytes for stage in ordered.stages] == [each.peak for each in peaks]
