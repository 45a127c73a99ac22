"""Opara's evaluation by prediction: six models, with what streams cost and without, beside measurements and the paper.

Problems are of the kernels that a GPU runs, with what their launches take of it. Predictions are those of a GPU's blocks
(`tvm_sched_runtime.schedule.thread_blocks`), with parameters on the GPU: an H100, beside what one took
(``data/h100_opara.json``),
and the GPUs of the paper. Inception-v3 runs with batches of 1 to 32, too. ``--measured`` makes the page of what the H100
took alone; its program is that of commit e017e82d, and `gpu_hour.py` has since measured ours with Opara's streams.
"""

from __future__ import annotations

import json
import statistics
import time
from collections import Counter
from pathlib import Path
from typing import Any

import msgspec
from _common import parser
from _gpu import gpu_graph
from _opara_page import DECODER, H100, METHODS, PAPER_GPUS, SWEPT, TIMELINE_METHODS, TIMELINES, measured_page, page

from tvm_sched.cost_model import occupancy
from tvm_sched.schedulers import solve
from tvm_sched.streams import ALLOCATORS, LAUNCH_ORDERS, allocate_streams, count_synchronizations, order_launches
from tvm_sched.streams.stream_allocation import launches_of
from tvm_sched.streams.stream_choice import choose_launch_order, choose_streams
from tvm_sched_runtime.problem import (
    STREAM_OVERHEAD,
    WAIT_OVERHEAD,
    Bus,
    Device,
    OpGraph,
    Problem,
    Scenario,
    Topology,
    Workload,
)
from tvm_sched_runtime.schedule import Placement, Schedule, ScheduleIndex, requests_of
from tvm_sched_runtime.schedule.native_objects import native_problem
from tvm_sched_runtime.schedule.thread_blocks import multiprocessor_efficiency, simulate_blocks

GRAPH_LAUNCH = 0.78e-6
"""Seconds that a kernel takes after another of its stream in a CUDA graph (``docs/results/concurrent_kernels.md``)."""
BATCHES = (1, 2, 4, 8, 16, 32)
GPUS = {
    H100: {"memory": 80 * 10**9, "bandwidth": 3.35e12, "peak": 67e12, "arch": "sm_90"},
    "A100": {"memory": 40 * 10**9, "bandwidth": 1.555e12, "peak": 19.5e12, "arch": "sm_80"},
    "RTX 2080 SUPER": {"memory": 8 * 10**9, "bandwidth": 496e9, "peak": 11.15e12, "arch": "sm_75"},
}
"""Bytes, bytes and float32 operations a second, from data sheets."""


def one_gpu() -> Topology:
    """Make the machine with one H100 for which networks are lowered."""
    device = Device(
        "gpu0", 80 * 10**9, 3.35e12, {"float32": 67e12}, kind="cuda", launch_overhead=2e-6, bus="pcie0", model="H100",
        arch="sm_90",
    )  # fmt: skip
    return Topology("one H100", (device,), (Bus("pcie0", 5e10, 1e-5),))


def graph_of(name: str, batch: int, graphs: Path | None) -> OpGraph:
    """Lower a model to the kernels of an H100."""
    from _opara_models import exported

    if name == DECODER:
        return decoder_graph()
    kept = graphs / f"{name.replace(' ', '_')}-{batch}.json" if graphs else None
    return gpu_graph(lambda: exported(name, batch), one_gpu(), kept)


def decoder_graph() -> OpGraph:
    """Make OpenLLaMA-3B's prefill of 32 tokens with the demands that its kernels have when lowered."""
    from tvm_sched.relax.decoders.decoder_graph import decoder_variants
    from tvm_sched_runtime.problem.decoder_config import PRESETS

    return decoder_variants(PRESETS["openllama-3b"], 1, 32, gpus=one_gpu())[0]


def problem_of(graph: OpGraph, name: str, free: bool = False) -> Problem:
    """Make the problem on one GPU from the second run on; if ``free``, streams cost nothing."""
    said = GPUS[name]
    device = Device(
        "gpu0", said["memory"], said["bandwidth"], {"float32": said["peak"]}, kind="cuda", launch_overhead=GRAPH_LAUNCH,
        model=name, arch=said["arch"], stream_overhead=0.0 if free else STREAM_OVERHEAD,
        wait_overhead=0.0 if free else WAIT_OVERHEAD,
    )  # fmt: skip
    topology = Topology(f"one {name}", (device,))
    return Problem(graph, topology, occupancy(graph, topology))


