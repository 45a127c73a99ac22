"""The bound from prices, the stages worth most, and the bound from single nodes, against sets listed one by one."""

import itertools
import time

import numpy as np
import pytest
from exhaustive import optimum, possible_stages, small_problem, stage_cost
from hypothesis import given, settings
from hypothesis import strategies as st

from thorough import examples
from tvm_sched.bounds.partitions.matrix_cuts import paths
from tvm_sched.bounds.partitions.node import dearest_node, node_bound
from tvm_sched.bounds.partitions.prices import PriceBound, price_bound, whole
from tvm_sched.bounds.partitions.semidefinite import semidefinite_bound
from tvm_sched.pipeline import partition
from tvm_sched.pipeline.anytime_partitioner import compute_bounds, turns
from tvm_sched.pipeline.bound_steps import LEAST_STEPS, PRICED_NODES, STEP_SECONDS, Prices, Semidefinite
from tvm_sched.pipeline.partition_state import PartitionState
from tvm_sched_bench.testing.regal import regal_like
from tvm_sched_runtime.pipeline import PartitionProblem, StageTensor
from tvm_sched_runtime.search_budget import Budget

SEEDS = st.integers(0, 10_000)


@given(SEEDS, SEEDS)
@settings(max_examples=examples(100), deadline=None)
def test_stages_worth_more_are_found_exactly_where_there_are_some(seed, other):
    problem = small_problem(seed, 8)
    random = np.random.default_rng(other)
    values = random.integers(0, 1000, problem.size)
    costs = [(stage_cost(problem, nodes), int(values[nodes].sum())) for nodes in possible_stages(problem)]
    limit = float(random.choice([cost for cost, _ in costs]))
    most = max(worth for cost, worth in costs if cost <= limit)
    assert problem.valuable_stages(values, most, limit)[::2] == (problem.size, [])
    if most > 0:
        looked, steps, found = problem.valuable_stages(values, most - 1, limit)
        assert (looked, bool(found)) == (problem.size, True)
        assert steps >= len(found)
        for nodes in found:
            assert values[nodes].sum() == most
            assert stage_cost(problem, nodes) <= limit
            assert any(np.array_equal(nodes, each) for each in possible_stages(problem))


@given(SEEDS)
@settings(max_examples=examples(30), deadline=None)
def test_a_search_goes_on_where_it_stopped(seed):
    problem = regal_like(seed, 20)
    values = whole(problem.work)
    limit, target = float(problem.work.sum()) / 4, int(values.sum()) // 8
    looked, found = 0, []
    while looked < problem.size:
        looked, steps, more = problem.valuable_stages(values, target, limit, first=looked, steps=1)
        assert steps >= 1
        found += [nodes.tolist() for nodes in more]
    assert found == [nodes.tolist() for nodes in problem.valuable_stages(values, target, limit)[2]]


def test_a_search_tree_of_any_size_ends_with_the_steps():
    """Of 32 nodes that nothing joins, worth what they take: very many sets are nearly worth enough."""
    work = np.random.default_rng(0).uniform(1000, 2000, 32)
    problem, values = PartitionProblem([str(v) for v in range(32)], work, np.zeros(32), []), whole(work)
    limit, target = work.sum() / 4, int(values.sum()) // 4 + 3
    assert problem.valuable_stages(values, target, limit, steps=10, most=5000)[:2] == (0, 5000)
    search = PriceBound(problem, 4)
    assert search.proves(limit * (1 - 1e-9), steps=500, seconds=lambda: 60.0) is None
    assert search.steps < 700


def test_values_out_of_range_and_clocks_that_are_over():
    problem = small_problem(3, 6)
    for values in ([1, 2, 3], [-1, 0, 0, 0, 0, 0], [1 << 30, 1, 0, 0, 0, 0]):
        with pytest.raises(ValueError, match="values"):
            problem.valuable_stages(values, 0, 1.0)
    with pytest.raises(ValueError, match="limit"):
        problem.valuable_stages([0] * 6, 0, -1.0)
    large = regal_like(0, 150)
    looked = large.valuable_stages(whole(large.work), 1 << 27, 1e5, seconds=0.0)[0]
    assert looked < large.size


@given(SEEDS, st.integers(1, 4), st.booleans())
@settings(max_examples=examples(40), deadline=None)
def test_prices_never_exceed_the_optimum(seed, stages, limited):
    problem = small_problem(seed, 6, limited)
    best = optimum(problem, stages)
    bound, steps = price_bound(problem, stages, cutoff=best)
    assert 0 <= bound <= best * (1 + 1e-9)
    assert steps > 0 or best == 0


@given(SEEDS, st.integers(2, 4), st.floats(0.3, 1.5))
@settings(max_examples=examples(60), deadline=None)
def test_a_limit_is_proved_only_below_the_optimum(seed, stages, share):
    problem = small_problem(seed, 6)
    limit = share * optimum(problem, stages)
    proved = PriceBound(problem, stages).proves(limit, steps=10**6, seconds=lambda: 60.0)
    assert proved is not None
    if share >= 1:
        assert not proved


@given(SEEDS, st.integers(2, 4), st.floats(0.3, 1.0))
@settings(max_examples=examples(30), deadline=None)
def test_stages_found_for_a_limit_that_is_not_proved_do_not_count_for_lower_ones(seed, stages, share):
    problem = small_problem(seed, 6)
    best = optimum(problem, stages)
    searches = [PriceBound(problem, stages) for _ in range(2)]
    assert searches[0].proves(1.5 * best, steps=10**6, seconds=lambda: 60.0) is False
    first, again = (search.proves(share * best, steps=10**6, seconds=lambda: 60.0) for search in searches)
    assert first is again is not None


