"""Inception-v3 and NASNet-A large at several image sizes, planned on two A40 with NVLink, beside HIOS's Figures 12 to 14.

The paper measured on such a machine; here latencies are predicted, with the parameters on both GPUs from the start, as
there: by the cost model `contention`, fitted to pairs of kernels on an H100, and by `occupancy`, where kernels that fit
beside each other lose nothing. Operators are what a GPU runs: kernels fused and lowered for CUDA, and calls of NVIDIA's
libraries, whose demands are those of their launches.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path

from _checked import checked
from _common import parser
from _gpu_graphs import gpu_graph
from _hios_models_page import BY_BLOCKS, LAUNCHES, MODELS, OWN_BLOCKS, PROFILED, SIZES, case_of, page
from _result_page import Row
from msgspec.structs import replace

from tvm_sched.cost_model import costs
from tvm_sched.errors import TooLargeError
from tvm_sched.problem import OpGraph, Problem, Topology, load_topology
from tvm_sched.schedule import Schedule
from tvm_sched.schedulers import solve
from tvm_sched.testing import branched

METHODS = ("sequential", "ios", "hios-lp", "hios-mr", "hios-lp-inter", "hios-mr-inter", "heft", "anytime")
STATES = 200_000
"""Most states of a block of IOS."""
BLOCKS = (0, 16, 12, 10)
"""Sizes of blocks that IOS is tried with, until one has few enough states; 0: the network's own, as in the paper. More than
16 operators take minutes for NASNet."""
RUNS = 36
"""How often the paper runs what it measures."""


def with_parameters_in_place() -> Topology:
    """Two A40 as in the preset, that have their parameters already: without the buses that would bring them."""
    preset = load_topology("a40x2")
    return replace(preset, devices=tuple(replace(device, bus="") for device in preset.devices), buses=())


def schedule_of(problem: Problem, method: str, seconds: float) -> tuple[Schedule, str]:
    """The schedule of a method, and what its limits were."""
    if method != "ios":
        return solve(problem, method=method, options={"time_limit": seconds} if method == "anytime" else {}), ""
    for block in BLOCKS:
        if (found := ios_with(problem, block)) is not None:
            return found, f"blocks of {block}" if block else OWN_BLOCKS
    raise SystemExit(f"IOS is too large even with blocks of {BLOCKS[-1]}")


def ios_with(problem: Problem, block: int) -> Schedule | None:
    """IOS with the paper's groups and blocks of a size; None where one has too many states."""
    with suppress(TooLargeError):
        return solve(problem, method="ios", options={"groups": 8, "group_size": 3, "block": block, "states": STATES})
    return None


def block_rows(graph: OpGraph, case: str) -> Iterator[Row]:
    """What larger blocks of IOS are worth, where the network's own are too large."""
    topology = with_parameters_in_place()
    problem = Problem(graph, topology, costs(graph, topology, MODELS[0]))
    for block in BLOCKS:
        if (found := ios_with(problem, block)) is None:
            continue
        if not block:
            return
        assert found.certificate is not None
        yield Row(case, f"blocks of {block}", found.certificate.latency * 1e3, f"{BY_BLOCKS}, ms")
        yield Row(case, f"blocks of {block}", found.seconds, f"{BY_BLOCKS}, s to schedule")


def rows_of(graph: OpGraph, case: str, model: str, seconds: float) -> Iterator[Row]:
    """All figures of a network of one size, by one cost model."""
    topology = with_parameters_in_place()
    problem = Problem(graph, topology, costs(graph, topology, model))
    alone = problem.costs.operator_ns[:, 0].astype(float).sum() / 1e9
    launches = len(graph.operators) * topology.devices[0].launch_overhead
    yield Row(case, "graph", len(graph.operators), "operators")
    yield Row(case, "graph", sum(map(len, graph.index.predecessors)), "dependences")
    yield Row(case, "graph", 100 * launches / alone, LAUNCHES)
    sequential = 0.0
    for method in METHODS:
        begin = time.perf_counter()
        schedule, limits = schedule_of(problem, method, seconds)
        assert checked(problem, schedule).certificate is not None
        latency, bound = schedule.certificate.latency * 1e3, schedule.certificate.lower_bound * 1e3
        sequential = sequential or latency
        yield Row(case, method, latency, "ms", note=limits)
        yield Row(case, method, 100 * (1 - latency / sequential), "% below sequential")
        yield Row(case, method, 100 * (latency / bound - 1), "% above the bound")
        yield Row(case, method, schedule.seconds, "s to schedule")
        if method in ("ios", "hios-lp", "hios-mr"):
            yield Row(case, method, profile_seconds(problem, schedule, alone) / 60, PROFILED)
        print(f"  {method}: {latency:.4g} ms, {time.perf_counter() - begin:.1f} s {limits}", flush=True)


def profile_seconds(problem: Problem, schedule: Schedule, alone: float) -> float:
    """Seconds that a method takes if it measures what it asks for: its own time and `RUNS` runs of each.

    IOS asks for the stages that its notes count, each once. HIOS asks for operators alone, for pairs of neighbours on a
    device, of which there are fewer than operators and none of which takes longer than its two one after another, and for
    each tensor's copy to the other device.
    """
    if found := schedule.notes.get("profiled"):
        return schedule.seconds + RUNS * found["time_ns"] / 1e9
    index = problem.graph.index
    route = problem.route(0, 1)
    made = [index.size[t] for row in index.outputs for t in row]
    copies = sum(route.nanoseconds(size) for size in made) / 1e9
    return schedule.seconds + RUNS * (3 * alone + copies)


def main() -> None:
    arguments = parser(__doc__ or "", models=False)
    arguments.add_argument("--seconds", type=float, default=5.0, help="time limit of anytime for a network")
    arguments.add_argument(
        "--graphs", type=Path, metavar="DIR", help="keep lowered graphs there, and take them from there"
    )
    arguments.add_argument("--resume", action="store_true", help="leave out cases that stand in the file of --json")
    given = arguments.parse_args()
    rows: list[Row] = []
    if given.resume and given.json and given.json.exists():
        rows = [Row(**row) for row in json.loads(given.json.read_text())]
    done = {row.case for row in rows}
    for name, sizes in SIZES.items():
        for size in sizes[: 1 if given.quick else None]:
            if all(case_of(name, size, model) in done for model in MODELS):
                continue
            print(f"{name}, {size} pixels", flush=True)
            kept = given.graphs / f"{name}-{size}.json" if given.graphs else None
            make = getattr(branched, name)
            graph = gpu_graph(
                lambda make=make, size=size: branched.exported(make(), size), load_topology("a40x2"), kept
            )
            for model in MODELS:
                rows += rows_of(graph, case_of(name, size, model), model, given.seconds)
            if size == sizes[0]:
                rows += block_rows(graph, case_of(name, size, MODELS[0]))
            if given.json:
                given.json.write_text(json.dumps([asdict(row) for row in rows], indent=1) + "\n")
    page(rows, RUNS, STATES, given.markdown).write()


if __name__ == "__main__":
    main()
