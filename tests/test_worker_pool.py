"""Searches in parts: the same answers here, in other processes and on a Ray cluster."""

import multiprocessing
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor

import msgspec
import numpy as np
import pytest

from tvm_sched.pipeline import partition
from tvm_sched.progress import report_to
from tvm_sched.schedulers.solver import solve_many
from tvm_sched.worker_pool import distribute, have_workers, workers
from tvm_sched_bench.testing import random_problem
from tvm_sched_bench.testing.regal import regal_like
from tvm_sched_runtime.errors import InfeasibleError, InputError
from tvm_sched_runtime.problem import Workload
from tvm_sched_runtime.schedule import Schedule
from worker_pool_cases import SEARCH, search

SMALL = {
    "anytime": {"work": 0.1, "seed": 2},
    "sortinghat": {"q": 2, "dominators": 1, "seed": 2},
}


def schedules():
    """Submodels of several problems, by two schedulers."""
    problems = [random_problem(seed, operators=14, devices=2, memory="generous") for seed in range(2)]
    found = solve_many([(problem, Workload(), name, SMALL[name]) for problem in problems for name in SMALL])
    return [without_seconds(schedule) for schedule in found]


def without_seconds(schedule):
    """The schedule without what the clock said, of it all and of the solver in each submodel."""
    notes = dict(schedule.notes)
    if "submodels" in notes:
        notes["submodels"] = [{**each, "seconds": 0.0} for each in notes["submodels"]]
    return msgspec.structs.replace(schedule, seconds=0.0, notes=notes)


def divided(a, b):
    if b == 0:
        raise InputError("b is 0; another number is allowed")
    return a / b


def test_results_come_in_the_order_of_the_parts():
    parts = [(n, 2) for n in range(20)]
    assert not have_workers()
    here = distribute(divided, parts)
    with ThreadPoolExecutor(4) as pool, workers(pool):
        assert have_workers()
        assert distribute(divided, parts) == here == [n / 2 for n in range(20)]
    assert not have_workers()


def test_the_first_error_is_raised():
    with ThreadPoolExecutor(1) as pool, workers(pool), pytest.raises(InputError, match="b is 0"):
        distribute(divided, [(1, 1), (1, 0), (1, 1)])


def test_more_populations_are_no_worse_and_the_seed_decides():
    problem = regal_like(0)
    costs = [partition(problem, 4, "slicegraph", {**SEARCH, "populations": n}).cost for n in (1, 2, 3)]
    assert costs == sorted(costs, reverse=True)
    again = partition(problem, 4, "slicegraph", SEARCH)
    assert again.cost == costs[-1]
    with pytest.raises(InputError, match="populations is 0"):
        partition(problem, 4, "slicegraph", {"populations": 0})


@pytest.mark.thorough
def test_other_processes_find_the_same():
    here = search()
    with ProcessPoolExecutor(2, multiprocessing.get_context("spawn")) as pool, workers(pool):
        assert search() == here


def test_other_processes_schedule_many_problems_the_same():
    here = schedules()
    assert [schedule.scheduler for schedule in here] == ["anytime", "sortinghat"] * 2
    with ProcessPoolExecutor(2, multiprocessing.get_context("spawn")) as pool, workers(pool):
        assert schedules() == here


def test_a_problem_without_a_schedule_does_not_stop_the_others():
    problems = [random_problem(seed, devices=3, memory="tight") for seed in range(4)]
    found = solve_many([(problem, Workload(), "single", {}) for problem in problems])
    assert {type(made) for made in found} == {Schedule, InfeasibleError}
    with pytest.raises(InputError, match="there is no scheduler 'singel'"):
        solve_many([(problems[0], Workload(), "singel", {})])


@pytest.mark.thorough
def test_a_problem_travels_without_what_was_compiled_of_it():
    import pickle

    problem = regal_like(2)
    again = pickle.loads(pickle.dumps(problem))
    order = problem.kahn(np.zeros(problem.size))
    assert again.slice(order, 4) == problem.slice(order, 4)


def test_workers_report_how_many_parts_are_done():
    said = []
    with ThreadPoolExecutor(2) as pool, workers(pool), report_to(lambda *heard: said.append(heard)):
        assert distribute(divided, [(6, 2), (8, 2), (9, 3)], "quotients") == [3, 4, 3]
        assert said == [("quotients", done, 3) for done in range(4)]
        with pytest.raises(InputError, match="b is 0"):
            distribute(divided, [(6, 2), (8, 0)], "quotients")