def test_limits_that_are_not_proved_do_not_end_the_search():
    problem = regal_like(0, 24)
    cost = problem.bottleneck(problem.refine(np.zeros(24), 6, moves=100_000))
    bound, _ = price_bound(problem, 6, cutoff=cost, steps=60_000)
    assert PriceBound(problem, 6).proves(0.995 * bound, steps=10**6, seconds=lambda: 60.0)
    assert not PriceBound(problem, 6).proves(1.005 * bound, steps=10**6, seconds=lambda: 60.0)


def test_prices_are_stronger_than_the_semidefinite_bound_where_stages_have_few_nodes():
    problem = regal_like(2, 30)
    cost = problem.bottleneck(problem.refine(np.zeros(30), 6, moves=100_000))
    before = semidefinite_bound(problem, 6, cutoff=cost, iterations=200)
    bound, steps = price_bound(problem, 6, bound=before, cutoff=cost, steps=20_000)
    assert before * 1.02 < bound <= cost
    assert price_bound(problem, 6, bound=before, cutoff=cost, steps=20_000) == (bound, steps)


def test_prices_end_with_steps_time_or_a_watch_that_has_seen_enough():
    problem = regal_like(0, 24)
    cost = problem.slice(problem.kahn(np.zeros(24)), 8)[0]
    assert price_bound(problem, 8, cutoff=cost, steps=0) == (0.0, 0)
    assert price_bound(problem, 8, cutoff=cost, seconds=lambda: 0.0) == (0.0, 0)
    seen = []
    bound, _ = price_bound(problem, 8, cutoff=cost, watch=lambda bound: bool(seen.append(bound)) or True)
    assert seen == [bound]
    assert bound > 0
    nothing = PartitionProblem([], np.zeros(0), np.zeros(0), [])
    assert price_bound(nothing, 3, cutoff=1.0) == (0.0, 0)
    free = PartitionProblem(["a"], np.zeros(1), np.zeros(1), [])
    assert price_bound(free, 2, cutoff=1.0)[0] <= 1.0  # costs nothing: no price says more


def test_anytime_asks_for_prices_where_stages_have_few_nodes_and_work_is_left():
    problem = regal_like(1, 40)
    state = PartitionState(problem, 8)
    enough = LEAST_STEPS * STEP_SECONDS * 40
    assert Prices.pays(state, enough)
    assert not Prices.pays(state, 0.9 * enough)
    assert not Prices.pays(PartitionState(problem, 40 // PRICED_NODES - 1), enough)
    for priced in (False, True):
        assert priced == any(isinstance(turn.improver, Prices) for turn in turns(True, False, 1, priced))
    state.offer_partition(problem.refine(state.stage_of, 8, moves=100_000))
    budget = Budget(work=enough / 4)
    Prices().step(state, budget)
    assert state.bound_name == "prices"
    assert 0.9 * state.cost < state.bound <= state.cost
    assert budget.too_small
    few = LEAST_STEPS * STEP_SECONDS * 9 / 0.6
    assert partition(small_problem(5, 9), 3, "anytime", {"work": 1.1 * few}).status == "optimal"


def test_a_semidefinite_search_that_prices_cut_off_did_not_come_to_its_end(monkeypatch):
    monkeypatch.setattr(Semidefinite, "step", lambda _, state, budget: setattr(budget, "too_small", True))
    monkeypatch.setattr(Prices, "step", lambda _, state, budget: setattr(budget, "too_small", False))
    budget = Budget(deadline=time.monotonic() + 1000)
    compute_bounds(PartitionState(regal_like(1, 40), 8), budget)
    assert budget.too_small


def test_prices_end_where_all_is_proved():
    state = PartitionState(regal_like(1, 40), 8)
    state.ended = True
    Prices().step(state, Budget(work=10.0))
    assert state.bound == 0


@given(SEEDS)
@settings(max_examples=examples(60), deadline=None)
def test_the_bound_of_single_nodes_is_that_of_the_sets_that_a_stage_can_be(seed):
    problem = small_problem(seed, 7)
    before = paths(problem)
    least = np.full(problem.size, np.inf)
    for chosen in itertools.product((False, True), repeat=problem.size):
        inside = np.array(chosen)
        for v in np.flatnonzero(inside):
            after, ahead = before[inside].any(axis=0), before[:, inside].any(axis=1)
            if not ((after & before[:, v] | ahead & before[v]) & ~inside).any():
                least[v] = min(least[v], stage_cost(problem, np.flatnonzero(inside)))
    bound, node = dearest_node(problem)
    assert bound == node_bound(problem) == pytest.approx(least.max(), abs=1e-6)
    assert bound == pytest.approx(least[node], abs=1e-6)


def test_single_nodes_take_along_what_is_on_paths(monkeypatch):
    # a -> b -> c and a -> c, the last the dearest. By the cuts alone c would take a along, and not b.
    tensors = [StageTensor(0, (1,), 1), StageTensor(1, (2,), 1), StageTensor(0, (2,), 8), StageTensor(-1, (0,), 1)]
    problem = PartitionProblem(list("abc"), np.array([1.0, 9, 10]), np.zeros(3), tensors)
    assert node_bound(problem) == pytest.approx(10 + 8 + 1)  # c alone; all three are 21
    monkeypatch.setattr("tvm_sched.bounds.partitions.node.MOST_CONVEX", 2)
    assert node_bound(problem) == pytest.approx(1 + 10 + 1 + 1 + 1)  # a and c
