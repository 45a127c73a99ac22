"""Opara's evaluation by prediction: six models on one H100, with what streams cost there and without, beside measurements.

Problems are of the kernels that a GPU runs, with what their launches take of it. Predictions are those of a GPU's blocks
(`tvm_sched.schedule.blocks`), with parameters on the GPU. Measurements are the recorded ones of ``data/h100_opara.json``.
"""

from __future__ import annotations

import json
import statistics
import time
from pathlib import Path
from typing import Any

from _common import circumstances, parser
from _gpu_graphs import gpu_graph
from msgspec.structs import replace

from tvm_sched.cost_model import occupancy
from tvm_sched.problem import STREAM_OVERHEAD, WAIT_OVERHEAD, Problem
from tvm_sched.schedule import Schedule, ScheduleIndex
from tvm_sched.schedule.blocks import simulate_blocks
from tvm_sched.schedulers import solve
from tvm_sched.streams import ALLOCATORS, LAUNCH_ORDERS, allocate_streams, count_synchronizations, order_launches
from tvm_sched.streams.choice import choose_launch_order, choose_streams

MEASURED = json.loads((Path(__file__).parent / "data" / "h100_opara.json").read_text())
GRAPH_LAUNCH = 0.78e-6
"""Seconds that a kernel takes after another of its stream in a CUDA graph (``docs/results/concurrent_kernels.md``)."""
BATCHES = (1, 2, 4, 8, 16, 32)
PAPER_BATCHES = "RTX 2080: 1.41 at batch 1, 1.09 at 32"


def problem_of(name: str, batch: int, graphs: Path | None) -> Problem:
    """The problem on one H100, as from the second run on."""
    from _opara_models import exported
    from opara_gpu import one_gpu

    topology = one_gpu("sm_90")
    (gpu,) = topology.devices
    gpu = replace(gpu, launch_overhead=GRAPH_LAUNCH, stream_overhead=STREAM_OVERHEAD, wait_overhead=WAIT_OVERHEAD)
    topology = replace(topology, devices=(gpu,))
    kept = graphs / f"{name.replace(' ', '_')}-{batch}.json" if graphs else None
    graph = gpu_graph(lambda: exported(name, batch), topology, kept)
    return _warm(Problem(graph, topology, occupancy(graph, topology)))


def _warm(problem: Problem) -> Problem:
    return problem.with_resident([tensor.name for tensor in problem.graph.tensors if tensor.kind == "parameter"])


def free_streams(problem: Problem) -> Problem:
    """The same where streams cost nothing."""
    (gpu,) = problem.topology.devices
    topology = replace(problem.topology, devices=(replace(gpu, stream_overhead=0.0, wait_overhead=0.0),))
    return _warm(Problem(problem.graph, topology, problem.costs))


def again(problem: Problem, schedule: Schedule) -> Schedule:
    """The schedule for a problem that differs in what streams cost."""
    return schedule.replace(problem=problem.digest, certificate=None)


def case_of(name: str, batch: int, graphs: Path | None) -> dict[str, Any]:
    """All figures of a model."""
    problem = problem_of(name, batch, graphs)
    free = free_streams(problem)
    base = solve(problem, "single")
    case: dict[str, Any] = {"model": name, "batch": batch, "operators": len(problem.graph.operators), "methods": {}}
    for method in (*ALLOCATORS, "best"):
        if method == "best":
            found = choose_launch_order(problem, choose_streams(problem, base))
        else:
            found = allocate_streams(problem, order_launches(problem, base, "opara"), method)
        row: dict[str, Any] = {
            "streams": len({placement.stream for placement in found.placements}),
            "waits": count_synchronizations(problem, found),
            "us": simulate_blocks(problem, found).latency_ns / 1e3,
            "free_us": simulate_blocks(free, again(free, found)).latency_ns / 1e3,
            "peak_bytes": int(max(ScheduleIndex.of(problem, found).times.peak_memory)),
        }
        if batch == 1 and method != "best":
            row["ms"] = 1e3 * statistics.median(_seconds(problem, base, method) for _ in range(9))
        case["methods"][method] = row
    ordered = [allocate_streams(problem, order_launches(problem, base, order), "opara") for order in LAUNCH_ORDERS]
    orders = [simulate_blocks(problem, schedule) for schedule in ordered]
    case["orders"] = max(t.latency_ns for t in orders) / min(t.latency_ns for t in orders)
    return case


def _seconds(problem: Problem, base: Schedule, method: str) -> float:
    begin = time.perf_counter()
    allocate_streams(problem, base, method)
    return time.perf_counter() - begin


