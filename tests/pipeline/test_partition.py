"""Partitioners and bounds against exhaustive search, and the cases worked by hand."""

import itertools
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest
from exhaustive import optimum, small_problem, stage_cost
from hypothesis import given, settings
from hypothesis import strategies as st

from thorough import examples
from tvm_sched.bounds.partitions.node import node_bound
from tvm_sched.bounds.partitions.prices import price_bound
from tvm_sched.bounds.partitions.semidefinite import semidefinite_bound
from tvm_sched.bounds.partitions.simple import simple_bound
from tvm_sched.pipeline import names, partition
from tvm_sched.pipeline.anytime_partitioner import AnytimeOptions
from tvm_sched.pipeline.bound_steps import Bottleneck, BottleneckGuess, ExactProgram, Formulas, Semidefinite
from tvm_sched.pipeline.integer_programs import bottleneck_bound, bottleneck_guess_bound, exact_program, stage_ranges
from tvm_sched.pipeline.partition_state import Annealing, Ideals, Neighbours, PartitionState
from tvm_sched.pipeline.segments import least_bottleneck, least_sum
from tvm_sched.pipeline.slicegraph import cut
from tvm_sched_bench.testing.regal import regal_like
from tvm_sched_runtime.errors import GraphError, InfeasibleError, InputError, SchedulerError
from tvm_sched_runtime.pipeline import PartitionProblem, StageTensor
from tvm_sched_runtime.search_budget import Budget, Turn, improve

SEEDS = st.integers(0, 10_000)
FAST = {"anytime": {"time_limit": 1.0, "moves": 2000}, "slicegraph": {"evaluations": 100}}


def tight_example(k, epsilon=0.125):
    """Lemma B.2: heavy nodes 0 to k-1, light ones k to 2k-1, one dear edge from 0 to k."""
    work = np.array([1 - epsilon] * k + [epsilon] * k)
    return PartitionProblem([str(v) for v in range(2 * k)], work, np.zeros(2 * k), [StageTensor(0, (k,), 10.0 * k)])


@pytest.mark.parametrize("k", [2, 3, 5])
def test_slicing_is_k_times_the_optimum_on_the_tight_example(k):
    problem = tight_example(k)
    bad = [*range(k), *reversed(range(k, 2 * k))]
    assert problem.slice(bad, k)[0] == pytest.approx(k)
    good = [v for pair in zip(range(k), range(k, 2 * k), strict=True) for v in pair]
    assert problem.slice(good, k)[0] == pytest.approx(1)


def test_costs_of_the_stages_of_a_diamond():
    # 0 -> {1, 2} -> 3; one tensor of 0 has two readers and is counted once.
    tensors = [StageTensor(0, (1, 2), 5), StageTensor(1, (3,), 3), StageTensor(2, (3,), 2)]
    problem = PartitionProblem(list("abcd"), np.array([1.0, 10, 20, 4]), np.zeros(4), tensors)
    assert problem.stage_cost([0]) == 1 + 5
    assert problem.stage_cost([1, 2]) == 5 + 30 + 3 + 2
    assert problem.stage_cost([0, 1]) == 11 + 5 + 3
    assert problem.stage_cost([0, 1, 2, 3]) == 35
    assert problem.bottleneck([0, 0, 1, 1]) == 5 + 3 + 24


def test_overflow_counts_peak_memory():
    # Node 0 makes 10 bytes for node 1: 10 at node 0, 10 + 4 at node 1; 30 bytes of parameters, memory 40.
    tensors = [StageTensor(0, (1,), 0, 10), StageTensor(1, (), 0, 4, leaves=True)]
    problem = PartitionProblem(["a", "b"], np.ones(2), np.array([20.0, 10]), tensors, 40, 2)
    assert problem.stage_cost([0, 1]) == 2 + 2 * (30 + 14 - 40)


