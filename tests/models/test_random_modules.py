"""Random graphs through schedule, verify, simulate and execute: the values equal those of sequential execution."""

from random import Random

import numpy as np
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from thorough import examples
from tvm_sched.relax import compile
from tvm_sched.relax.api import make_problem
from tvm_sched_bench.testing import random_schedule, random_stages, random_streams
from tvm_sched_runtime.problem import Bus, Device, Link, Topology, load_topology
from tvm_sched_runtime.schedule import simulate, verify

from .random_modules import random_module

MANY = settings(
    max_examples=examples(25), deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large]
)


def random_machine(seed: int) -> Topology:
    """Logical devices that share host memory, or small servers with buses, links or neither."""
    random = Random(seed)
    if random.random() < 0.4:
        return load_topology(f"cpu{random.randint(1, 4)}")
    count, buses = random.randint(1, 4), random.randint(1, 2)
    devices = tuple(
        Device(
            f"gpu{i}",
            1 << 20,
            1e9 * random.choice([1, 3]),
            {"float32": 1e9},
            launch_overhead=2e-6,
            bus=f"pcie{i % buses}",
        )
        for i in range(count)
    )
    links = tuple(Link((f"gpu{i}", f"gpu{i + 1}"), 1e9, 1e-6, random.random() < 0.5) for i in range(count - 1))
    named = tuple(Bus(f"pcie{i}", 1e8, 1e-6, random.random() < 0.5) for i in range(buses))
    return Topology("random", devices, named, links if random.random() < 0.7 else ())


CONCURRENCY = {"random": None, "streams": random_streams, "stages": random_stages}
"""What is done to a random schedule."""


def check(seed: int, operators: int, scheduler: str) -> None:
    mod, inputs, expected = random_module(seed, operators)
    topology = random_machine(seed)
    schedule, costs = None, "roofline"
    if scheduler in CONCURRENCY:
        change, costs = CONCURRENCY[scheduler], "roofline" if scheduler == "random" else "occupancy"
        problem = make_problem(mod, topology, cost_model=costs)
        schedule = random_schedule(problem, seed)
        schedule = change(problem, schedule, seed) if change else schedule
        verify(problem, schedule)
    options = {"work": 0.2} if scheduler == "anytime" else None
    name = "single" if scheduler in CONCURRENCY else scheduler
    compiled = compile(mod, topology, name, options, schedule=schedule, cost_model=costs)
    simulate(compiled.problem, compiled.schedule)
    if not compiled.problem.graph.operators:
        return
    if compiled.module.emulated:
        compiled.module.configure(emulation_scale=1.0)
    for _ in range(2):
        results = compiled.run(*inputs)
        assert len(results) == len(expected)
        for result, value in zip(results, expected, strict=True):
            assert result.shape == value.shape
            assert result.dtype == value.dtype
            np.testing.assert_allclose(result, value, rtol=1e-4, atol=1e-4)


@pytest.mark.slow
@MANY
@given(seed=st.integers(0, 2**20), operators=st.integers(1, 14), kind=st.sampled_from(list(CONCURRENCY)))
@example(seed=33963, operators=12, kind="streams")  # a product without a spatial loop
def test_random_schedules_compute_what_numpy_computes(seed: int, operators: int, kind: str) -> None:
    check(seed, operators, kind)


@pytest.mark.slow
@MANY
@given(seed=st.integers(0, 2**20), operators=st.integers(1, 14), scheduler=st.sampled_from(["single", "anytime"]))
def test_schedulers_compute_what_numpy_computes(seed: int, operators: int, scheduler: str) -> None:
    check(seed, operators, scheduler)


@pytest.mark.sampled(3)
@pytest.mark.slow
@pytest.mark.parametrize("kind", list(CONCURRENCY))
def test_a_larger_graph(kind: str) -> None:
    for seed in range(examples(3)):
        check(seed, 60, kind)
