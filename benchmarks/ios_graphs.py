"""The operator graphs that IOS and HIOS schedule, beside what their authors published.

On one V100: IOS by its authors' blocks, and the stages that they published for Inception-v3, beside the latencies of their
README. On two A40: the methods of `hios_models.py` on HIOS's own graphs, 119 and 374 operators, beside its Figures 12 to 14.
The graphs are IOS's, exported by its program; ``--data`` names the folder that has them (``graphs``, ``schedules``).
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from statistics import fmean
from typing import NamedTuple

import msgspec
from _common import parser
from _result_page import Page, Row
from hios_models import (
    GIVEN_BLOCKS,
    MODELS,
    SIZES,
    STATES,
    beside_paper,
    case_of,
    ios_with,
    rows_of,
    schedule_of,
    with_parameters_in_place,
)

from tvm_sched.schedulers import solve
from tvm_sched_bench.testing.ios_networks import Network, load_network, problem_of
from tvm_sched_runtime.problem import Problem, Topology, Workload, load_topology
from tvm_sched_runtime.schedule import Placement, Schedule, simulate

DATA = Path(__file__).resolve().parents[2] / "shared" / "data" / "ios"
V100 = ("V100, occupancy", "V100, contention")
MERGED = ", merged"
SCHEDULES = {
    "published stages": "inception_v3-v100-batch1",
    "published stages for K80": "inception_v3-k80-batch1",
    "published stages for batch 16": "inception_v3-v100-batch16",
}


class Published(NamedTuple):
    """Milliseconds on a V100 with batch 1, from the README of IOS's program."""

    sequential: float
    greedy: float
    ios: float
    merging: float


PUBLISHED = {
    "inception_v3": Published(6.51, 4.62, 4.11, 4.03),
    "randwire_large": Published(8.49, 6.27, 6.02, 6.02),
    "nasnet_large": Published(22.95, 16.78, 16.04, 16.04),
    "squeezenet": Published(0.86, 0.98, 0.82, 0.73),
}
TOLERANCE = 5.0
"""Per cent of the sequential latency by which gains may be apart that do not contradict each other."""
INTRODUCTION = """\
The graphs are those of IOS's program: an operator is a convolution with its activation, a pooling, a sum or
concatenation, or ReLU with a separable convolution, in float32 with batch 1. HIOS prints 119 operators and 153
dependences for Inception-v3, 374 and 576 for NASNet; the file of NASNet has 374 and 572. Each layer of an operator is a
kernel; kernels take what the data sheet says (the roofline), with 5 us for each launch, and launches of convolutions are
those that cuDNN's have on an H100. `occupancy` and `contention` say what operators take together, as on
[the page of our own lowered graphs](hios_models.md). `ios` has the limits of its paper, 8 groups of up to 3 operators,
and its authors' blocks: those of the file, and NASNet's cells, which its program names. Where a block has more than
{states:,} states it is cut, and the size stands in brackets. `anytime` had {work:g} s of an idle core's work."""
MERGING = """\
IOS may also merge convolutions that read the same tensor into one, with the largest of their windows. Our `ios` does not
merge, so *IOS* here is the authors' IOS-Parallel. What merging gains is seen on the authors' own merged graph of
Inception-v3, below: {merged} operators instead of {all_}, which `ios` and the published stages then have alike."""


def one_v100() -> Topology:
    """Return one GPU of the preset, with the parameters in place."""
    device = msgspec.structs.replace(load_topology("v100-server").devices[0], bus="")
    return Topology("one V100", (device,))


def greedy(problem: Problem) -> Schedule:
    """Return IOS's greedy schedule: again and again all operators that can run are a stage."""
    index, device = problem.graph.index, problem.topology.devices[0].name
    level: list[int] = [0] * len(index.inputs)
    for o in index.order:
        level[o] = max((level[p] + 1 for p in index.predecessors[o]), default=0)
    order = sorted(index.order, key=lambda o: level[o])
    names = [operator.name for operator in problem.graph.operators]
    placements = []
    for number in range(max(level) + 1):
        members = [o for o in order if level[o] == number]
        stage = number + 1 if len(members) > 1 else 0
        placements += [Placement(names[o], device, stream, stage=stage) for stream, o in enumerate(members)]
    return Schedule(problem.digest, tuple(placements), scheduler="greedy")


def stages(schedule: Schedule) -> int:
    """Return the number of stages; an operator by itself is one."""
    alone = sum(placement.stage == 0 for placement in schedule.placements)
    return alone + len({placement.stage for placement in schedule.placements} - {0})


def workload_of(network: Network) -> Workload:
    """Return the workload with the authors' blocks."""
    return Workload(submodels=network.cells())