@given(SEEDS, st.integers(1, 4), st.booleans())
@settings(max_examples=examples(60), deadline=None)
def test_slicing_finds_the_best_cut_of_an_order(seed, stages, limited):
    problem = small_problem(seed, 7, limited)
    order = problem.kahn(np.random.default_rng(seed).random(7))
    cost, ends = problem.slice(order, stages)
    cuts = (cut for j in range(stages) for cut in itertools.combinations(range(1, 7), j))
    segments = [[order[a:b] for a, b in itertools.pairwise((0, *cut, 7))] for cut in cuts]
    best = min(max(problem.stage_cost(part) for part in parts) for parts in segments)
    assert cost == pytest.approx(best)
    assert problem.bottleneck(problem.stages_of(order, ends), order) == pytest.approx(cost)
    table = problem.segment_costs(order)
    assert least_bottleneck([table] * stages).value == pytest.approx(best)
    assert table[2, 5] == pytest.approx(problem.stage_cost(order[2:5]))


@given(SEEDS, st.lists(st.integers(0, 6), min_size=1, max_size=7, unique=True))
@settings(max_examples=examples(60), deadline=None)
def test_stage_cost_agrees_with_the_paper(seed, nodes):
    problem = small_problem(seed, 7)
    assert problem.stage_cost(nodes) == pytest.approx(stage_cost(problem, nodes))


@pytest.mark.slow
@given(SEEDS, st.integers(2, 3), st.booleans())
@settings(max_examples=examples(25), deadline=None)
def test_no_bound_exceeds_the_optimum(seed, stages, limited):
    problem = small_problem(seed, 6, limited)
    best = optimum(problem, stages)
    slack = best * (1 + 1e-9) + 1e-9
    assert simple_bound(problem, stages) <= slack
    assert node_bound(problem) <= slack
    assert bottleneck_bound(problem, stages, seconds=5).bound <= slack
    assert bottleneck_guess_bound(problem, stages, seconds=5).bound <= slack
    exact = exact_program(problem, stages, seconds=5)
    assert exact.bound <= slack
    assert exact.bound == pytest.approx(best, rel=1e-4, abs=1e-4)
    assert exact_program(problem, stages, seconds=5, cutoff=1.2 * best + 1).bound <= slack


def test_programs_charge_an_input_that_is_an_output_too_to_its_readers_alone():
    problem = PartitionProblem(["a", "b"], np.array([1.0, 5.0]), np.zeros(2), [StageTensor(-1, (0,), 3, leaves=True)])
    assert problem.bottleneck([0, 1]) == 5
    for program in (bottleneck_bound, bottleneck_guess_bound, exact_program):
        assert program(problem, 2, seconds=5).bound == pytest.approx(5, rel=1e-5)


@given(SEEDS, st.integers(2, 4))
@settings(max_examples=examples(25), deadline=None)
def test_partitions_cost_what_their_order_does_where_memory_is_short(seed, stages):
    problem = small_problem(seed, 9, limited=True)
    for name in ("slicegraph", "anytime", "pipedream"):
        found = partition(problem, stages, name, FAST.get(name))
        assert found.cost == problem.bottleneck(found.stage_of, found.order)
    found = partition(problem, stages, "slicegraph", {"evaluations": 100})
    assert found.cost == pytest.approx(problem.slice(found.order, stages)[0])


def test_the_programs_of_table_3_by_name():
    # A chain by hand: three stages (4, 3), (5, 2), (6) take 7, 7, 6.
    tensors = [StageTensor(v, (v + 1,), 0.0) for v in range(4)]
    problem = PartitionProblem(list("abcde"), np.array([4.0, 3, 5, 2, 6]), np.zeros(5), tensors)
    costs = {}
    for name in ("exact", "bottleneck", "bottleneck-guess"):
        found = partition(problem, 3, name, {"evaluations": 1, "time_limit": 20})
        costs[name] = found.cost, round(found.bound, 3)
        assert found.bound_name in (name, "simple")
    assert costs["exact"] == (7, 7)
    assert all(cost == 7 and bound + 1e-3 >= 20 / 3 for cost, bound in costs.values())
    with pytest.raises(InputError, match="time_limit is -1"):
        partition(problem, 3, "exact", {"time_limit": -1})


