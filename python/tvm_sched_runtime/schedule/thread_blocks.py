"""Simulate one GPU at the level of thread blocks: effects of launch order and streams (``docs/model.md``).

The simulator is in ``cpp/simulate/blocks.cc``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from ..core_library import function
from ..errors import InputError
from ..problem import MULTIPROCESSORS, Demand, Device, KernelResources, Multiprocessor, Problem, multiprocessors_of
from .indexed import ScheduleIndex, Times
from .residency import Resident, resolved_in_run
from .schedule import Schedule
from .simulator import timeline
from .timeline import Timeline

PRODUCT_EFFICIENCY = 0.35
"""Fraction of a GPU's arithmetic that saturates it, fitted to half of the kernel pairs that were measured on an H100
(``docs/results/concurrent_kernels.md``)."""
_MOST_WAVES = 8
"""Kernels of more waves are simulated with blocks merged until there are this many waves."""


@dataclass(frozen=True)
class BlockKernel:
    """A kernel for the simulator."""

    resources: KernelResources
    alone_ns: int
    """Time from the start of its first block to the end of its last one, if it runs alone."""
    arithmetic: float = 0.0
    bandwidth: float = 0.0
    """Fractions of the GPU's arithmetic and memory bandwidth that it uses alone, 0 to 1."""
    before: tuple[int, ...] = field(default=())
    """Positions of the kernels for which it waits."""
    overhead_ns: int = 0
    ready_ns: int = 0
    """Least time from their end to its first block, and the earliest start of that block."""


class BlockRun(NamedTuple):
    """Start and end (ns) of each kernel, and the time in which a multiprocessor has a block, summed over them (ns)."""

    times: list[tuple[int, int]]
    busy_ns: int


