"""Contention of kernels: HIOS's figures, what schedulers make of it, monotone, and fitted as the page says."""

import runpy
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from thorough import examples
from tvm_sched.bounds import lower_bound
from tvm_sched.cost_model import costs
from tvm_sched.cost_model.contention import H100, Contention, crowded, fit_contention
from tvm_sched.cost_model.uncertainty import sample_latencies
from tvm_sched.schedulers import solve
from tvm_sched.streams import choose_streams
from tvm_sched_bench.testing.hios_problems import convolutions
from tvm_sched_runtime.problem import Concurrency, Costs, Device, KernelResources, Problem, Topology, load_topology
from tvm_sched_runtime.schedule import Placement, Schedule, simulate

A40 = Device("gpu0", 48 << 30, 696e9, {"float32": 37.4e12}, model="A40", arch="sm_86", launch_overhead=5e-6)
BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
PART = st.floats(0.01, 1)


def problem_of(size, model="contention", count=2):
    graph, topology = convolutions(size, count), Topology("one", (A40,))
    return Problem(graph, topology, costs(graph, topology, model))


def at_once(problem):
    """Latency of all operators in one stage over one after another."""
    names = [operator.name for operator in problem.graph.operators]
    stage = Schedule(problem.digest, tuple(Placement(o, "gpu0", stream=n, stage=1) for n, o in enumerate(names)))
    one = Schedule(problem.digest, tuple(Placement(o, "gpu0") for o in names))
    return simulate(problem, stage).latency_ns / simulate(problem, one).latency_ns


def test_figure_1_of_hios():
    # "Shorter than the sequential execution time for input image sizes of no more than 64 x 64, but longer for 128 x 128 and
    # beyond" (Section II-A): without contention nothing is ever longer.
    ratio = {size: at_once(problem_of(size)) for size in (8, 16, 32, 64, 128, 256, 512, 1024)}
    assert all(ratio[size] < 1 for size in (8, 16, 32, 64))
    assert all(1 < ratio[size] < 1.1 for size in (128, 256, 512, 1024))
    assert all(at_once(problem_of(size, "occupancy")) <= 1 for size in ratio)


def test_figure_2_of_hios(monkeypatch):
    # Transfers over NVLink cost less of the computation than over PCIe 3.0 (Section II-B).
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    found = runpy.run_path(str(BENCHMARKS / "contention.py"))
    for size in (64, 512):
        a40 = found["transfer"](load_topology("a40x2"), size, True)
        v100 = found["transfer"](load_topology("v100-server"), size, False)
        assert 0.02 < a40 < v100


@pytest.mark.parametrize("scheduler", ["ios", "hios-lp"])
def test_schedulers_run_small_convolutions_at_once_and_large_ones_not(scheduler):
    stages = {}
    for size in (32, 256):
        problem = problem_of(size)
        schedule = solve(problem, method=scheduler)
        stages[size] = {placement.stage for placement in schedule.placements} - {0}
        assert lower_bound(problem).ns <= simulate(problem, schedule).latency_ns
        streams = choose_streams(problem, schedule)
        assert simulate(problem, streams).latency_ns <= simulate(problem, schedule).latency_ns
        assert simulate(problem, streams).latency_ns <= problem.costs.operator_ns.sum(), "one after another"
    assert stages[32]
    assert not stages[256]


def test_how_sure_a_stage_is():
    problem = problem_of(256)
    names = [operator.name for operator in problem.graph.operators]
    stage = Schedule(problem.digest, tuple(Placement(o, "gpu0", stream=n, stage=1) for n, o in enumerate(names)))
    said, drawn = simulate(problem, stage).latency_ns, sample_latencies(problem, stage, 400)
    low, high = np.quantile(drawn, (0.05, 0.95)) / said
    assert low == pytest.approx(H100.interval[0], abs=0.06)
    assert high == pytest.approx(H100.interval[1], abs=0.06)
    one = Schedule(problem.digest, tuple(Placement(o, "gpu0") for o in names))
    assert set(sample_latencies(problem, one, 5).tolist()) == {simulate(problem, one).latency_ns}


def test_small_blocks_crowd_beside_a_kernel_that_fills_the_device():
    # 84 blocks, one on each multiprocessor, each with a quarter of its arithmetic; 6 of 256 threads fit on one.
    small = KernelResources(84, 256)
    assert crowded(A40, small, 0.25) == pytest.approx(6 * 0.25 - 1)
    assert crowded(A40, small, 0.1) == 0, "their arithmetic suffices for six"
    assert crowded(A40, KernelResources(84 * 6, 256), 1.0) == pytest.approx(0), "they fill it themselves"
    assert crowded(Device("x", 1, 1.0, {"float32": 1.0}), small, 1.0) == 0