def test_an_order_against_the_edges_is_refused():
    problem = PartitionProblem(["a", "b"], np.ones(2), np.zeros(2), [StageTensor(0, (1,), 1)])
    assert problem.bottleneck([0, 1], [1, 0]) == 2  # each stage by itself
    with pytest.raises(GraphError, match="'b' runs before 'a'"):
        problem.bottleneck([0, 0], [1, 0])
    with pytest.raises(GraphError, match="each of 2 nodes once"):
        problem.bottleneck([0, 0], [0, 0])


@given(SEEDS, st.integers(2, 3))
@settings(max_examples=examples(25), deadline=None)
def test_ideals_give_the_optimum_and_nobody_beats_it(seed, stages):
    problem = small_problem(seed, 6)
    best = optimum(problem, stages)
    found = partition(problem, stages, "tarnawski-dp")
    assert (found.cost, found.bound) == (pytest.approx(best), pytest.approx(best))
    for name in names():
        found = partition(problem, stages, name, FAST.get(name))
        assert found.cost >= best - 1e-9
        assert found.bound <= best * (1 + 1e-9) + 1e-9
        assert found.cost == pytest.approx(problem.bottleneck(found.stage_of, found.order))


@given(SEEDS, st.integers(2, 4))
@settings(max_examples=examples(30), deadline=None)
def test_stage_ranges_hold_every_partition_within_the_cutoff(seed, stages):
    problem = small_problem(seed, 7)
    found = partition(problem, stages, "slicegraph", {"evaluations": 100})
    first, last = stage_ranges(problem, stages, found.cost)
    assert (first <= found.stage_of).all()
    assert (found.stage_of <= last).all()


@pytest.mark.parametrize("order", ["brkga", "random", "mla", "mla-weighted"])
def test_equal_seeds_give_equal_partitions_on_any_number_of_threads(order):
    problem = regal_like(4, 40)
    options = {"order": order, "evaluations": 100, "seed": 3}
    found = [partition(problem, 4, "slicegraph", {**options, "threads": t}).stage_of.tolist() for t in (1, 2, 2)]
    assert found[0] == found[1] == found[2]


def test_refining_never_makes_a_partition_dearer_and_is_deterministic():
    problem = regal_like(2, 60)
    start = partition(problem, 6, "equal-split").stage_of
    refined = problem.refine(start, 6, seed=1, moves=50_000)
    assert problem.bottleneck(refined) < problem.bottleneck(start)
    assert (refined == problem.refine(start, 6, seed=1, moves=50_000)).all()


@pytest.mark.parametrize("seed", range(20))
def test_refining_prices_each_of_its_moves_as_the_problem_does(seed):
    """Moves priced too low would end in dearer partitions, too high in none: from one stage something is always gained."""
    problem = small_problem(seed, 10)
    for stages in (2, 3, 5):
        refined = problem.refine(np.zeros(10), stages, seed=seed, moves=5_000)
        assert problem.bottleneck(refined) <= problem.bottleneck(np.zeros(10))
        assert all(refined[t.producer] <= refined[w] for t in problem.tensors if t.producer >= 0 for w in t.readers)
    halves = cut(problem, problem.kahn(np.zeros(10)), 2)
    assert problem.bottleneck(problem.refine(halves, 2, seed=seed, moves=5_000)) <= problem.bottleneck(halves)


def test_anytime_proves_a_small_graph():
    found = partition(small_problem(5, 8), 3, "anytime", {"time_limit": 10})
    assert found.gap < 1e-4
    assert found.cost == pytest.approx(optimum(small_problem(5, 8), 3))


@pytest.mark.slow
def test_the_same_work_and_seed_give_the_same_partition_and_bound():
    options = {"work": 0.3, "seed": 2}
    first, second = (partition(regal_like(1, 60), 4, "anytime", options) for _ in range(2))
    assert (first.stage_of == second.stage_of).all()
    assert (first.bound, first.bound_name, first.status) == (second.bound, second.bound_name, second.status)


def test_the_status_of_a_partition():
    assert partition(small_problem(5, 8), 3, "anytime", {"work": 1}).status == "optimal"
    assert partition(regal_like(1, 60), 4, "equal-split").status == "no better found"
    assert partition(regal_like(1, 300), 8, "anytime", {"work": 0.5}).status == "time limit"