def page(cases: list[dict[str, Any]]) -> str:
    """The page of results."""
    first = [case for case in cases if case["batch"] == 1]
    lines = [
        "# Opara's evaluation, predicted",
        "",
        *circumstances(),
        "Models on one H100, kernels and library calls as lowered for it (sm_90), demands of their launches, predicted by "
        f"a GPU's blocks. A kernel starts {GRAPH_LAUNCH * 1e6:g} us after another of its stream, a further stream costs "
        f"{STREAM_OVERHEAD * 1e6:g} us of a run and a wait for another stream {WAIT_OVERHEAD * 1e6:g} us, as "
        '[measured on an H100](opara_h100.md); "free" is without the last two. No GPU ran for this page: what is measured '
        "is of that page.",
        "",
        "## Speed beside one stream: predicted, predicted with free streams, measured",
        "",
        "| model | operators | " + " | ".join((*ALLOCATORS[1:], "best")) + " |",
        "| --- | ---: |" + " --- |" * len(ALLOCATORS),
    ]
    for case in first:
        one, known = case["methods"]["one"], MEASURED.get(case["model"], {})
        cells = []
        for method in (*ALLOCATORS[1:], "best"):
            row = case["methods"][method]
            measured = f"{known['one'] / known[method]:.2f}" if method in known else "–"
            cells.append(f"{one['us'] / row['us']:.2f}, {one['free_us'] / row['free_us']:.2f}, {measured}")
        lines.append(f"| {case['model']} | {case['operators']} | " + " | ".join(cells) + " |")
    lines += ["", "## Streams and waits", "", "| model | " + " | ".join((*ALLOCATORS, "best")) + " |"]
    lines += ["| --- |" + " --- |" * (len(ALLOCATORS) + 1)]
    for case in first:
        rows = [case["methods"][method] for method in (*ALLOCATORS, "best")]
        lines.append(f"| {case['model']} | " + " | ".join(f"{row['streams']}, {row['waits']}" for row in rows) + " |")
    lines += ["", "## What a further stream costs: Opara's beside wavefront's, us", ""]
    lines += ["| model | streams | predicted | with free streams | measured |", "| --- | --- | ---: | ---: | ---: |"]
    for case in first:
        opara, waves, known = case["methods"]["opara"], case["methods"]["wavefront"], MEASURED.get(case["model"], {})
        measured = f"{known['opara'] - known['wavefront']:+.0f}" if known else "–"
        lines.append(
            f"| {case['model']} | {opara['streams']}, {waves['streams']} | {opara['us'] - waves['us']:+.0f} | "
            f"{opara['free_us'] - waves['free_us']:+.0f} | {measured} |"
        )
    lines += ["", "## Launch order (worst over best of Opara's streams), allocation and memory", ""]
    lines += [
        "| model | order, predicted | measured | ms: " + ", ".join(ALLOCATORS) + " | MB at most: one, opara, fewest |",
        "| --- | ---: | ---: | --- | --- |",
    ]
    for case in first:
        known = MEASURED.get(case["model"], {}).get("launch orders of opara")
        measured = f"{max(known) / min(known):.2f}" if known else "–"
        times = ", ".join(f"{case['methods'][method].get('ms', 0):.2f}" for method in ALLOCATORS)
        memory = ", ".join(
            f"{case['methods'][method]['peak_bytes'] / 1e6:.1f}" for method in ("one", "opara", "fewest")
        )
        lines.append(f"| {case['model']} | {case['orders']:.2f} | {measured} | {times} | {memory} |")
    swept = [case for case in cases if any(o["batch"] > 1 and o["model"] == case["model"] for o in cases)]
    if swept:
        lines += ["", f"## Batches ({PAPER_BATCHES})", "", "Speed beside one stream, predicted:", ""]
        lines += ["| model | batch | opara | fewest | best |", "| --- | ---: | ---: | ---: | ---: |"]
        for case in swept:
            one = case["methods"]["one"]["us"]
            cells = (f"{one / case['methods'][method]['us']:.2f}" for method in ("opara", "fewest", "best"))
            lines.append(f"| {case['model']} | {case['batch']} | " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n" + NOTES


NOTES = """
- *The paper's 4 streams of GoogLeNet* under Nimble are the most operators that can run at once: `fewest`, a matching on the
  transitive closure, finds them. On the minimum equivalent graph, as Nimble's paper has it, the matching gives 28, as
  Opara's algorithm does.
- *What contradicts the measurement.* Inception-v3: Opara's 36 streams were faster than wavefront's 4 by 215 us, here they are
  slower. Its convolutions took ten times what the data sheet says, so that what they gain beside each other outweighed what
  streams cost; with latencies of the data sheet it does not. Gains of GoogLeNet and Inception-v3 are too small here for
  the same reason, DeepFM's of 8 streams is likely too large: measured ones are of runs as the caller sees them, with
  some 100 us of copies and calls. `ios` with 8 streams was measured 1.32 times as fast as one.
- "best" takes the streams of least predicted latency, joined to 2, 4, 8 or 16 where that is better, and their launch order.
- Memory is the same for all, since parameters and the widest place of the graph decide it.
- Not here: NASNet-A large and batch sweeps unless asked for (`--models`, `--batches`: lowering takes minutes each), SM
  efficiency, which needs a GPU's counters, and ONNX Runtime on a GPU.
"""


def main() -> None:
    arguments = parser(__doc__ or "", models=False)
    arguments.add_argument(
        "--graphs", type=Path, metavar="DIR", help="keep lowered graphs there, and take them from there"
    )
    arguments.add_argument("--resume", action="store_true", help="leave out cases that stand in the file of --json")
    arguments.add_argument("--models", nargs="*", default=[], help="of these names alone")
    arguments.add_argument("--batches", nargs="*", type=int, default=list(BATCHES), help="of Inception-v3")
    given = arguments.parse_args()
    from _opara_models import MODELS

    cases: list[dict[str, Any]] = []
    if given.resume and given.json and given.json.exists():
        cases = json.loads(given.json.read_text())
    wanted = [(name, 1) for name in given.models or list(MODELS)[: 1 if given.quick else None]]
    if not given.quick:
        wanted += [("Inception-v3", batch) for batch in given.batches if batch > 1]
    for name, batch in wanted:
        if any((case["model"], case["batch"]) == (name, batch) for case in cases):
            continue
        cases.append(case_of(name, batch, given.graphs))
        print(json.dumps(cases[-1]), flush=True)
        if given.json:
            given.json.write_text(json.dumps(cases, indent=1) + "\n")
    text = page(cases)
    print(text)
    if given.markdown:
        given.markdown.write_text(text)


if __name__ == "__main__":
    main()
