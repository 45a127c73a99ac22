"""Time limits hold for every stage of a search, and Ctrl-C ends it with a schedule; clocks count how often they are read."""

import itertools
import threading
import time
from concurrent.futures import wait

import msgspec
import pytest

from tvm_sched import bounds
from tvm_sched.bounds import all_bounds, lower_bound, quick_bound, region_placement
from tvm_sched.schedulers import fairness, names, solve, solve_latency
from tvm_sched.schedulers.common import solver_runs
from tvm_sched.schedulers.common.milp import limited_model
from tvm_sched.schedulers.scheduler_registry import get
from tvm_sched.schedulers.sortinghat import scheduler as sortinghat
from tvm_sched_bench.testing import random_problem
from tvm_sched_bench.testing.variant_problems import random_variants
from tvm_sched_runtime.problem import Problem, as_scenario, merge_problems
from tvm_sched_runtime.schedule import verify
from tvm_sched_runtime.search_budget import (
    OutOfTime,
    TimedOptions,
    check_time,
    despite_interrupt,
    ending_at,
    seconds_left,
)

TIMED = [name for name in names() if issubclass(get(name).options, TimedOptions)]


class Clock:
    """A clock that goes on by one second each time it is read."""

    def __init__(self, monkeypatch):
        self.read = 0
        monkeypatch.setattr("tvm_sched_runtime.search_budget.time", self)

    def monotonic(self):
        self.read += 1
        return float(self.read)


def branching(seed=7, operators=24):
    """A problem with many regions, whose bounds take long."""
    return random_problem(seed, operators, 3, memory="generous")


def fresh(problem):
    """An equal problem of which no bound is known."""
    return Problem.from_json(problem.to_json())


def test_the_earlier_of_two_deadlines_holds(monkeypatch):
    assert seconds_left() == float("inf")
    check_time()
    Clock(monkeypatch)
    with ending_at(5.0):
        with ending_at(100.0):
            assert seconds_left() == 4.0
        with ending_at(1.0), pytest.raises(OutOfTime):
            check_time()
        check_time()
    assert seconds_left() == float("inf")


def test_without_a_limit_no_clock_is_read(monkeypatch):
    clock = Clock(monkeypatch)
    lower_bound(branching())
    assert clock.read == 0


@pytest.mark.parametrize("seconds", [0, 1, 2, 5, 9, 17, 40])
def test_the_bound_ends_at_the_deadline_and_is_never_above_the_whole_one(monkeypatch, seconds):
    problem, searched = branching(), []
    whole = lower_bound(fresh(problem))
    assert whole.ns == max(bound.ns for bound in all_bounds(problem))
    least = region_placement.least_cost
    monkeypatch.setattr(region_placement, "least_cost", lambda *of: searched.append(1) or least(*of))
    clock = Clock(monkeypatch)
    with ending_at(seconds):
        cut_off = lower_bound(problem)
        assert clock.read <= seconds + 3  # the clock is read at most a few times after it is over
    assert len(searched) <= 3 * seconds  # three searches of a region at most between two looks
    assert 0 < quick_bound(problem).ns <= cut_off.ns <= whole.ns
    assert lower_bound(problem) == whole


@pytest.mark.parametrize("seed", range(6))
def test_quick_bounds_hold_for_every_choice(seed):
    problem = branching(seed, 8)
    for each in (problem, random_variants(problem, seed)):
        with ending_at(0.0):
            plain = quick_bound(each)
        assert plain.ns <= quick_bound(each).ns <= lower_bound(each).ns
        assert plain.name in ("critical path", "device work", "bus")


@pytest.mark.parametrize("name", TIMED)
def test_a_limit_that_is_over_at_once_gives_a_schedule_and_a_bound(name, monkeypatch):
    def unused(*_, **__):
        raise AssertionError("neither solver nor regions have time")

    monkeypatch.setattr(region_placement, "least_cost", unused)
    monkeypatch.setattr(solver_runs, "solve_in_thread", unused)
    problem = branching(11)
    limit = "total_time_limit" if "total_time_limit" in get(name).option_names else "time_limit"
    schedule = solve(problem, method=name, options={limit: 1e-9})
    verify(problem, schedule)
    assert 0 < schedule.certificate.lower_bound_ns <= schedule.certificate.latency_ns
    assert schedule.certificate.status in ("time limit", "optimal")