@pytest.mark.parametrize(
    "improver",
    [Ideals, Formulas, Annealing, Semidefinite, Neighbours, Bottleneck, BottleneckGuess, ExactProgram],
)
def test_an_improver_tells_that_its_budget_was_too_small(improver):
    state = PartitionState(regal_like(1, 60), 4, threads=1)
    assert improve(state, [Turn(improver(), 1.0)], Budget(1e-4)) == "time limit"


def test_an_improver_that_came_to_its_end_says_so():
    state = PartitionState(regal_like(1, 60), 4, threads=1)
    for improver in (Formulas(), Annealing(1000)):
        assert improve(state, [Turn(improver, 1.0)], Budget(10.0)) == "no better found"


def test_little_work_buys_few_iterations_of_a_small_graph(monkeypatch):
    """An iteration on four nodes takes as long as on some forty; a work of 0.01 s is 100 of them at most."""
    asked = []
    monkeypatch.setattr(
        "tvm_sched.pipeline.bound_steps.semidefinite_bound", lambda *_, iterations, **__: asked.append(iterations)
    )
    Semidefinite().step(PartitionState(small_problem(1, 4), 2), Budget(work=0.01))
    assert asked == [100]


def test_little_work_lists_as_many_ideals_as_it_pays_for_and_leaves_the_rest_to_others():
    problem = regal_like(1, 60)
    state, budget = PartitionState(problem, 4), Budget(0.01)
    improve(state, [Turn(Ideals(), 1.0)], budget)
    assert 0.01 <= budget.spent <= 0.011  # not what 20,000 ideals take
    start = problem.bottleneck(PartitionState(problem, 4).stage_of)
    assert partition(problem, 4, "anytime", {"work": 0.1}).cost < start


def test_a_fault_of_the_bound_is_told_when_the_search_is_interrupted(monkeypatch):
    def fail(self, state, budget):
        raise SchedulerError("a fault of the bound")

    def interrupted(doing, done, total):
        if doing == "annealing":
            raise KeyboardInterrupt

    monkeypatch.setattr(Semidefinite, "step", fail)
    with pytest.raises(SchedulerError, match="a fault of the bound"):
        partition(regal_like(1, 60), 4, "anytime", {"time_limit": 5, "threads": 2}, progress=interrupted)


@pytest.mark.parametrize("what", ["bounds from single nodes", "annealing"])
def test_an_interrupt_gives_the_best_partition_so_far(what):
    def interrupted(doing, done, total):
        if doing == what:
            raise KeyboardInterrupt

    problem = regal_like(1, 60)
    found = partition(problem, 4, "anytime", {"time_limit": 5}, progress=interrupted)
    assert found.status == "interrupted"
    assert found.cost == problem.bottleneck(found.stage_of)


def test_a_bound_above_the_cost_is_a_fault_that_is_told(monkeypatch):
    from tvm_sched.pipeline import bound_steps

    monkeypatch.setattr(bound_steps, "simple_bound", lambda problem, stages: 1e12)
    with pytest.raises(SchedulerError, match="please report this"):
        partition(regal_like(1, 60), 4, "anytime", {"time_limit": 1})


def test_what_highs_prints_by_itself_is_not_on_standard_output():
    """It does for this program, though told to be silent; into a pipe that comes out when the process ends."""
    code = (
        "from tvm_sched.pipeline.integer_programs import exact_program\n"
        "from tvm_sched_bench.testing.regal import regal_like\n"
        "exact_program(regal_like(0, 12), 3, seconds=60)\nprint('result')"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=True)
    assert done.stdout == "result\n"
    assert "Highs" in done.stderr, "nothing was printed: another program is needed to test it"


def test_anytime_keeps_its_time_limit_on_a_large_graph():
    found = partition(regal_like(1, 2000), 32, "anytime", {"time_limit": 1.0})
    assert found.bound > 0
    assert found.seconds < 30  # on a busy machine; without a look at the clock inside of its parts it takes minutes