def again(problem: Problem, schedule: Schedule) -> Schedule:
    """Return the schedule for a problem with other costs of streams."""
    return schedule.replace(problem=problem.digest, certificate=None)


def case_of(graph: OpGraph, name: str, batch: int, gpu: str) -> dict[str, Any]:
    """Compute all figures of a model on a GPU."""
    problem, free = problem_of(graph, gpu), problem_of(graph, gpu, free=True)
    warm = requests_of(problem, 1.0)  # all parameters are on the GPU
    resident = tuple(name for request in warm for name in request.resident)
    base = solve(problem, Workload(warm), "single")
    case: dict[str, Any] = {"model": name, "batch": batch, "gpu": gpu, "operators": len(graph.operators), "methods": {}}
    for method in METHODS:
        found = schedule_of(problem, base, method)
        row: dict[str, Any] = {
            "streams": len({placement.stream for placement in found.placements}),
            "waits": waits_of(problem, found),
            "us": simulate_blocks(problem, found, resident).latency_ns / 1e3,
            "free_us": simulate_blocks(free, again(free, found), resident).latency_ns / 1e3,
            "efficiency": multiprocessor_efficiency(problem, found, resident),
            "peak_bytes": int(max(ScheduleIndex.of(Scenario(problem, frozenset(resident)), found).times.peak_memory)),
        }
        if batch == 1 and method in ALLOCATORS:
            row["ms"] = _milliseconds(problem, base, method)
        case["methods"][method] = row
        if (batch, gpu) == (1, "A100") and name in TIMELINES and method in TIMELINE_METHODS:
            case.setdefault("events", {})[method] = events_of(problem, found, resident)
    case["orders"] = orders_of(problem, base, resident)
    return case


def orders_of(problem: Problem, base: Schedule, resident: tuple[str, ...]) -> dict[str, float]:
    """Return the microseconds of each launch order with Opara's streams, also with the last free operator first."""
    found = {}
    for order in LAUNCH_ORDERS:
        given = allocate_streams(problem, order_launches(problem, base, order), "opara")
        for name, schedule in ((order, given), (f"{order}, last first", last_first(problem, given))):
            found[name] = simulate_blocks(problem, schedule, resident).latency_ns / 1e3
    return found


def last_first(problem: Problem, schedule: Schedule) -> Schedule:
    """Reorder so that the last free operator comes first: in a CUDA graph branches start in reverse order."""
    order = [placement.operator for placement in schedule.placements]
    place = {name: k for k, name in enumerate(order)}
    index = problem.graph.index
    names = [operator.name for operator in problem.graph.operators]
    waits = {names[o]: len(before) for o, before in enumerate(index.predecessors)}
    after: dict[str, list[str]] = {name: [] for name in names}
    for o, before in enumerate(index.predecessors):
        for p in before:
            after[names[p]].append(names[o])
    free, found = [name for name in order if not waits[name]], []
    while free:
        name = max(free, key=place.__getitem__)
        free.remove(name)
        found.append(name)
        for following in after[name]:
            waits[following] -= 1
            if not waits[following]:
                free.append(following)
    of = {placement.operator: placement for placement in schedule.placements}
    return schedule.replace(placements=tuple(of[name] for name in found))


def events_of(problem: Problem, schedule: Schedule, resident: tuple[str, ...]) -> list[tuple[str, bool, float, float]]:
    """Return each kernel's stream, whether it is memory-bound, its start and its end (us)."""
    memory_bound = {each.name for each in problem.graph.operators if each.demand and each.demand.memory_bound}
    return [
        (event.lanes[0], event.name in memory_bound, event.start_ns / 1e3, event.end_ns / 1e3)
        for event in simulate_blocks(problem, schedule, resident).events
        if event.kind == "kernel"
    ]


