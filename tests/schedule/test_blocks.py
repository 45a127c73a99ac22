"""Blocks of a GPU: small cases by hand, bounds that hold for all, and what an H100 measured."""

import json
from pathlib import Path

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from thorough import examples
from tvm_sched.streams import choose_launch_order
from tvm_sched_runtime.errors import InputError
from tvm_sched_runtime.problem import (
    MULTIPROCESSORS,
    Concurrency,
    Costs,
    Demand,
    Device,
    KernelResources,
    Operator,
    OpGraph,
    Problem,
    Tensor,
    Topology,
)  # fmt: skip
from tvm_sched_runtime.schedule import Placement, Schedule, simulate
from tvm_sched_runtime.schedule.thread_blocks import BlockKernel, knows_blocks, run_blocks, simulate_blocks

H100 = MULTIPROCESSORS["sm_90"]
MEASURED = json.loads((Path(__file__).parents[2] / "benchmarks/data/h100_concurrency.json").read_text())
HALF = KernelResources(4, 1024)  # a block of half a multiprocessor


def ends(kernels, count=4):
    return [end for _, end in run_blocks(kernels, H100, count).times]


def test_kernels_that_fit_run_concurrently():
    assert ends([BlockKernel(HALF, 1000), BlockKernel(HALF, 700)]) == [1000, 700]


def test_one_that_does_not_fit_waits_for_room_and_blocks_those_behind_it():
    full, small = KernelResources(8, 1024), KernelResources(1, 32)
    assert run_blocks([BlockKernel(full, 1000), BlockKernel(full, 500), BlockKernel(small, 10)], H100, 4).times == [
        (0, 1000),
        (1000, 1500),
        (1500, 1510),
    ]
    # Small first: the last block of the other waits for it.
    assert ends([BlockKernel(small, 10), BlockKernel(full, 1000)]) == [10, 1010]


def test_waves_follow_each_other():
    assert ends([BlockKernel(KernelResources(16, 1024), 1000)]) == [1000]  # two waves of 500
    third = KernelResources(4, 1024)
    # Beside another, half of the room is left: four waves.
    assert ends([BlockKernel(third, 10_000), BlockKernel(KernelResources(16, 1024), 1000)]) == [10_000, 2000]


def test_arithmetic_and_bandwidth_are_shared():
    assert ends([BlockKernel(HALF, 1000, arithmetic=1.0)] * 2) == [2000, 2000]
    assert ends([BlockKernel(HALF, 1000, bandwidth=1.0)] * 2) == [2000, 2000]
    assert ends([BlockKernel(HALF, 1000, arithmetic=1.0), BlockKernel(HALF, 1000, bandwidth=1.0)]) == [1000, 1000]


def test_one_that_asks_for_less_than_its_share_is_not_slowed():
    greedy, modest = BlockKernel(HALF, 1000, bandwidth=1.0), BlockKernel(HALF, 1000, bandwidth=0.25)
    assert ends([greedy, modest]) == [1250, 1000]


def test_small_blocks_that_waited_crowd_on_the_first_free_multiprocessor():
    large, small = KernelResources(4, 1024, 64), KernelResources(4, 256, 32)
    crowded = run_blocks([BlockKernel(large, 1000), BlockKernel(small, 1000, arithmetic=1.0)], H100, 4).times
    assert crowded == [(0, 1000), (1000, 5000)]  # all four on one


def test_dependences_overheads_and_what_is_not_ready():
    kernels = [BlockKernel(HALF, 100, overhead_ns=5), BlockKernel(HALF, 10, before=(0,), overhead_ns=3, ready_ns=200)]
    assert run_blocks(kernels, H100, 4).times == [(5, 105), (203, 213)]


def test_busy_time_counts_multiprocessors_with_a_block():
    # Two of four multiprocessors for 100 ns each; then, after a pause, one for 10 ns.
    two = BlockKernel(KernelResources(2, 1024), 100)
    one = BlockKernel(KernelResources(1, 32), 10, before=(0,), ready_ns=300)
    assert run_blocks([two, one], H100, 4).busy_ns == 2 * 100 + 10


def test_what_cannot_run():
    with pytest.raises(InputError, match="fits on no multiprocessor"):
        run_blocks([BlockKernel(KernelResources(1, 256, shared_memory=1 << 20), 1)], H100, 1)
    with pytest.raises(InputError, match="wait for each other"):
        run_blocks([BlockKernel(HALF, 1, before=(1,)), BlockKernel(HALF, 1, before=(0,))], H100, 1)


KERNELS = st.builds(
    BlockKernel,
    st.builds(
        KernelResources,
        st.integers(1, 3000),
        st.sampled_from([32, 64, 128, 256, 512, 1024]),
        st.integers(8, 64),
        st.integers(0, 48 << 10),
    ),
    st.integers(100, 10**6),
    st.floats(0, 1),
    st.floats(0, 1),
)