def v100_rows(network: Network, name: str) -> Iterator[Row]:
    """Yield the latencies of a network on one V100, without merging."""
    for case, model in zip(V100, reversed(MODELS), strict=True):
        problem = problem_of(network, one_v100(), model)
        found = {"sequential": solve(problem, method="sequential"), "greedy": greedy(problem)}
        found["ios"], limits = schedule_of(problem, "ios", {}, workload_of(network))
        for method, schedule in found.items():
            note = limits if method == "ios" and limits != GIVEN_BLOCKS else ""
            yield Row(f"{name}, {case}", method, simulate(problem, schedule).latency_ns / 1e6, "ms", note=note)
            yield Row(f"{name}, {case}", method, stages(schedule), "stages")


def merged_rows(folder: Path) -> Iterator[Row]:
    """Yield the latencies of the published schedules of Inception-v3, and of our methods on their merged graphs."""
    for label, file in SCHEDULES.items():
        network = load_network(folder / f"{file}.json")
        for case, model in zip(V100, reversed(MODELS), strict=True):
            problem = problem_of(network, one_v100(), model)
            found = {
                "sequential": solve(problem, method="sequential"),
                "published": network.schedule(problem),
                "ios": ios_with(problem, 0, workload_of(network)),
            }
            for method, schedule in found.items():
                assert schedule is not None
                milliseconds = simulate(problem, schedule).latency_ns / 1e6
                yield Row(f"{label}, {case}{MERGED}", method, milliseconds, "ms")
                yield Row(f"{label}, {case}{MERGED}", method, stages(schedule), "stages")
            yield Row(f"{label}, {case}{MERGED}", "graph", len(problem.graph.operators), "operators")


def _v100_page(made: Page, rows: list[Row]) -> None:
    ms = {(row.case, row.method): row.figure for row in rows if row.unit == "ms"}
    notes = {(row.case, row.method): row.note for row in rows if row.unit == "ms"}
    made.text("## One V100, beside IOS's README")
    made.text("Sequential execution in ms, and by how many per cent of it a schedule is shorter:")
    head = ["network", "sequential, published", "here", "greedy, published", *V100, "IOS, published", *V100]
    lines = []
    contradict = []
    for name, told in PUBLISHED.items():
        cases = [f"{name}, {case}" for case in V100]
        if (cases[0], "sequential") not in ms:
            continue
        line = [name, f"{told.sequential:g}", f"{ms[cases[0], 'sequential']:.3g}"]
        for method, published in (("greedy", told.greedy), ("ios", told.ios)):
            gain = 100 * (1 - published / told.sequential)
            ours = [100 * (1 - ms[case, method] / ms[case, "sequential"]) for case in cases]
            line.append(f"{gain:.1f} %")
            line += [
                f"{value:.1f} %" + (f" ({note})" if (note := notes[case, method]) else "")
                for value, case in zip(ours, cases, strict=True)
            ]
            if any(abs(value - gain) > TOLERANCE for value in ours):
                label = "greedy" if method == "greedy" else "IOS"
                contradict.append(
                    f"- {name}: {label} is {gain:.1f} % below sequential execution as published, {ours[0]:.1f} % here by "
                    f"`occupancy` and {ours[1]:.1f} % by `contention`."
                )
        lines.append(line)
    made.table(head, lines, left=len(head))
    made.text(*contradict)
    apart = {
        case: fmean(abs(1 - told.ios / told.sequential - 1 + ms[key, "ios"] / ms[key, "sequential"]) * 100
                    for name, told in PUBLISHED.items() if (key := f"{name}, {case}"))
        for case in V100
    }  # fmt: skip
    ratio = [told.sequential / ms[f"{name}, {V100[0]}", "sequential"] for name, told in PUBLISHED.items()]
    made.text(
        f"Measured sequential execution takes {min(ratio):.1f} to {max(ratio):.1f} times what the data sheet says: cuDNN's "
        "float32 kernels of batch 1 are far from it, so only shares of sequential execution can be compared. Gains of IOS "
        f"are apart from the published by {apart[V100[0]]:.0f} points in the mean by `occupancy`, by {apart[V100[1]]:.0f} "
        "by `contention`, which takes more than is lost on a V100."
    )


