"""The symmetry of equal buses in SortingHat's program, and its choice of variants."""

from dataclasses import replace
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from thorough import examples
from tvm_sched.schedulers import solve as solve_problem
from tvm_sched.schedulers.sortinghat import program, scheduler
from tvm_sched.schedulers.sortinghat.submodel import evaluate
from tvm_sched.schedulers.sortinghat.symmetry import equal_buses, relabelled
from tvm_sched_bench.testing import random_problem
from tvm_sched_bench.testing.variant_problems import random_variants
from tvm_sched_runtime.errors import InfeasibleError

from .sortinghat_constraints_cases import EFFORT, chain, random_submodel


def equal(**changes):
    """`chain` on two equal devices, each on a bus."""
    alike = {
        "kernel": [[5.0, 5.0], [3.0, 3.0], [0.0, 0.0], [0.0, 0.0]],
        "buses": [[0], [1]],
        "transfers_end": [0.0, 0.0],
    }
    alike["direct"] = [[20.0, 20.0], [9.0, 9.0], [0.0, 0.0], [0.0, 0.0]]
    return chain(**{**alike, **changes})


def test_buses_that_are_equal():
    assert equal_buses(equal()) == [[0, 1]]
    assert equal_buses(chain()) == []  # of one bus, devices load in turn
    assert equal_buses(equal(device_end=[0.0, 1.0])) == []
    assert equal_buses(equal(transfers_end=[0.0, 1.0])) == []
    assert equal_buses(equal(memory_used=[1, 0])) == []
    assert equal_buses(equal(fixed={2: 1})) == []
    assert equal_buses(equal(copy=[[[0.0, 4.0], [5.0, 0.0]]] * 4)) == []


def test_equal_buses_are_used_in_order():
    """Subgraphs 3 and 4 are the other device's 1 and 2: operators first, and their parameters with them."""
    s = equal()
    assert relabelled(s, [4, 2, 4, 2]) == [2, 4, 2, 4]
    assert relabelled(s, [2, 4, 2, 4]) == [2, 4, 2, 4]
    assert relabelled(s, [3, 4, 0, 4]) == [1, 2, 0, 2]
    assert evaluate(s, [4, 2, 4, 2]) is not None
    assert evaluate(s, [4, 2, 4, 2]).total == evaluate(s, [2, 4, 2, 4]).total
    answer = program.solve(s, [4, 2, 4, 2], EFFORT)
    assert answer.status == "optimal"
    assert answer.objective_ns == 8 + 5 + 4 + 3  # w is loaded, u over the other bus; a, a copy, b


@settings(max_examples=examples(40), deadline=None)
@given(seed=st.integers(0, 10**6))
def test_relabelling_changes_no_time(seed):
    random = Random(seed)
    s = random_submodel(random, 4, 3)
    s = replace(
        s, buses=[[0], [1], [2]], transfers_end=[0.0] * 3, device_end=[0.0] * 3, memory_used=[0] * 3, fixed={},
        kernel=[[row[0]] * 3 for row in s.kernel], direct=[[row[0]] * 3 for row in s.direct],
        load=[[row[0]] * 3 for row in s.load],
        copy=[[[0.0 if d == e else rows[0][1] for e in range(3)] for d in range(3)] for rows in s.copy],
    )  # fmt: skip
    assert equal_buses(s) == [[0, 1, 2]]
    assignment = [random.choice(s.places(node) or [0]) for node in s.nodes]
    again = relabelled(s, assignment)
    before, after = evaluate(s, assignment), evaluate(s, again)
    assert (before is None) == (after is None)
    assert before is None or (before.total, sorted(before.end)) == (after.total, sorted(after.end))
    used = [s.device_of(j) for j in again[: s.operators] if j]
    assert list(dict.fromkeys(used)) == sorted(set(used))
    assert relabelled(s, again) == again


@settings(max_examples=examples(9), deadline=None)
@given(seed=st.integers(0, 10**4))
def test_variants_are_those_that_list_scheduling_chooses(seed):
    problem = random_variants(random_problem(seed, 5, 2, memory="generous"), seed)
    schedule = solve_problem(problem, None, "sortinghat", {"total_time_limit": 0.0})
    assert schedule.choice == solve_problem(problem, method="heft").choice
    assert schedule.certificate.lower_bound_ns <= schedule.certificate.latency_ns


@pytest.mark.parametrize(
    ("end", "status"), [(InfeasibleError("no room"), "time limit"), (KeyboardInterrupt(), "interrupted")]
)
def test_where_list_scheduling_chooses_nothing_the_graphs_ways_are_taken(monkeypatch, end, status):
    def nothing(problem, workload, options):
        raise end

    monkeypatch.setattr(scheduler, "heft", nothing)
    problem = random_variants(random_problem(3, 5, 2, memory="generous"), 3)
    assert problem.variants
    schedule = solve_problem(problem, None, "sortinghat", {"total_time_limit": 0.0})
    assert (schedule.choice, schedule.certificate.status) == ({}, status)
