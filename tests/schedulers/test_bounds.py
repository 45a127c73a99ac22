"""No bound is above the latency of any feasible schedule; some are worked out by hand."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tvm_sched.problem import Costs, Problem
from tvm_sched.schedule import simulate
from tvm_sched.schedule.bounds import all_bounds, lower_bound, regions
from tvm_sched.schedule.bounds.neighbours import Beside, together_or_apart
from tvm_sched.schedule.bounds.windows import between_ends, device_weights
from tvm_sched.schedulers import solve
from tvm_sched.testing import random_problem, random_schedule

from .exhaustive import TooLarge, least_latency
from .test_exact import diamonds, two_gpus


@settings(max_examples=150, deadline=None)
@given(seed=st.integers(0, 100_000), operators=st.integers(1, 4), devices=st.integers(1, 3))
def test_no_bound_exceeds_the_optimum_of_tiny_problems(seed, operators, devices):
    problem = random_problem(seed, operators, devices)
    try:
        least = least_latency(problem, most_states=3000)
    except TooLarge:
        return
    for bound in all_bounds(problem):
        assert least is None or bound.ns <= least, bound


@settings(max_examples=150, deadline=None)
@given(seed=st.integers(0, 100_000), operators=st.integers(0, 30), devices=st.integers(1, 6))
def test_no_bound_exceeds_a_schedule(seed, operators, devices):
    problem = random_problem(seed, operators, devices)
    latency = simulate(problem, random_schedule(problem, seed)).latency_ns
    for bound in all_bounds(problem) if operators else [lower_bound(problem)]:
        assert bound.ns <= latency, bound


@pytest.mark.parametrize(("most_devices", "decided"), [(1, 10), (16, 2)])
def test_no_bound_exceeds_a_schedule_where_regions_are_simplified(monkeypatch, most_devices, decided):
    monkeypatch.setattr(regions, "MOST_DEVICES", most_devices)
    monkeypatch.setattr(regions, "DECIDED", decided)
    for seed in range(40):
        problem = random_problem(seed, 12, 3, memory="generous")
        options = {"submodel_time_limit": 0, "improve_time_limit": 0.05}
        latency = solve(problem, "exact", options).certificate.latency_ns
        assert all(bound.ns <= latency for bound in all_bounds(problem))


def test_bounds_of_a_diamond_by_hand():
    problem = Problem(diamonds(1), two_gpus(), Costs([[100, 100]] * 3))
    bounds = {bound.name: bound.ns for bound in all_bounds(problem)}
    # One parameter (1000 ns) must come before a branch and the join; the device work is 300 over two devices, but the
    # branches start no earlier than 1000 and the join follows; 2008 bytes over both buses take 1004, then 200 follow.
    # Each is rounded down with a margin of one billionth.
    assert bounds["critical path"] == 1200 - 1
    assert bounds["bus"] == 1204 - 1
    assert bounds["device work"] in (1199, 1200)


def test_a_host_tensor_bound_counts_direct_reads():
    direct = [[1050, 1050], [1050, 1050], [2**63 - 1] * 2]
    problem = Problem(diamonds(1), two_gpus(), Costs([[100, 100]] * 3, direct))
    bound = lower_bound(problem)
    # 1004 ns on the buses, at least 42 ns of a kernel that reads directly, the join.
    assert 1004 + 42 + 100 - 1 <= bound.ns <= solve(problem, "exact").certificate.latency_ns


def test_unequal_devices_share_the_work():
    # Ten operators of 10 on the fast and 30 on the slow device: at best the fast one has three quarters of them.
    weights = device_weights(np.array([[10.0, 30.0]] * 10))
    assert 74 < (np.array([[10.0, 30.0]] * 10) * weights).min(axis=1).sum() <= 75
    assert abs(weights.sum() - 1) < 1e-9


def test_neighbours_share_a_device_or_pay_for_copies():
    # Two of 100 from time 0, copies of 30: together 200; one apart, 130 with the other here at 100: the least is 130.
    assert together_or_apart([Beside(0, 100, 130), Beside(0, 100, 130)]) == 130
    # Copies of 300: both together, 200. One may start only at 150: 250.
    assert together_or_apart([Beside(0, 100, 400), Beside(0, 100, 400)]) == 200
    assert together_or_apart([Beside(0, 100, 400), Beside(150, 100, 550)]) == 250
    # One copy is long, the other short: the first here, 100, the second's copy at 110.
    assert together_or_apart([Beside(0, 100, 400), Beside(0, 100, 110)]) == 110


def test_work_between_both_ends():
    # Ten units of work from 5 on that 7 must follow, and a little before and after: neither end alone gives 5 + 10 + 7.
    work, start, after = np.array([1.0, 10.0, 1.0]), np.array([0.0, 5.0, 15.0]), np.array([17.0, 7.0, 0.0])
    assert between_ends(work, start, after) == 22