def test_pipedream_balances_a_chain():
    tensors = [StageTensor(v, (v + 1,), 1) for v in range(5)]
    problem = PartitionProblem(list("abcdef"), np.array([3.0, 3, 3, 3, 6, 6]), np.zeros(6), tensors)
    assert partition(problem, 3, "pipedream").stage_of.tolist() == [0, 0, 0, 1, 1, 2]  # 9 (and 1 sent), 9, 6
    assert partition(problem, 4, "equal-split").stage_of.tolist() == [0, 0, 1, 1, 2, 3]


def test_least_sum_keeps_its_ceiling():
    costs = np.array([[0, 4, 9, 20], [np.inf, 0, 4, 9], [np.inf, np.inf, 0, 4], [np.inf, np.inf, np.inf, 0]])
    assert least_sum([costs] * 3, 25).value == 12  # 4 + 4 + 4; two segments cost 9 + 4, one 20
    assert least_sum([costs] * 2, 10).value == 13
    assert least_sum([costs] * 2, 4).ends == []


def test_what_is_wrong_is_named():
    problem = small_problem(1)
    with pytest.raises(InputError, match="no partitioner 'best'"):
        partition(problem, 2, "best")
    with pytest.raises(InputError, match="has no option 'speed'"):
        partition(problem, 2, "slicegraph", {"speed": 1})
    for options in ({"work": "inf"}, {"time_limit": "inf"}):
        with pytest.raises(InputError, match="is infinite; give a finite work"):
            partition(problem, 2, "anytime", options)
    with pytest.raises(InputError, match="stages is 0"):
        partition(problem, 0)
    with pytest.raises(GraphError, match="cycle"):
        PartitionProblem(["a", "b"], np.ones(2), np.zeros(2), [StageTensor(0, (1,), 1), StageTensor(1, (0,), 1)])
    with pytest.raises(GraphError, match="work of node 'b' is -1"):
        PartitionProblem(["a", "b"], np.array([1.0, -1]), np.zeros(2), [])
    for work, transfer in ((1e308, 0.0), (1e299, 9e299)):
        with pytest.raises(GraphError, match=r"add up to .*; at most 1e\+300 is allowed: give them in a larger unit"):
            PartitionProblem(["a", "b"], np.full(2, work), np.zeros(2), [StageTensor(0, (1,), transfer)])
    with pytest.raises(InfeasibleError, match="more than 10 ideals"):
        partition(regal_like(0, 50), 4, "tarnawski-dp", {"most_ideals": 10})


@pytest.mark.parametrize("scale", [1e-300, 9e299])
def test_times_of_any_size_are_bounded_alike(scale):
    graph = regal_like(3, 24)
    by = scale / (float(graph.work.sum()) + sum(t.transfer for t in graph.tensors))
    tensors = tuple(replace(t, transfer=t.transfer * by) for t in graph.tensors)
    scaled = replace(graph, work=graph.work * by, tensors=tensors)
    order = graph.kahn(np.zeros(graph.size))
    cost = graph.slice(order, 8)[0]
    assert scaled.slice(order, 8)[0] == pytest.approx(cost * by, rel=1e-9)
    for bound in (
        lambda g, most: price_bound(g, 8, cutoff=most, steps=20_000)[0],
        lambda g, most: semidefinite_bound(g, 8, cutoff=most, iterations=50),
    ):
        assert bound(scaled, cost * by) == pytest.approx(bound(graph, cost) * by, rel=1e-3)


def test_an_empty_graph_costs_nothing():
    empty = PartitionProblem([], np.zeros(0), np.zeros(0), [])
    for name in names():
        assert partition(empty, 3, name, FAST.get(name)).cost == 0


@pytest.mark.parametrize("program", [Bottleneck, ExactProgram])
def test_bounds_of_programs_say_whose_word_they_are(program):
    state = PartitionState(small_problem(3, 6), 2)
    program().step(state, AnytimeOptions(time_limit=20).budget())
    assert 0 < state.bound <= optimum(state.problem, 2) * (1 + 1e-9)
    assert state.bound_name.endswith(" (solver highs)")
    state.raise_bound(2 * state.bound, "simple")
    assert state.bound_name == "simple"
