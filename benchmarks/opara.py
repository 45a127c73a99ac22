"""Opara's evaluation by prediction: six models, with what streams cost and without, beside measurements and the paper.

Problems are of the kernels that a GPU runs, with what their launches take of it. Predictions are those of a GPU's blocks
(`tvm_sched.schedule.thread_blocks`), with parameters on the GPU: an H100, beside what one took (``data/h100_opara.json``),
and the GPUs of the paper. Inception-v3 runs with batches of 1 to 32, too.
"""

from __future__ import annotations

import json
import statistics
import time
from pathlib import Path
from typing import Any

from _common import parser
from _gpu import gpu_graph
from _opara_page import H100, PAPER_GPUS, SWEPT, page
from opara_gpu import last_first, one_gpu

from tvm_sched.cost_model import occupancy
from tvm_sched.problem import STREAM_OVERHEAD, WAIT_OVERHEAD, Device, OpGraph, Problem, Scenario, Topology, Workload
from tvm_sched.schedule import Schedule, ScheduleIndex, requests_of
from tvm_sched.schedule.thread_blocks import simulate_blocks
from tvm_sched.schedulers import solve
from tvm_sched.streams import ALLOCATORS, LAUNCH_ORDERS, allocate_streams, count_synchronizations, order_launches
from tvm_sched.streams.choice import choose_launch_order, choose_streams

GRAPH_LAUNCH = 0.78e-6
"""Seconds that a kernel takes after another of its stream in a CUDA graph (``docs/results/concurrent_kernels.md``)."""
BATCHES = (1, 2, 4, 8, 16, 32)
GPUS = {
    H100: {"memory": 80 * 10**9, "bandwidth": 3.35e12, "peak": 67e12, "arch": "sm_90"},
    "A100": {"memory": 40 * 10**9, "bandwidth": 1.555e12, "peak": 19.5e12, "arch": "sm_80"},
    "RTX 2080 SUPER": {"memory": 8 * 10**9, "bandwidth": 496e9, "peak": 11.15e12, "arch": "sm_75"},
}
"""Bytes, bytes and float32 operations a second, from data sheets."""


def graph_of(name: str, batch: int, graphs: Path | None) -> OpGraph:
    """Lower a model to the kernels of an H100."""
    from _opara_models import exported

    kept = graphs / f"{name.replace(' ', '_')}-{batch}.json" if graphs else None
    return gpu_graph(lambda: exported(name, batch), one_gpu("sm_90"), kept)


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
    for method in (*ALLOCATORS, "best"):
        if method == "best":
            found = choose_launch_order(problem, choose_streams(problem, base))
        else:
            found = allocate_streams(problem, order_launches(problem, base, "opara"), method)
        row: dict[str, Any] = {
            "streams": len({placement.stream for placement in found.placements}),
            "waits": count_synchronizations(problem, found),
            "us": simulate_blocks(problem, found, resident).latency_ns / 1e3,
            "free_us": simulate_blocks(free, again(free, found), resident).latency_ns / 1e3,
            "peak_bytes": int(max(ScheduleIndex.of(Scenario(problem, frozenset(resident)), found).times.peak_memory)),
        }
        if batch == 1 and method != "best":
            row["ms"] = 1e3 * statistics.median(_seconds(problem, base, method) for _ in range(9))
        case["methods"][method] = row
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


def _seconds(problem: Problem, base: Schedule, method: str) -> float:
    begin = time.perf_counter()
    allocate_streams(problem, base, method)
    return time.perf_counter() - begin


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
    options = arguments.parse_args()
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