def test_methods_without_a_limit_have_one_for_their_certificate(monkeypatch):
    whole = lower_bound(branching(7))
    monkeypatch.setattr(solve_latency, "UNLIMITED_SECONDS", 0.0)
    problem = fresh(branching(7))
    assert solve(fresh(problem), method="heft").certificate.lower_bound_ns == whole.ns, "small problems have no limit"
    monkeypatch.setattr(solve_latency, "UNLIMITED_PLACES", 10)
    certificate = solve(problem, method="heft").certificate
    assert certificate.status == "no better found"
    with ending_at(0.0):
        assert certificate.lower_bound_ns == quick_bound(problem).ns < whole.ns


def test_sortinghat_without_time_is_no_slower_than_heft():
    slower = 0
    for seed in range(4):
        problem = branching(seed)
        quick = solve(problem, method="heft").certificate.latency_ns
        certificate = solve(problem, method="sortinghat", options={"total_time_limit": 0.0}).certificate
        assert certificate.latency_ns <= quick
        slower += certificate.latency_ns == quick
    assert slower, "the first assignments are slower in one of the problems"


def test_the_bound_of_the_certificate_is_cut_off_by_interrupts(monkeypatch):
    problem, calls = branching(3), []

    def interrupted(of):
        calls.append(of)
        raise KeyboardInterrupt

    monkeypatch.setattr(bounds, "all_bounds", interrupted)
    schedule = solve(problem, method="heft")
    assert len(calls) == 1
    assert schedule.certificate.status == "interrupted"
    assert schedule.certificate.lower_bound_ns > 0


def test_programs_are_not_built_past_the_deadline():
    program = limited_model()
    x = program.add_binary_variable()
    with ending_at(time.monotonic()):
        with pytest.raises(OutOfTime):
            program.add_linear_constraint(x <= 1)
        with pytest.raises(OutOfTime):
            program.add_variable()
    program.add_linear_constraint(x <= 1)


@pytest.mark.parametrize("at", [0, 1, 5, 23, 60])
def test_sortinghat_answers_an_interrupt_at_any_step(at, monkeypatch):
    problem, evaluate, calls = branching(5), sortinghat.evaluate, itertools.count()

    def interrupted(*of):
        if next(calls) == at:
            raise KeyboardInterrupt
        return evaluate(*of)

    for module in ("scheduler", "heuristic"):
        monkeypatch.setattr(f"tvm_sched.schedulers.sortinghat.{module}.evaluate", interrupted)
    schedule = solve(problem, method="sortinghat", options={"operators": 6, "time_limit": 0.2})
    verify(problem, schedule)
    assert schedule.certificate.status in ("interrupted", "optimal")


def test_interrupted_work_is_done_anew_past_its_deadline():
    seen = []

    def work():
        seen.append(seconds_left())
        if len(seen) == 1:
            raise KeyboardInterrupt
        return "done"

    assert despite_interrupt(work) == ("done", True)
    assert seen == [float("inf"), 0.0]
    assert despite_interrupt(work) == ("done", False)


@pytest.mark.parametrize("stops", [True, False])
def test_a_solver_that_does_not_heed_its_limit_is_left(stops, monkeypatch):
    monkeypatch.setattr(solver_runs, "OVERTIME", 0.0)
    monkeypatch.setattr(solver_runs, "PATIENCE", 0.0 if not stops else 60.0)
    ended, told = threading.Event(), []

    def stop():
        told.append(1)
        if stops:
            ended.set()

    with ending_at(time.monotonic()), pytest.raises(OutOfTime):
        solver_runs.solve_in_thread(ended.wait, stop)
    assert solver_runs.solvers_run() is not stops
    assert bool(told) is stops
    ended.set()
    wait(solver_runs.left_running)
    assert not solver_runs.solvers_run()


def test_after_an_interrupt_fair_search_takes_first_schedules(monkeypatch):
    problem, left = merge_problems([branching(1, 5)] * 3), []
    latency = fairness.minimise_latency

    def interrupted_once(*of, **named):
        left.append(seconds_left())
        found = latency(*of, **named)
        if len(left) == 1:
            certificate = msgspec.structs.replace(found.certificate, status="interrupted")
            return found.replace(certificate=certificate)
        return found

    monkeypatch.setattr(fairness, "minimise_latency", interrupted_once)
    fairness.solve_fairly(problem, fairness.Workload(objective="slowdown"), options={"work": 0.1})
    assert left[0] == float("inf")
    assert left[1:] == [0.0] * 3  # two more models, and one round


def test_scenarios_keep_their_bounds_apart():
    problem = branching(13)
    with ending_at(0.0):
        quick = lower_bound(as_scenario(problem))
    assert quick.ns <= lower_bound(problem).ns
