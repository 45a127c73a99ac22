"""Unequal devices and links: stages, their order and devices against all plans of tiny problems, also within limits."""

import itertools

import numpy as np
import pytest

from tvm_sched.pipeline import plan_pipeline
from tvm_sched.pipeline.device_annealing import DeviceAnnealing
from tvm_sched_bench.testing import random_problem
from tvm_sched_runtime.errors import InfeasibleError, ProblemError
from tvm_sched_runtime.pipeline import verify
from tvm_sched_runtime.pipeline.stage_pricing import price
from tvm_sched_runtime.problem import FORBIDDEN

FAST = {"evaluations": 100}
COUNT = 8


def all_plans(problem):
    """Bottleneck and latency of every plan that keeps the rules: all assignments to stages, all orders of devices."""
    count, devices = len(problem.graph.operators), range(len(problem.topology.devices))
    index, memory = problem.graph.index, {device.name: device.memory for device in problem.topology.devices}
    found = {}
    for stage_of in itertools.product(devices, repeat=count):
        if any(stage_of[u] > stage_of[o] for o in range(count) for u in index.predecessors[o]):
            continue
        for sequence in itertools.permutations(devices):
            parts = tuple((d, tuple(o for o in index.order if stage_of[o] == s)) for s, d in enumerate(sequence))
            parts = tuple((d, operators) for d, operators in parts if operators)
            allowed = all(problem.costs.operator_ns[o, d] != FORBIDDEN for d, operators in parts for o in operators)
            if parts in found or not allowed:
                continue
            try:
                stages = price(problem, parts)
            except ProblemError:
                stages = []
            if stages and all(stage.peak_bytes <= memory[stage.device] for stage in stages):
                found[parts] = max(s.cost_ns for s in stages), sum(s.cost_ns for s in stages)
    return list(found.values())


@pytest.fixture(scope="module")
def cases():
    """Problems with three unequal devices, links that differ or are missing, and all that can be had there."""
    made = [random_problem(seed, 5, 3, memory="generous") for seed in range(COUNT)]
    plans = [(problem, all_plans(problem)) for problem in made]
    assert all(found for _, found in plans)
    return plans


def ratios(cases, limit_of, value_of):
    """How much dearer than the best of all plans within a limit ours is; infinite where none was found."""
    found = []
    for problem, plans in cases:
        limits, allowed = limit_of(plans)
        best = min(value_of(*plan) for plan in plans if allowed(*plan))
        try:
            plan = plan_pipeline(problem, "auto", "slicegraph", FAST, **limits)
        except InfeasibleError:
            found.append(float("inf"))
            continue
        verify(problem, plan)
        assert allowed(plan.cost_ns, plan.latency_ns)
        assert value_of(plan.cost_ns, plan.latency_ns) >= best
        found.append(value_of(plan.cost_ns, plan.latency_ns) / best)
    return np.array(found)


def best_throughput(plans):
    return {}, lambda cost, latency: True


def latency_ceiling(plans):
    """Half-way from the latency of the fastest pipeline to the least one."""
    ceiling = (min(latency for _, latency in plans) + min(plans)[1]) // 2
    return {"latency_ceiling": (ceiling + 0.5) / 1e9}, lambda cost, latency: latency <= ceiling


def throughput_floor(plans):
    """A fifth below the best throughput."""
    ceiling = min(cost for cost, _ in plans) * 6 // 5
    return {"throughput_floor": 1e9 / (ceiling + 0.5)}, lambda cost, latency: cost <= ceiling


@pytest.mark.sampled(3)
@pytest.mark.parametrize(
    ("limit", "value"),
    [
        (best_throughput, lambda cost, latency: cost),
        (latency_ceiling, lambda cost, latency: cost),
        (throughput_floor, lambda cost, latency: latency),
    ],
)
def test_nearly_always_the_best_of_all_plans(cases, limit, value):
    found = ratios(cases, limit, value)
    assert np.mean(found <= 1 + 1e-9) >= 0.8, found
    assert np.median(found) == 1


def test_stages_their_order_and_devices_are_decided_together(cases):
    """Where the devices are unequal, the bound of the relaxation holds, and devices in the topology's order are worse."""
    better = 0
    for problem, plans in cases:
        plan = plan_pipeline(problem, "auto", "slicegraph", FAST)
        assert plan.certificate.lower_bound_ns <= min(cost for cost, _ in plans)
        try:
            plain = plan_pipeline(problem, "auto", "slicegraph", FAST, place=False)
        except InfeasibleError:
            better += 1
            continue
        assert plan.cost_ns <= plain.cost_ns
        better += plan.cost_ns < plain.cost_ns
    assert better > COUNT / 2


def test_prices_of_moved_stages_are_those_of_the_whole(cases):
    """The annealing prices what a move touches; every assignment that it yields is priced alike as a whole."""
    for problem, _ in cases[:4]:
        devices, count = range(len(problem.topology.devices)), len(problem.graph.operators)
        seen = []

        def key(stages, seen=seen):
            seen.append([stage.cost_ns for stage in stages])
            return 0, max((stage.cost_ns for stage in stages), default=0), 0

        annealing = DeviceAnnealing(problem, devices, [], [0] * count, key)
        for assignment in annealing.run(0, float("inf")):
            used = [(device, operators) for device, operators in assignment if operators]
            whole = [stage.cost_ns for stage in price(problem, used)]
            assert [stage.cost_ns for stage, _ in annealing.costs if stage is not None] == whole
        again = DeviceAnnealing(problem, devices, [], [0] * count, key)
        assert [list(a) for a in again.run(0, float("inf"))][-1] == assignment
