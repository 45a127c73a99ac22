"""SortingHat's program for CP-SAT, and the symmetry of equal buses: beside the evaluation, every assignment, and HiGHS."""

from dataclasses import replace
from itertools import product
from random import Random

import pytest
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st
from ortools.sat.python import cp_model

from thorough import examples
from tvm_sched.errors import InfeasibleError, InputError
from tvm_sched.schedulers import solve as solve_problem
from tvm_sched.schedulers.common.milp import Effort
from tvm_sched.schedulers.sortinghat import cpsat, program, scheduler
from tvm_sched.schedulers.sortinghat.cpsat import constraints
from tvm_sched.schedulers.sortinghat.cpsat.model import in_nanoseconds
from tvm_sched.schedulers.sortinghat.cpsat.variables import Variables
from tvm_sched.schedulers.sortinghat.heuristic import best_assignment
from tvm_sched.schedulers.sortinghat.submodel import evaluate
from tvm_sched.schedulers.sortinghat.symmetry import equal_buses, relabelled
from tvm_sched_bench.testing import random_problem
from tvm_sched_bench.testing.variant_problems import random_variants

from .test_sortinghat_constraints import chain, random_submodel, started_submodels

EFFORT = Effort("", 20.0, 0, 0)


def equal(**changes):
    """`chain` on two equal devices, each on a bus."""
    alike = {
        "kernel": [[5.0, 5.0], [3.0, 3.0], [0.0, 0.0], [0.0, 0.0]],
        "buses": [[0], [1]],
        "transfers_end": [0.0, 0.0],
    }
    alike["direct"] = [[20.0, 20.0], [9.0, 9.0], [0.0, 0.0], [0.0, 0.0]]
    return chain(**{**alike, **changes})


@settings(max_examples=examples(60), deadline=None)
@given(seed=st.integers(0, 10**6), operators=st.integers(1, 4), devices=st.integers(1, 3), strengthened=st.booleans())
@example(seed=1526, operators=1, devices=1, strengthened=True)  # its operator can run nowhere
@example(seed=64425, operators=2, devices=1, strengthened=True)
def test_the_program_and_the_evaluation_agree_on_every_assignment(seed, operators, devices, strengthened):
    random = Random(seed)
    s = random_submodel(random, operators, devices)
    assignment = [random.choice(s.places(node) or [0]) for node in s.nodes]
    if strengthened:
        assignment = relabelled(s, assignment)
    times = evaluate(s, assignment)
    model = cp_model.CpModel()
    v = Variables.of(model, s, times.total if times else 10**4)
    for constraint in constraints.ALL if strengthened else constraints.AS_PRINTED:
        constraint(model, v)
    for node, j in enumerate(assignment):
        if (node, j) in v.within:
            model.add(v.within[node, j] == 1)
    solver = cp_model.CpSolver()
    solver.parameters.num_workers = 1
    status = solver.solve(model)
    if times is None:
        assert status == cp_model.INFEASIBLE
    else:
        assert status == cp_model.OPTIMAL
        assert solver.objective_value + s.base == times.total


@settings(max_examples=examples(15), deadline=None)
@given(seed=st.integers(0, 10**6), operators=st.integers(1, 3))
def test_it_finds_the_best_of_all_assignments(seed, operators):
    s = random_submodel(Random(seed), operators, 2)
    found = [(t.total, a) for a in map(list, product(*(s.places(node) for node in s.nodes))) if (t := evaluate(s, a))]
    assume(found)
    answer = cpsat.solve(s, max(found)[1], EFFORT)
    assert evaluate(s, answer.assignment or max(found)[1]).total == answer.objective_ns == min(found)[0]
    assert answer.status == "optimal"
    assert answer.bound_ns <= min(found)[0]


@settings(max_examples=examples(20), deadline=None)
@given(begun=started_submodels())
def test_hints_are_solutions(begun):
    """A solver that may only complete what is hinted has the start's total."""
    s, start = begun
    model = cp_model.CpModel()
    v = Variables.of(model, s, evaluate(s, start).total)
    for constraint in constraints.ALL:
        constraint(model, v)
    v.hint(start, evaluate(s, start))
    solver = cp_model.CpSolver()
    solver.parameters.fix_variables_to_their_hinted_value = True
    assert solver.solve(model) == cp_model.OPTIMAL
    assert solver.objective_value + s.base == evaluate(s, start).total


def test_times_are_rounded_down():
    s = chain(kernel=[[5.5, 7.9], [3.0, 4.0], [0.0, 0.0], [0.0, 0.0]], device_end=[0.75, 0.0])
    whole = in_nanoseconds(s)
    assert (whole.kernel[0], whole.device_end) == ([5.0, 7.0], [0.0, 0.0])
    start = best_assignment(s, 500)
    assert evaluate(whole, start).total <= evaluate(s, start).total
    answer = cpsat.solve(s, start, EFFORT)
    assert answer.bound_ns <= answer.objective_ns <= evaluate(s, answer.assignment or start).total


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
    for solve in (program.solve, cpsat.solve):
        answer = solve(s, [4, 2, 4, 2], EFFORT._replace(solver="highs"))
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


def test_it_is_a_scheduler_of_its_own_name():
    problem = random_problem(3, 6, 2, memory="generous")
    schedule = solve_problem(problem, None, "sortinghat-cpsat", {"time_limit": 2})
    assert schedule.scheduler == "sortinghat-cpsat"
    assert {each["status"] for each in schedule.notes["submodels"]} == {"optimal"}
    assert schedule.certificate.lower_bound_ns <= schedule.certificate.latency_ns
    with pytest.raises(InputError, match="solver"):
        solve_problem(problem, None, "sortinghat-cpsat", {"solver": "highs"})


@settings(max_examples=examples(9), deadline=None)
@given(seed=st.integers(0, 10**4), name=st.sampled_from(["sortinghat", "sortinghat-cpsat"]))
def test_variants_are_those_that_list_scheduling_chooses(seed, name):
    problem = random_variants(random_problem(seed, 5, 2, memory="generous"), seed)
    schedule = solve_problem(problem, None, name, {"total_time_limit": 0.0})
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