def run_blocks(kernels: Sequence[BlockKernel], processor: Multiprocessor, count: int) -> BlockRun:
    """Run kernels on ``count`` multiprocessors, launched in this order.

    Ready kernels form a queue. Blocks of the first kernel start where there is room, and later kernels start none before all
    of the first one's have started, since GPUs do not preempt (Amert et al., RTSS 2017; Opara's "GPU blocking"). Blocks
    on a multiprocessor share its arithmetic, and all blocks share the bandwidth, in proportion to their warps. A block that
    needs less than its part is not slowed, and no block is faster than when its kernel runs alone.

    Raises
    ------
    InputError
        A block fits on no multiprocessor, or kernels wait for each other.
    """
    room, blocks_of, block_ns, arithmetic_of, bandwidth_of = [], [], [], [], []
    for kernel in kernels:
        taken, resident = kernel.resources, processor.resident(kernel.resources)
        if resident == 0:
            raise InputError(f"a block of {taken} fits on no multiprocessor: {processor}")
        places = resident * count
        merged = -(-taken.blocks // (_MOST_WAVES * places))
        blocks = -(-taken.blocks // merged)
        concurrent = min(blocks, places)
        waves = -(-blocks // places)
        on_one = -(-concurrent // count)
        # Averages over the kernel, as fractions for one block; at most the part that its other blocks leave.
        busy = waves * concurrent / blocks
        arithmetic = min(kernel.arithmetic * busy * count / concurrent, 1 / on_one)
        bandwidth = min(kernel.bandwidth * busy / concurrent, 1 / concurrent)
        room.append(processor.room_of(taken))
        blocks_of.append(blocks)
        block_ns.append(kernel.alone_ns / waves)
        arithmetic_of.append(arithmetic)
        bandwidth_of.append(bandwidth)
    edges = [(p, k) for k, kernel in enumerate(kernels) for p in kernel.before]
    arrays = {
        "room": _integers(room),
        "blocks": _integers(blocks_of),
        "block_ns": np.array(block_ns, dtype=np.float64),
        "arithmetic": np.array(arithmetic_of, dtype=np.float64),
        "bandwidth": np.array(bandwidth_of, dtype=np.float64),
        "ready_ns": _integers([kernel.ready_ns for kernel in kernels]),
        "overhead_ns": _integers([kernel.overhead_ns for kernel in kernels]),
        "edge_before": _integers([before for before, _ in edges]),
        "edge_after": _integers([after for _, after in edges]),
    }
    try:
        times = function("tvm_sched.simulate_blocks")(arrays, count, _integers(processor.room))
    except ValueError as error:
        raise InputError(str(error)) from None
    starts, ends = (np.from_dlpack(row).tolist() for row in (times.start_ns, times.end_ns))
    return BlockRun(list(zip(starts, ends, strict=True)), times.busy_ns)


def _integers(values: Any) -> npt.NDArray[np.int64]:
    return np.array(values, dtype=np.int64)


def knows_blocks(problem: Problem, schedule: Schedule) -> bool:
    """Return whether `simulate_blocks` takes the schedule."""
    try:
        _gpu_of(problem, schedule)
    except InputError:
        return False
    return True


def simulate_blocks(problem: Problem, schedule: Schedule, resident: Resident = 0.0) -> Timeline:
    """Return the timeline of a schedule on one GPU, simulated by thread blocks.

    Alone, an operator takes the time in the problem's costs; a launch's overhead takes no room on the GPU. Nothing starts
    before the device's ``stream_overhead`` for each stream but one. A kernel that waits for another stream starts
    ``wait_overhead`` later. Loads of parameters and inputs follow each other on the bus without a pause.

    Parameters
    ----------
    problem : Problem
        A problem whose operators have demands (`Operator.demand`).
    schedule : Schedule
        A schedule on one GPU of a known model (`multiprocessors_of`).
    resident : float or collection of str, optional
        As for `simulate`.

    Raises
    ------
    InputError
        The schedule is for other devices, or demands are missing.
    ScheduleError
        The schedule breaks one of rules 1 to 4.
    """
    return _simulate(problem, schedule, resident)[0]


def multiprocessor_efficiency(problem: Problem, schedule: Schedule, resident: Resident = 0.0) -> float:
    """Return the fraction of the run in which a multiprocessor has a block, averaged over the GPU's multiprocessors.

    This is the metric that NVIDIA's profilers call SM efficiency. Parameters and exceptions are those of `simulate_blocks`.
    """
    run, busy_ns, count = _simulate(problem, schedule, resident)
    return busy_ns / (run.latency_ns * count) if run.latency_ns else 0.0


def _simulate(problem: Problem, schedule: Schedule, resident: Resident) -> tuple[Timeline, int, int]:
    """Return the timeline, the busy time summed over multiprocessors (ns), and their number."""
    scenario, schedule = resolved_in_run(problem, schedule, resident)
    problem = scenario.problem
    gpu = _gpu_of(problem, schedule)
    index = ScheduleIndex.of(scenario, schedule)
    known = index.times  # says which rule is broken
    stream = dict(zip(index.operator, index.stream, strict=True))
    begin = round(gpu.device.stream_overhead * 1e9) * (len(set(stream.values())) - 1)
    wait = round(gpu.device.wait_overhead * 1e9)
    loads, moves = _loads(index, gpu.number, begin)
    kernels: list[BlockKernel] = []
    first: dict[int, int] = {}  # kernels of an operator
    last: dict[int, int] = {}
    for place, (o, waits) in enumerate(zip(index.operator, _waits(problem, index), strict=True)):
        ready = max((loads.get(t, begin) for t in problem.graph.index.inputs[o]), default=begin)
        later = wait if any(stream[p] != stream[o] for p in waits) else 0
        before = tuple(last[p] for p in waits)
        first[o] = len(kernels)
        for kernel in _kernels(problem, o, gpu, index.direct[place]):
            overhead = kernel.overhead_ns + later
            kernels.append(replace(kernel, before=before, ready_ns=ready, overhead_ns=overhead))
            before, ready, later = (len(kernels) - 1,), 0, 0
        last[o] = len(kernels) - 1
    times, busy_ns = run_blocks(kernels, gpu.processor, gpu.multiprocessors)
    starts = np.array([times[first[o]][0] for o in index.operator], dtype=np.int64)
    ends = np.array([times[last[o]][1] for o in index.operator], dtype=np.int64)
    latency = int(ends.max(initial=0))
    begins, arrivals = np.array(moves, dtype=np.int64).reshape(-1, 2).T
    result = timeline(problem, schedule, Times(starts, ends, begins, arrivals, latency, known.peak_memory))
    return result, busy_ns, gpu.multiprocessors


class _Gpu(NamedTuple):
    """The GPU on which all operators run."""

    number: int
    device: Device
    processor: Multiprocessor
    multiprocessors: int


def _gpu_of(problem: Problem, schedule: Schedule) -> _Gpu:
    used = sorted({placement.device for placement in schedule.placements})
    devices = problem.topology.devices
    number = next((d for d, device in enumerate(devices) if [device.name] == used), 0)
    device = devices[number]
    known = multiprocessors_of(device)
    if used not in ([], [device.name]) or device.kind != "cuda" or known is None:
        raise InputError(
            f"blocks can be simulated if all operators run on one GPU of a known architecture; here they run on "
            f"{', '.join(used)} of {problem.topology.name!r}; known architectures: {', '.join(MULTIPROCESSORS)}"
        )
    missing = [operator.name for operator in problem.graph.operators if not operator.demand]
    if missing:
        raise InputError(
            f"operator {missing[0]!r} has no demand (threads, registers and shared memory of its kernels); make the problem "
            "with --costs occupancy, or for --backend cuda"
        )
    return _Gpu(number, device, *known)


def _kernels(problem: Problem, o: int, gpu: _Gpu, direct: bool) -> list[BlockKernel]:
    """Return the launches of an operator, which share its time equally."""
    operator, size = problem.graph.operators[o], problem.graph.index.size
    demand: Demand = operator.demand  # type: ignore[assignment]  # _gpu_of has looked
    launches = demand.launches
    whole = int((problem.costs.direct_ns if direct else problem.costs.operator_ns)[o, gpu.number])
    overhead = min(round(gpu.device.launch_overhead * 1e9), whole - len(launches))
    busy = max(whole - max(overhead, 0), 1)
    moved = sum(size[t] for t in (*problem.graph.index.inputs[o], *problem.graph.index.outputs[o]))
    peak = gpu.device.peak_flops["float32"] * (1.0 if demand.memory_bound else PRODUCT_EFFICIENCY)
    arithmetic = min(1.0, operator.flops / peak / (busy / 1e9))
    bandwidth = min(1.0, moved / gpu.device.memory_bandwidth / (busy / 1e9))
    each = [busy * (k + 1) // len(launches) - busy * k // len(launches) for k in range(len(launches))]
    return [
        BlockKernel(launch, ns, arithmetic, bandwidth, overhead_ns=max(overhead, 0) if k == 0 else 0)
        for k, (launch, ns) in enumerate(zip(launches, each, strict=True))
    ]


def _waits(problem: Problem, index: ScheduleIndex) -> list[list[int]]:
    """Return the operators that each placement waits for: producers, its stream's last one, earlier stages."""
    before = problem.graph.index.predecessors
    on_stream: dict[int, int] = {}
    here: list[int] = []  # operators of the open stage
    earlier: list[int] = []
    open_stage = 0
    waits_of = []
    for o, stream, stage in zip(index.operator, index.stream, index.stage, strict=True):
        if stage != open_stage or not stage:
            earlier, here, open_stage = (here or earlier) if stage or open_stage else [], [], stage
        waits = dict.fromkeys((*before[o], *earlier))
        if stream in on_stream:
            waits[on_stream[stream]] = None
        waits_of.append(list(waits))
        on_stream[stream] = o
        if stage:
            here.append(o)
    return waits_of


def _loads(index: ScheduleIndex, number: int, now: int) -> tuple[dict[int, int], list[tuple[int, int]]]:
    """Return when each host tensor arrives, and when each transfer runs: one after another, the first at ``now``."""
    arrived: dict[int, int] = {}
    moves = []
    for kind, item in zip(index.transfer_kind, index.transfer_item, strict=True):
        begin = now
        if kind == ScheduleIndex.LOAD:
            now += index.scenario.load_ns(item, number)
            arrived[item] = now
        moves.append((begin, now))
    return arrived, moves
