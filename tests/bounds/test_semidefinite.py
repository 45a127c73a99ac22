"""The semidefinite bound and what it is made of, against partitions listed one by one."""

import itertools

import numpy as np
import pytest
from exhaustive import optimum, small_problem, stage_cost
from hypothesis import given, settings
from hypothesis import strategies as st

from thorough import examples
from tvm_sched.bounds.partitions import semidefinite
from tvm_sched.bounds.partitions.eigenvalue import least_eigenvalue
from tvm_sched.bounds.partitions.matrix_cuts import Cuts, paths, separate
from tvm_sched.bounds.partitions.matrix_relaxation import DualPoint, MatrixRelaxation
from tvm_sched.bounds.partitions.minorants import stage_costs, total_transfers
from tvm_sched.bounds.partitions.parts import consecutive, induced
from tvm_sched.bounds.partitions.semidefinite import semidefinite_bound
from tvm_sched.bounds.partitions.simple import simple_bound
from tvm_sched.pipeline import partition
from tvm_sched_bench.testing.regal import regal_like
from tvm_sched_runtime.pipeline import PartitionProblem, StageTensor

SEEDS = st.integers(0, 10_000)


def partition_matrix(stage_of):
    return np.equal.outer(stage_of, stage_of).astype(float)


def some_partition(problem, stages, seed):
    """A partition whose edges lead to no earlier stage."""
    random = np.random.default_rng(seed)
    order = problem.kahn(random.random(problem.size))
    stage_of = np.zeros(problem.size, dtype=np.int64)
    stage_of[order] = np.sort(random.integers(0, stages, problem.size))
    return stage_of


def near_matrix(problem, seed):
    """A symmetric matrix with a diagonal of ones and entries from 0 to 1."""
    values = np.random.default_rng(seed).random((problem.size, problem.size)) ** 2
    return np.maximum(np.minimum(values, values.T), np.eye(problem.size))


@given(SEEDS, SEEDS, st.integers(1, 4), st.booleans())
@settings(max_examples=examples(150), deadline=None)
def test_minorants_hold_for_every_partition_wherever_they_were_made(seed, other, stages, limited):
    problem = small_problem(seed, 7, limited)
    stage_of = some_partition(problem, stages, other)
    matrix = partition_matrix(stage_of)
    costs = [stage_cost(problem, np.flatnonzero(stage_of == s)) for s in stage_of]
    without = PartitionProblem(problem.names, problem.work * 0, problem.parameters, problem.tensors)
    transfers = sum(stage_cost(without, np.flatnonzero(stage_of == s)) for s in set(stage_of))
    for near in (near_matrix(problem, other), matrix):
        total = total_transfers(problem, near)
        assert total.constant + (total.matrix * matrix).sum() <= transfers + 1e-9
        rows = stage_costs(problem, near)
        assert (rows.constant + (rows.matrix * matrix).sum(axis=1) <= np.array(costs) + 1e-9).all()
        assert not np.diag(rows.matrix).any()
    assert rows.constant + (rows.matrix * matrix).sum(axis=1) == pytest.approx(costs)  # tight where it was made


@pytest.mark.parametrize("leaves", [False, True])
def test_a_tensor_with_two_readers_is_counted_exactly(leaves):
    tensors = [StageTensor(0, (1, 2), 5, leaves=leaves)]
    problem = PartitionProblem(list("abc"), np.ones(3), np.zeros(3), tensors)
    apart = total_transfers(problem, np.eye(3))
    together = total_transfers(problem, np.ones((3, 3)))
    assert apart.constant == 15  # three stages pay
    assert together.constant + together.matrix.sum() == (5 if leaves else 0)


def test_a_tensor_with_many_readers_is_tight_where_all_are_together_and_where_all_are_apart():
    problem = PartitionProblem(list("abcdef"), np.ones(6), np.zeros(6), [StageTensor(0, (1, 2, 3, 4, 5), 2)])
    for matrix, cost in ((np.ones((6, 6)), 0), (np.eye(6), 12)):
        total = total_transfers(problem, matrix)
        assert total.constant + (total.matrix * matrix).sum() == pytest.approx(cost)