def schedule_of(problem: Problem, base: Schedule, method: str) -> Schedule:
    """Return a method's streams in its own launch order: Nimble's and Rammer's are depth-first."""
    if method == "best":
        return choose_launch_order(problem, choose_streams(problem, base))
    if method == "opara, program":
        return allocate_streams(problem, order_launches(problem, base, "opara-program"), "opara")
    if method == "wavefront":
        return waves(order_launches(problem, base, "depth-first"), problem)
    order = "depth-first" if method in ("one", "nimble") else "opara"
    return allocate_streams(problem, order_launches(problem, base, order), method)


def waves(schedule: Schedule, problem: Problem) -> Schedule:
    """Return the schedule in Rammer's waves: operators of one depth on streams of their own, and a barrier after each."""
    index = problem.graph.index
    depth = [0] * len(problem.graph.operators)
    for o in index.order:
        depth[o] = 1 + max((depth[p] for p in index.predecessors[o]), default=0)
    stages: dict[int, list[Placement]] = {}
    for placement in schedule.placements:
        stages.setdefault(depth[index.operator_id[placement.operator]], []).append(placement)
    placements = tuple(
        msgspec.structs.replace(placement, stream=stream, stage=stage)
        for stage, placed in sorted(stages.items())
        for stream, placement in enumerate(placed)
    )
    return schedule.replace(placements=placements, certificate=None)


def waits_of(problem: Problem, schedule: Schedule) -> int:
    """Return the waits between streams; at a barrier one stream waits for all others, and then each for that one."""
    if not any(placement.stage for placement in schedule.placements):
        return count_synchronizations(problem, schedule)
    streams = Counter(placement.stage for placement in schedule.placements)
    width = [streams[stage] for stage in sorted(streams)]
    return sum(before - 1 for before in width[:-1]) + sum(after - 1 for after in width[1:])


def _milliseconds(problem: Problem, base: Schedule, method: str) -> float:
    """Return the median time of the allocation itself: neither of preparing its input nor of pricing its schedule."""
    known, (operators, devices, _) = native_problem(problem), launches_of(problem, base)
    taken = []
    for _ in range(9):
        begin = time.perf_counter()
        known.allocate_streams(method, operators, devices)
        taken.append(1e3 * (time.perf_counter() - begin))
    return statistics.median(taken)


def wanted(models: list[str], batches: list[int]) -> list[tuple[str, int, list[str]]]:
    """Return the cases to predict: model, batch, GPUs."""
    found = [(name, 1, list(dict.fromkeys([H100, *PAPER_GPUS[name]]))) for name in models]
    return found + [(SWEPT, batch, list(GPUS)) for batch in batches if batch > 1 and SWEPT in models]


def main() -> None:
    arguments = parser(__doc__)
    arguments.add_argument(
        "--graphs", type=Path, metavar="DIR", help="keep lowered graphs there, and take them from there"
    )
    arguments.add_argument("--resume", action="store_true", help="leave out cases that stand in the file of --json")
    arguments.add_argument("--models", nargs="*", default=list(PAPER_GPUS), help="of these names alone")
    arguments.add_argument("--batches", nargs="*", type=int, default=list(BATCHES), help=f"of {SWEPT}")
    arguments.add_argument("--measured", action="store_true", help="make the page of what was measured, and no other")
    options = arguments.parse_args()
    if options.measured:
        return measured_page(options.markdown).write()
    cases: list[dict[str, Any]] = []
    if options.resume and options.json and options.json.exists():
        cases = json.loads(options.json.read_text())
    models, batches = (options.models[:1], [1]) if options.quick else (options.models, options.batches)
    for name, batch, gpus in wanted(models, batches):
        known = {case["gpu"] for case in cases if (case["model"], case["batch"]) == (name, batch)}
        if not set(gpus) - known:
            continue
        graph = graph_of(name, batch, options.graphs)
        for gpu in [gpu for gpu in gpus if gpu not in known]:
            cases.append(case_of(graph, name, batch, gpu))
            print(json.dumps(cases[-1]), flush=True)
        if options.json:
            options.json.write_text(json.dumps(cases, indent=1) + "\n")
    costs = (f"{seconds * 1e6:g}" for seconds in (GRAPH_LAUNCH, STREAM_OVERHEAD, WAIT_OVERHEAD))
    page(cases, *costs, options.markdown).write()


if __name__ == "__main__":
    main()