@settings(max_examples=examples(60), deadline=None)
@given(st.lists(KERNELS, min_size=1, max_size=6), st.integers(1, 12))
def test_no_faster_than_the_work_allows(kernels, count):
    found = run_blocks(kernels, H100, count).times
    assert found == run_blocks(kernels, H100, count).times  # always the same
    latency = max(end for _, end in found)
    alone = [max(ends([kernel], count)) for kernel in kernels]
    assert latency >= max(alone) - 1
    room = 0.0
    for kernel, took in zip(kernels, alone, strict=True):
        places = H100.resident(kernel.resources) * count
        waves = -(-kernel.resources.blocks // places)
        assert abs(took - kernel.alone_ns) <= 2 + kernel.alone_ns * 1e-6  # alone it takes what is said
        if waves <= 8:
            warps = -(-kernel.resources.threads // 32)
            room += kernel.resources.blocks * warps * kernel.alone_ns / waves
    assert latency * H100.threads // 32 * count >= room * (1 - 1e-6) - 1


def branches(*kernels, model="H100", overhead=0.0):
    """A problem of independent operators on one GPU, each of 1 microsecond and one launch."""
    names = [f"op{k}" for k in range(len(kernels))]
    operators = tuple(
        Operator(name, "relu", outputs=(f"t{name}",), demand=Demand((kernel,), True, "launch") if kernel else NO_DEMAND)
        for name, kernel in zip(names, kernels, strict=True)
    )
    graph = OpGraph("g", operators, tuple(Tensor(f"t{name}", 4) for name in names), tuple(f"t{name}" for name in names))
    gpu = Device("gpu", 10**9, 3e12, {"float32": 6e13}, "cuda", overhead, model=model, arch="sm_90")
    together = Concurrency(np.full((len(kernels), 1, 1), 0.1))
    return Problem(graph, Topology("one", (gpu,)), Costs(np.full((len(kernels), 1), 1000), concurrency=together))


NO_DEMAND = Operator("x").demand
FULL, SMALL = KernelResources(264, 1024), KernelResources(4, 64)


def on_streams(problem, order, stages=None):
    placements = tuple(Placement(f"op{k}", "gpu", stream=k, stage=stages[k] if stages else 0) for k in order)
    return Schedule(problem.digest, placements, ())


def test_the_launch_order_of_a_schedule_counts():
    problem = branches(FULL, SMALL)
    small_first, large_first = on_streams(problem, [1, 0]), on_streams(problem, [0, 1])
    assert simulate(problem, small_first).latency_ns == simulate(problem, large_first).latency_ns == 1000
    assert simulate_blocks(problem, large_first).latency_ns == 2000  # the small one waits for the large one
    assert simulate_blocks(problem, small_first).latency_ns == 2000  # as does the large one's last block
    timeline = simulate_blocks(problem, large_first)
    assert [(event.name, event.start_ns, event.end_ns) for event in timeline.events] == [
        ("op0", 0, 1000),
        ("op1", 1000, 2000),
    ]


def test_the_best_order_is_found_by_blocks():
    # A half, a full one and a half: the halves at once, if the full one does not stand between them.
    half, whole = KernelResources(132, 1024, 32), KernelResources(132, 1024, 64)
    problem = branches(half, whole, half)
    between = on_streams(problem, [0, 1, 2])
    assert simulate_blocks(problem, between).latency_ns == 3000
    assert simulate_blocks(problem, on_streams(problem, [0, 2, 1])).latency_ns == 2000
    assert simulate_blocks(problem, choose_launch_order(problem, between)).latency_ns == 2000


def test_overheads_of_streams_overlap():
    problem = branches(SMALL, SMALL, overhead=4e-7)
    assert simulate_blocks(problem, on_streams(problem, [0, 1])).latency_ns == 1000


def test_streams_and_waits_cost_what_the_device_says():
    problem = branches(SMALL, SMALL, SMALL)
    (gpu,) = problem.topology.devices
    gpu = msgspec.structs.replace(gpu, stream_overhead=3e-7, wait_overhead=5e-8)
    costly = Problem(problem.graph, Topology("one", (gpu,)), problem.costs)
    assert simulate_blocks(costly, on_streams(costly, [0, 1, 2])).latency_ns == 1600
    assert simulate(costly, on_streams(costly, [0, 1, 2])).latency_ns == 1600


def test_stages_wait_for_each_other():
    problem = branches(SMALL, SMALL, SMALL)
    staged = on_streams(problem, [0, 1, 2], stages=[1, 1, 2])
    assert simulate_blocks(problem, staged).latency_ns == 2000


def test_what_has_no_blocks():
    problem = branches(SMALL, None)
    plan = on_streams(problem, [0, 1])
    assert not knows_blocks(problem, plan)
    with pytest.raises(InputError, match="operator 'op1' has no demand"):
        simulate_blocks(problem, plan)
    unknown = branches(SMALL, SMALL, model="another")
    with pytest.raises(InputError, match="one GPU of a known architecture"):
        simulate_blocks(unknown, on_streams(unknown, [0, 1]))


def test_beside_an_h100():
    """Of the pairs that were measured, those far slower at once are told from those that are far faster."""
    rows = {k: row for k, row in enumerate(MEASURED["kernels"]["rows"]) if not row[6]}  # those that move no bytes
    gap = 1800  # nanoseconds between kernels of a graph
    kernels = {}
    for k, (_, blocks, threads, registers, shared, flops, _, alone, _) in rows.items():
        taken, ns = KernelResources(blocks, threads, registers, shared), round(alone * 1e3) - gap
        kernels[k] = BlockKernel(taken, ns, min(1.0, flops / 67e3 / ns), overhead_ns=gap)
    found = {"slow": [], "fast": []}
    for first, second, after, beside in MEASURED["pairs"]["rows"]:
        if first not in kernels or second not in kernels:
            continue
        # A graph starts the branch that was captured last first.
        predicted = max(end for _, end in run_blocks([kernels[second], kernels[first]], H100, 132).times) / 1e3 / after
        if beside > 1.5 * after:
            found["slow"].append(predicted > 1.15)
        if beside < 0.7 * after:
            found["fast"].append(predicted < 0.85)
    assert (sum(found["slow"]), len(found["slow"])) == (12, 14)
    assert (sum(found["fast"]), len(found["fast"])) == (11, 11)