@given(
    seconds=st.tuples(st.floats(1, 1e3), st.floats(1, 1e3)),
    used=st.tuples(PART, PART, PART, PART),
    crowd=st.tuples(st.floats(0, 5), st.floats(0, 5)),
    more=st.floats(0, 1),
)
@settings(deadline=None)
def test_more_of_anything_never_takes_less(seconds, used, crowd, more):
    def pair(seconds, used, crowd):
        arrays = np.array([seconds]), np.array([[used[:2], used[2:]]]), np.array([crowd])
        return H100.pairs(*arrays)[0] * (1 + 1e-12)

    base = pair(seconds, used, crowd)
    assert base <= pair((seconds[0] + more, seconds[1]), used, crowd) * (1 + 1e-9)
    assert base <= pair(seconds, (min(1, used[0] + more), *used[1:]), crowd) * (1 + 1e-9)
    assert base <= pair(seconds, used, (crowd[0] + more, crowd[1])) * (1 + 1e-9)


def test_a_fit_finds_what_pairs_were_made_of():
    rng = np.random.default_rng(0)
    seconds, used = rng.uniform(1, 10, (200, 2)), rng.uniform(0.05, 1, (200, 2, 3))
    crowd = rng.uniform(0, 4, (200, 2))
    truth = Contention(0.3, 0.12, 0.25)
    measured = truth.pairs(seconds, used, crowd) * rng.lognormal(0, 0.02, 200)
    found = fit_contention(seconds, used, crowd, measured)
    assert (found.serial_share, found.excess, found.crowding) == pytest.approx((0.3, 0.12, 0.25), abs=0.05)
    assert 0.95 < found.interval[0] < 1 < found.interval[1] < 1.05


@settings(max_examples=examples(60), deadline=None)
@given(
    alone=st.tuples(st.integers(10**4, 10**6), st.integers(10**4, 10**6)),
    used=st.lists(st.lists(st.floats(0.5, 1), min_size=3, max_size=3), min_size=2, max_size=2),
    share=st.floats(0, 1),
    excess=st.floats(0, 0.5),
    crowd=st.tuples(st.floats(0, 4), st.floats(0, 4)),
    threads=st.sampled_from([0, 2]),
)
def test_what_is_fitted_is_what_a_stage_takes(alone, used, share, excess, crowd, threads):
    base, used = problem_of(32), np.array(used)
    together = Concurrency(
        used[:, None, :], share, threads=[threads] if threads else [], excess=[excess] * 3,
        crowding=np.array(crowd).reshape(2, 1),
    )  # fmt: skip
    p = Problem(base.graph, base.topology, Costs(np.array(alone).reshape(2, 1), concurrency=together))
    names = [operator.name for operator in p.graph.operators]
    stage = Schedule(p.digest, tuple(Placement(o, "gpu0", stream=n, stage=1) for n, o in enumerate(names)))
    said = simulate(p, stage).latency_ns
    times, parts, crowding = np.array(alone, dtype=float), used, np.array(crowd)
    if threads:  # each on one thread, whose arithmetic it has to itself
        times = threads * used[:, 0] * times
        parts = used * (np.array(alone) / times)[:, None]
        parts[:, 0], crowding = 0, np.zeros(2)
    (expected,) = Contention(share, excess, 1.0).pairs(times[None], parts[None], crowding[None])
    assert said == pytest.approx(max(expected, *times), abs=1.01)


def test_what_is_shipped_is_what_half_of_the_measured_pairs_say(monkeypatch):
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    found = runpy.run_path(str(BENCHMARKS / "concurrent_kernels.py"))
    data = found["json"].loads(found["DATA"].read_text())
    fitted = found["fitted_contention"](data)
    assert (fitted.serial_share, fitted.excess, fitted.crowding) == (H100.serial_share, H100.excess, H100.crowding)
    assert fitted.interval == pytest.approx(H100.interval, abs=0.005)
    left = data["pairs"]["rows"][1::2]
    shared, measured = found["features"](data, left), np.array([pair[3] for pair in left])
    predicted = H100.pairs(*shared)
    assert np.median(np.abs(predicted / measured - 1)) < 0.1, "of pairs that were not fitted"
    inside = (measured >= H100.interval[0] * predicted) & (measured <= H100.interval[1] * predicted)
    assert 0.85 < inside.mean() < 0.95