@given(SEEDS, SEEDS, st.integers(1, 4))
@settings(max_examples=examples(100), deadline=None)
def test_partitions_obey_all_cuts(seed, other, stages):
    problem = small_problem(seed, 7)
    cuts = separate(near_matrix(problem, other), paths(problem), 50)
    assert (cuts.violations(near_matrix(problem, other)) > 0).all()
    matrix = partition_matrix(some_partition(problem, stages, seed))
    assert (cuts.violations(matrix) <= 0).all()
    products = cuts.operator(problem.size) @ matrix.ravel()
    assert products - cuts.limits == pytest.approx(cuts.violations(matrix))


def test_cuts_of_a_chain():
    # 0 -> 1 -> 2, and 0 with 2 in a stage without 1.
    problem = PartitionProblem(list("abc"), np.ones(3), np.zeros(3), [StageTensor(0, (1,), 1), StageTensor(1, (2,), 1)])
    matrix = np.array([[1, 0, 0.5], [0, 1, 0], [0.5, 0, 1]])
    convex = separate(matrix, paths(problem), 10)
    assert convex.violations(matrix).tolist() == [0.5, 0.5]
    triangle = np.array([[1, 0.9, 0.5], [0.9, 1, 0.9], [0.5, 0.9, 1]])
    assert separate(triangle, np.zeros((3, 3), dtype=bool), 10).violations(triangle) == pytest.approx([0.3])
    both = convex.join(separate(triangle, paths(problem), 10))
    assert len(both) == 3
    assert len(both.join(convex)) == 3
    assert len(Cuts.none().join(both)) == 3


@pytest.mark.slow
@given(SEEDS, st.integers(2, 4), st.booleans())
@settings(max_examples=examples(40), deadline=None)
def test_the_bound_is_below_the_optimum(seed, stages, limited):
    problem = small_problem(seed, 6, limited)
    best = optimum(problem, stages)
    slack = best * (1 + 1e-9) + 1e-9
    assert semidefinite_bound(problem, stages, iterations=300) <= slack
    assert semidefinite_bound(problem, stages, iterations=300, cutoff=best) <= slack
    assert semidefinite_bound(problem, stages, iterations=25) <= slack


def test_multipliers_that_prove_nothing_do_no_harm():
    """Any multipliers give a bound, be they ever so far from the best."""
    for seed, stages in itertools.product(range(8), (2, 3)):
        problem = small_problem(seed, 6)
        relaxation = MatrixRelaxation(problem, stages, float("inf"), paths(problem))
        random = np.random.default_rng(seed)
        entries = random.random((6, 6))
        dual = DualPoint(random.normal(size=6), random.random(6), np.zeros(0), entries + entries.T)
        fixed = semidefinite.fixed_costs(problem, stages)
        assert semidefinite.bound_of_lines(fixed, stages, [relaxation.line(dual)]) <= optimum(problem, stages) + 1e-9


def test_a_clique_of_equal_nodes_is_bounded_exactly():
    # Four nodes, each pair joined by a tensor of 1: in four stages each stage works 10 and pays for 3 tensors.
    tensors = [StageTensor(u, (v,), 1) for u, v in itertools.combinations(range(4), 2)]
    problem = PartitionProblem(list("abcd"), np.full(4, 10.0), np.zeros(4), tensors)
    assert optimum(problem, 4) == 13
    assert semidefinite_bound(problem, 4, iterations=1500) == pytest.approx(13, rel=1e-3)


@pytest.mark.slow
def test_the_bound_sees_transfers_that_the_simple_one_does_not():
    problem = regal_like(1, 60)
    bound = semidefinite_bound(problem, 4, iterations=400)
    assert bound > 1.03 * simple_bound(problem, 4)
    assert bound == semidefinite_bound(problem, 4, iterations=400)


def test_the_search_ends_when_it_is_told_to():
    told = []
    semidefinite_bound(regal_like(1, 50), 4, watch=lambda bound: told.append(bound) or len(told) == 3)
    assert len(told) == 3
    assert told == sorted(told)


def test_what_costs_nothing_has_no_bound():
    free = PartitionProblem(["a", "b"], np.zeros(2), np.zeros(2), [])
    assert semidefinite_bound(free, 2) == 0
    assert semidefinite_bound(regal_like(1, 50), 1) == 0