def _merged_page(made: Page, rows: list[Row]) -> None:
    ms = {(row.case, row.method): row.figure for row in rows if row.unit == "ms"}
    count = {(row.case, row.method): int(row.figure) for row in rows if row.unit in ("stages", "operators")}
    first = f"{next(iter(SCHEDULES))}, {V100[0]}{MERGED}"
    told = PUBLISHED["inception_v3"]
    made.text("## Merged convolutions and published stages")
    made.text(*MERGING.format(merged=count[first, "graph"], all_=119).splitlines())
    whole = {case: ms[f"inception_v3, {case}", "sequential"] for case in V100}
    ours = {case: ms[f"inception_v3, {case}", "ios"] for case in V100}
    lines = []
    for label in SCHEDULES:
        for case in V100:
            key = f"{label}, {case}{MERGED}"
            cells = [f"{100 * (1 - ms[key, m] / whole[case]):.1f} %" for m in ("sequential", "published", "ios")]
            sizes = [str(count[key, m]) for m in ("graph", "published", "ios")]
            lines.append([label, case, *cells, f"{100 * (1 - ours[case] / whole[case]):.1f} %", *sizes])
    head = [
        "schedule, on its merged graph", "cost model", "sequential", "published stages", "IOS here", "IOS here, not merged",
        "operators", "stages, published", "stages, IOS here",
    ]  # fmt: skip
    made.text("Per cent below sequential execution of the graph that is not merged:")
    made.table(head, lines, left=len(head))
    gain, both = (100 * (1 - value / told.sequential) for value in (told.ios, told.merging))
    made.text(
        f"As measured, IOS without merging is {gain:.1f} % below sequential execution, with merging {both:.1f} %. The "
        "stages for the K80 and for batch 16 are priced here for a V100 and batch 1, for which they were not chosen."
    )
    for case in V100:
        keys = [f"{label}, {case}{MERGED}" for label in SCHEDULES]
        best = min(keys, key=lambda key: ms[key, "published"])
        if best != keys[0]:
            made.text(
                f"By {case.split(', ')[1]} the stages published for this case are not the best of the three: "
                f"{best.split(',')[0]} take {ms[best, 'published']:.3g} ms, they take {ms[keys[0], 'published']:.3g}."
            )
        if ms[keys[0], "published"] > ms[keys[0], "sequential"]:
            made.text(
                f"By {case.split(', ')[1]} the published stages are slower than sequential execution, in contradiction to "
                "what was measured: its losses were fitted to pairs of kernels on an H100."
            )


def where_behind(rows: list[Row]) -> Iterator[str]:
    """Yield the cases in which another method is faster than `anytime`."""
    ms = {(row.case, row.method): row.figure for row in rows if row.unit == "ms"}
    for case in dict.fromkeys(case for case, _ in ms):
        best = min((method for named, method in ms if named == case), key=lambda method: ms[case, method])
        if ms[case, best] < ms[case, "anytime"]:
            yield f"{case} ({best} {ms[case, best]:.4g} ms, `anytime` {ms[case, 'anytime']:.4g})"


def page(rows: list[Row], work: float, path: Path | None) -> Page:
    """Make the page of results."""
    notes = INTRODUCTION.format(states=STATES, work=work)
    made = Page("The operator graphs of IOS and HIOS", path, predicted=True, notes=notes)
    one = [row for row in rows if "V100" in row.case]
    _v100_page(made, [row for row in one if not row.case.endswith(MERGED)])
    _merged_page(made, one)
    made.text("## Two A40")
    two = [row for row in rows if "V100" not in row.case]
    made.rows([row for row in two if row.unit in ("ms", "% below sequential")], level=3)
    behind = list(where_behind(two))
    made.text(
        f"`anytime`, which is ours, should have the least latency; it has not: {', '.join(behind)}." if behind else ""
    )
    beside_paper(made, two)
    return made


def main() -> None:
    arguments = parser(__doc__)
    arguments.add_argument("--data", type=Path, default=DATA, metavar="DIR", help="graphs and schedules of IOS")
    arguments.add_argument("--only-page", type=Path, metavar="FILE", help="compute nothing: the page of these rows")
    arguments.add_argument("--work", type=float, default=2.0, help="seconds of an idle core's work for anytime")
    options = arguments.parse_args()
    if options.only_page:
        rows = [Row(**row) for row in json.loads(options.only_page.read_text())]
        page(rows, options.work, options.markdown).write()
        return
    if not (options.data / "graphs").is_dir():
        print(f"IOS's graphs are not here ({options.data.name}); name their folder with --data.")
        return
    rows = []
    networks = {name: load_network(options.data / "graphs" / f"{name}.json") for name in PUBLISHED}
    for name, network in networks.items():
        print(f"{name}, one V100", flush=True)
        rows += v100_rows(network, name)
    rows += merged_rows(options.data / "schedules")
    for name, sizes in SIZES.items():
        network = networks[name]
        kernels = sum(len(operator.layers) for operator in network.operators)
        for size in sizes[: 1 if options.quick else None]:
            for model in MODELS:
                case = case_of(name, size, model)
                print(case, flush=True)
                problem = problem_of(network, with_parameters_in_place(), model, size)
                rows += rows_of(problem, case, kernels, {"work": options.work}, workload_of(network))
    if options.json:
        options.json.write_text(json.dumps([asdict(row) for row in rows], indent=1) + "\n")
    page(rows, options.work, options.markdown).write()


if __name__ == "__main__":
    main()
