"""Least times through groups, over all ways to compute them."""

import numpy as np
import pytest
from hypothesis import assume, given, settings

from checker.cases import files_of
from strategies import SEEDS, problems
from thorough import examples
from tvm_sched.bounds import all_bounds, lower_bound, relaxation_of
from tvm_sched.schedulers import solve
from tvm_sched_bench.testing import random_problem, random_schedule, random_variants
from tvm_sched_check.document import Refused
from tvm_sched_runtime.problem import Alternative, Costs, Group, Operator, Problem, Tensor, Variants
from tvm_sched_runtime.schedule.simulator import simulate
from variant_cases import blocks_in_halves


@pytest.mark.parametrize("groups", [1, 3])
def test_each_block_takes_as_long_as_its_best_way(groups):
    problem = blocks_in_halves(groups)
    assert [delay.ns for delay in relaxation_of(problem).extra] == [90] * groups
    assert lower_bound(problem).ns == 20 + 90 * groups
    schedule = solve(problem, method="anytime", options={"work": 0.2})
    assert simulate(problem, schedule).latency_ns == 20 + 90 * groups


def test_where_copies_take_long_the_whole_block_is_the_best_way():
    assert lower_bound(blocks_in_halves(copy_ns=60)).ns == 20 + 120


@pytest.mark.parametrize("groups", [1, 3])
def test_blocks_whose_parts_read_pieces_follow_each_other(groups):
    """No operator of the graph reads what the blocks hand on in all ways; where copies take long, one device is optimal."""
    problem = blocks_in_halves(groups, copy_ns=60, cut=True)
    assert lower_bound(problem).ns == 20 + 120 * groups == solve(problem, method="single").certificate.latency_ns
    assert 20 + 90 * groups <= lower_bound(blocks_in_halves(groups, cut=True)).ns < 20 + 120 * groups


def test_a_group_at_the_start_of_a_run_takes_as_long_as_its_best_way(tmp_path):
    """The first operator, 10 ns, or two halves of 6 and a tail of 5: a copy of 20 ns is not worth it."""
    problem = blocks_in_halves()
    halves = (
        Operator("left", outputs=("l",)),
        Operator("right", outputs=("r",)),
        Operator("sum", "", ("l", "r"), ("y",)),
    )
    group = Group("first", ("first",), (Alternative("halves", halves, (Tensor("l", 20), Tensor("r", 20))),))
    times = Costs(np.vstack([[[6, 6], [6, 6], [5, 5]], problem.variants.costs.operator_ns]))
    more = Problem(problem.graph, problem.topology, problem.costs, Variants([group, *problem.variants.groups], times))
    assert lower_bound(more).ns == 20 + 90
    best = solve(more, options={"work": 0.1})
    files = files_of(more, best)
    assert files.check(tmp_path).all_proved
    (start,) = (lemma for lemma in files.evidence["lemmas"] if lemma.get("last") == "first")
    start["first"] = "last"
    with pytest.raises(Refused, match="is not produced by the first operator"):
        files.check(tmp_path)


def test_an_activation_may_be_narrower_than_what_an_operator_reads_of_it():
    """In the relaxed problem of this seed ``a3`` has 26 bytes, since pieces of it lead on; ``op5`` reads 195."""
    problem = random_variants(random_problem(104, 11, 1, memory="generous"), 104, 3)
    assert lower_bound(problem).ns <= solve(problem, method="single").certificate.latency_ns


def test_a_way_that_does_not_wait_for_what_the_graph_reads_leaves_nothing_to_say():
    problem = blocks_in_halves()
    group = problem.variants.groups[0]
    alone = Alternative("constant", (Operator("constant", outputs=("y0",)),))
    group = Group(group.name, group.operators, (*group.alternatives, alone))
    costs = Costs(np.vstack([problem.variants.costs.operator_ns, [[50, 50]]]))
    more = Problem(problem.graph, problem.topology, problem.costs, Variants([group], costs))
    assert relaxation_of(more).extra == ()
    assert lower_bound(more).ns <= 10 + 50


@settings(max_examples=examples(40), deadline=None)
@given(problem=problems(max_operators=10, max_devices=4, min_operators=2, memory=("generous",)), seed=SEEDS)
def test_no_schedule_of_any_choice_is_faster(problem, seed):
    problem = random_variants(problem, seed, groups=4)
    assume(problem.variants is not None)
    bounds = all_bounds(problem)
    choices = [{}, *({group.name: way} for group in problem.variants.groups for way in group.alternative_names[1:])]
    for k, choice in enumerate(choices[:6]):
        chosen = problem.resolve(choice)
        latency = simulate(chosen, random_schedule(chosen, seed + k)).latency_ns
        assert all(bound.ns <= latency for bound in bounds)