@given(SEEDS, SEEDS, st.integers(1, 4), st.integers(1, 5))
@settings(max_examples=examples(100), deadline=None)
def test_parts_together_cost_at_most_the_whole(seed, other, stages, most):
    problem = small_problem(seed, 7)
    stage_of = some_partition(problem, stages, other)
    parts = consecutive(problem.kahn(np.random.default_rng(other).random(7)), most)
    problems = induced(problem, parts)
    assert sorted(v for nodes in parts for v in nodes) == list(range(7))
    for s in set(stage_of):
        here = [np.flatnonzero(stage_of[nodes] == s) for nodes in parts]
        costs = [stage_cost(part, inside) for part, inside in zip(problems, here, strict=True)]
        assert sum(costs) <= stage_cost(problem, np.flatnonzero(stage_of == s)) + 1e-9


@pytest.mark.slow
@given(SEEDS, st.integers(2, 4), st.booleans())
@settings(max_examples=examples(25), deadline=None)
def test_the_bound_of_parts_is_below_the_optimum(seed, stages, limited):
    problem = small_problem(seed, 7, limited)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(semidefinite, "MOST_NODES", 4)
        patch.setattr(semidefinite, "PART_NODES", (4, 4))
        best = optimum(problem, stages)
        assert semidefinite_bound(problem, stages, iterations=300) <= best * (1 + 1e-9) + 1e-9
        assert semidefinite_bound(problem, stages, iterations=300, cutoff=best) <= best * (1 + 1e-9) + 1e-9


def test_parts_of_a_large_graph_see_transfers_that_the_simple_bound_does_not(monkeypatch):
    problem = regal_like(1, 120)
    monkeypatch.setattr(semidefinite, "MOST_NODES", 60)
    monkeypatch.setattr(semidefinite, "PART_NODES", (60, 60))
    found = partition(problem, 16, "slicegraph", {"evaluations": 400})
    order = problem.kahn(-found.stage_of)
    bound = semidefinite_bound(problem, 16, iterations=300, order=order, cutoff=found.cost)
    assert 1.03 * simple_bound(problem, 16) < bound <= found.cost


@given(SEEDS, st.integers(2, 3), st.sampled_from([1e-12, 1e-3, 1.0, 1e6, 1e12]), st.booleans())
@settings(max_examples=examples(80), deadline=None)
def test_no_multipliers_overstate_the_bound(seed, stages, scale, symmetric):
    """Asymmetric, tiny and huge ones included; any of them give a line below the transfers of every partition."""
    problem = small_problem(seed, 6)
    relaxation = MatrixRelaxation(problem, stages, float("inf"), paths(problem))
    random = np.random.default_rng(seed)
    entries = random.lognormal(sigma=2, size=(6, 6)) * scale
    entries = entries + entries.T if symmetric else entries
    dual = DualPoint(random.normal(size=6) * scale, random.random(6) * scale, np.zeros(0), entries)
    best = optimum(problem, stages)
    bound = semidefinite.bound_of_lines(semidefinite.fixed_costs(problem, stages), stages, [relaxation.line(dual)])
    assert bound <= best * (1 + 1e-12)


@given(SEEDS, st.integers(1, 9), st.sampled_from([1e-200, 1e-9, 1.0, 1e9, 1e150]))
@settings(max_examples=examples(100), deadline=None)
def test_the_least_eigenvalue_is_never_overstated(seed, size, scale):
    from fractions import Fraction

    random = np.random.default_rng(seed)
    factor = random.integers(-3, 4, (size, random.integers(1, size + 1))).astype(float)
    matrix = (factor @ factor.T) * scale  # positive semidefinite in exact arithmetic, mostly singular
    least = least_eigenvalue(matrix)
    assert least <= 0 or _definite([[Fraction(v) for v in row] for row in matrix.tolist()], Fraction(least))
    assert least >= -1e-12 * max(np.abs(matrix).sum(), 1e-300)


def _definite(matrix, shift):
    """Whether a matrix less a multiple of the identity has no eigenvalue below 0, by elimination in fractions."""
    rows = [[v - (shift if i == j else 0) for j, v in enumerate(row)] for i, row in enumerate(matrix)]
    for k, pivot in enumerate(rows):
        if pivot[k] <= 0:
            return False
        for row in rows[k + 1 :]:
            part = row[k] / pivot[k]
            for j in range(k, len(row)):
                row[j] -= part * pivot[j]
    return True
