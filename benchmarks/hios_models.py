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
from typing import NamedTuple

from _checked import checked
from _common import parser
from _gpu import gpu_graph
from _result_page import Page, Row
from msgspec.structs import replace

from tvm_sched.cost_model import costs
from tvm_sched.schedulers import solve
from tvm_sched_bench.testing import branched
from tvm_sched_runtime.errors import TooLargeError
from tvm_sched_runtime.problem import OpGraph, Problem, Topology, Workload, load_topology
from tvm_sched_runtime.schedule import Schedule

SIZES = {"inception_v3": (299, 512, 1024, 2048), "nasnet_large": (331, 512, 1024, 2048)}
MODELS = ("contention", "occupancy")
"""Cost models: what the page says is of the first, the second stands beside it."""
LAUNCHES = "launches, % of sequential execution"
PROFILED = "minutes to schedule with profiling"
BY_BLOCKS, OWN_BLOCKS, GIVEN_BLOCKS = "IOS by the size of its blocks", "the network's blocks", "the authors' blocks"
TOLERANCE = 1.0
"""Per cent by which figures may be apart that do not contradict each other."""


class Less(NamedTuple):
    """By how many per cent a method takes less than another, over the sizes, in the text of Section VI."""

    network: str
    method: str
    other: str
    low: float | None
    high: float

    def said(self) -> str:
        """As the paper has it."""
        return f"up to {self.high:g}" if self.low is None else f"{self.low:g} to {self.high:g}"


PAPER = (
    Less("inception_v3", "hios-lp", "sequential", 6.1, 19.7),
    Less("inception_v3", "hios-lp", "ios", 3.3, 16.5),
    Less("inception_v3", "hios-lp", "hios-mr", 10.9, 16.8),
    Less("nasnet_large", "hios-lp", "sequential", None, 14.5),
    Less("nasnet_large", "hios-lp", "ios", -5.4, 11.1),
    Less("nasnet_large", "hios-lp", "hios-mr", 8.8, 16.2),
)
GAINS = {
    ("inception_v3", 0): (4.5, 81.6),
    ("inception_v3", -1): (9.9, 98.2),
    ("nasnet_large", 0): (None, 100.0),
    ("nasnet_large", -1): (3.8, 100.0),
}
"""Figure 13, smallest and largest images: how many times IOS's gain over sequential execution HIOS-LP's is, and what part of
it its mapping alone gains, in per cent."""
INCEPTION_MINUTES, NASNET_LESS = 20.0, 55.8
"""Figure 14: HIOS-LP takes less than so many minutes for Inception-v3, up to so many per cent less than IOS for NASNet."""
Figures = dict[tuple[str, str], float]


def case_of(name: str, size: int, model: str) -> str:
    """Return the name of a network and image size in rows."""
    return f"{name}, {size} pixels" + ("" if model == MODELS[0] else f", {model}")


def page(rows: list[Row], runs: int, states: int, path: Path | None) -> Page:
    """Make the page of results."""
    notes = INTRODUCTION.format(runs=runs, states=states)
    made = Page("Inception-v3 and NASNet-A large on two A40", path, predicted=True, notes=notes)
    for model in MODELS:
        own = [row for row in rows if (row.case.split(", ")[2:] or [MODELS[0]]) == [model]]
        if model != MODELS[0]:  # the others differ little
            own = [row for row in own if row.unit in ("ms", "% below sequential")]
        made.text(f"## By `{model}`")
        made.rows(own, level=3)
    beside_paper(made, rows)
    made.text(*NOTES.splitlines())
    return made


def beside_paper(made: Page, rows: list[Row]) -> None:
    """Add what the paper prints of its Figures 12 to 14 beside ours, and what contradicts."""
    ms = {(row.case, row.method): row.figure for row in rows if row.unit == "ms"}
    made.text("## Beside Figures 12 and 13")
    made.text("Per cent less than the other, by size:")
    _less_table(made, ms)
    made.text(
        "What HIOS-LP gains over sequential execution: how many times what IOS gains, and the part of its mapping",
        "(`hios-lp-inter`) in it:",
    )
    _gains_table(made, ms)
    made.text("## Beside Figure 14")
    made.text(*profiling(rows))
    made.text("## What contradicts the paper")
    made.text(*([f"- {text}" for text in contradictions(ms, rows)] or ["Nothing, by more than a per cent."]))


def less(ms: Figures, case: str, one: str, other: str) -> float:
    """Return the per cent by which a method is faster than another."""
    return 100 * (1 - ms[case, one] / ms[case, other])


def by_size(ms: Figures, said: Less, model: str) -> list[float]:
    """Return the figure of each size that was planned."""
    cases = [case_of(said.network, size, model) for size in SIZES[said.network]]
    return [less(ms, case, said.method, said.other) for case in cases if (case, said.method) in ms]


def _less_table(made: Page, ms: Figures) -> None:
    rows = []
    for said in PAPER:
        cells = (", ".join(f"{value:.1f}" for value in by_size(ms, said, model)) or "–" for model in MODELS)
        rows.append([said.network, said.method, said.other, said.said(), *cells])
    head = ["network", "latency of", "less than", "paper", *(f"here, `{model}`" for model in MODELS)]
    made.table(head, rows, left=len(head))


class Gain(NamedTuple):
    """What HIOS-LP gains over sequential execution: times IOS's gain, and its mapping's part in per cent."""

    times: float | None
    part: float | None


def gain_of(ms: Figures, case: str) -> Gain | None:
    """Return the gain of a case; None if it was not planned. A figure is None if its divisor is near 0."""
    if (case, "ios") not in ms:
        return None
    gain = {method: less(ms, case, method, "sequential") for method in ("ios", "hios-lp", "hios-lp-inter")}
    times = gain["hios-lp"] / gain["ios"] if gain["ios"] > 0.05 else None
    return Gain(times, 100 * gain["hios-lp-inter"] / gain["hios-lp"] if gain["hios-lp"] > 0.05 else None)


def _gains_table(made: Page, ms: Figures) -> None:
    rows = []
    for (name, which), (times, part) in GAINS.items():
        size = SIZES[name][which]
        row = [name, f"{size} pixels", f"{times:g}" if times else "IOS is 5.4 % faster", f"{part:g} %"]
        for model in MODELS:
            found = gain_of(ms, case_of(name, size, model))
            if found is None:
                row += ["–", "–"]
                continue
            row.append("IOS gains nothing" if found.times is None else f"{found.times:.1f}")
            row.append("HIOS-LP gains nothing" if found.part is None else f"{found.part:.1f} %")
        rows.append(row)
    head = ["network", "images", "times IOS's, paper", "mapping's part, paper"]
    for model in MODELS:
        head += [f"times IOS's, `{model}`", f"mapping's part, `{model}`"]
    made.table(head, rows, left=len(head))


class Minutes(NamedTuple):
    """Scheduling with profiling, over the sizes: HIOS-LP's most, by how many per cent it is below IOS, growth of each."""

    network: str
    most: float
    lower: list[float]
    grown: dict[str, float]


def minutes_of(rows: list[Row]) -> Iterator[Minutes]:
    """Yield the minutes of each network that was planned."""
    minutes = {(row.case, row.method): row.figure for row in rows if row.unit == PROFILED}
    for name, sizes in SIZES.items():
        cases = [case for size in sizes if ((case := case_of(name, size, MODELS[0])), "ios") in minutes]
        if cases:
            lower = [100 * (1 - minutes[case, "hios-lp"] / minutes[case, "ios"]) for case in cases]
            grown = {m: minutes[cases[-1], m] / minutes[cases[0], m] for m in ("ios", "hios-lp", "hios-mr")}
            yield Minutes(name, max(minutes[case, "hios-lp"] for case in cases), lower, grown)


def profiling(rows: list[Row]) -> Iterator[str]:
    """Compare the minutes to schedule, in words."""
    for name, most, lower, grown in minutes_of(rows):
        said = (
            f"less than {INCEPTION_MINUTES:g} minutes" if name == "inception_v3" else f"up to {NASNET_LESS} % below IOS"
        )
        yield (
            f"- {name}: HIOS-LP takes {most:.2g} minutes at most, {min(lower):.1f} to {max(lower):.1f} % below IOS (paper: "
            f"{said}). From the smallest to the largest images IOS's minutes grow {grown['ios']:.3g} times, HIOS-LP's "
            f"{grown['hios-lp']:.3g} and HIOS-MR's {grown['hios-mr']:.3g} (paper: HIOS's much slower than IOS's)."
        )


def contradictions(ms: Figures, rows: list[Row]) -> Iterator[str]:
    """Yield the contradictions in words, by both cost models."""
    for said in PAPER:
        found = {model: by_size(ms, said, model) for model in MODELS}
        here = found[MODELS[0]]
        if not here:
            yield f"{said.network} was not planned when this page was made."
            continue
        bottom = said.low if said.low is not None else -TOLERANCE
        outside = [value for value in here if value < bottom - TOLERANCE or value > said.high + TOLERANCE]
        if outside:
            beside = f"{min(found[MODELS[1]]):.1f} to {max(found[MODELS[1]]):.1f} % by `{MODELS[1]}`"
            yield (
                f"{said.network}: {said.method} takes {min(here):.1f} to {max(here):.1f} % less than {said.other} "
                f"({beside}), in the paper {said.said()} %: {len(outside)} of {len(here)} sizes are outside."
            )
    for (name, which), (times, part) in GAINS.items():
        size = SIZES[name][which]
        gain = gain_of(ms, case_of(name, size, MODELS[0]))
        if gain is None:
            continue
        if times and (gain.times is None or not 0.5 < gain.times / times < 2):
            have = "IOS gains nothing" if gain.times is None else f"HIOS-LP gains {gain.times:.1f} times what IOS does"
            yield f"{name}, {size} pixels: {have}, in the paper HIOS-LP gains {times:g} times what IOS does."
        if gain.part is not None and abs(gain.part - part) > 10:
            yield f"{name}, {size} pixels: the mapping has {gain.part:.0f} % of what HIOS-LP gains, in the paper {part:g} %."
    for name, _, lower, grown in minutes_of(rows):
        if name == "nasnet_large" and max(lower) > NASNET_LESS + TOLERANCE:
            yield (
                f"{name}: HIOS-LP's scheduling takes {max(lower):.1f} % less than IOS's, in the paper up to "
                f"{NASNET_LESS} %: "
                "IOS asks for many more measurements, and here each costs the time of its runs alone."
            )
        if grown["hios-lp"] > grown["ios"]:
            yield (
                f"{name}: HIOS-LP's minutes grow more with the images than IOS's, {grown['hios-lp']:.1f} times and "
                f"{grown['ios']:.1f} times; in the paper they grow much slower. What does not grow with them, such "
                f"as starting "
                "an engine, is not counted here, and small kernels that IOS measures at once are mostly launches."
            )
    yield from why(ms, rows)


def why(ms: Figures, rows: list[Row]) -> Iterator[str]:
    """Explain the differences by the share of launches."""
    launches = {row.case: row.figure for row in rows if row.unit == LAUNCHES}
    for name, sizes in SIZES.items():
        known = [size for size in sizes if case_of(name, size, MODELS[0]) in launches]
        if len(known) < 2:
            continue
        share, gain = [], []
        for size in (known[0], known[-1]):
            case = case_of(name, size, MODELS[0])
            share.append(f"{launches[case]:.0f} %")
            gain.append(f"{less(ms, case, 'ios', 'sequential'):.1f} %")
        yield (
            f"Why, of {name}: launches are {share[0]} of sequential execution at {known[0]} pixels and {share[1]} at "
            f"{known[-1]}; what they take overlaps with kernels of other streams, and IOS gains {gain[0]} and {gain[1]}."
        )


INTRODUCTION = """\
`contention` has what concurrent kernels lose as fitted to pairs on an H100 ([how](concurrent_kernels.md)); no A40
has shown it. By `occupancy` they lose nothing as long as the GPU has room. "launches" is 5 us of each operator, as in
the preset. `ios` has the limits of its paper, 8 groups of up to 3 operators, and the network's own blocks where these
have up to {states:,} states and 64 operators; else the blocks that stand in brackets. NASNet's own is nearly the
whole network, since each cell reads the two before it. Minutes to schedule count what is measured, as in Figure 14:
IOS each stage whose time it asks for ({runs} runs of each, as the paper runs what it measures), HIOS operators alone,
pairs of neighbours and copies. Seconds are by the clock: what else the machine did counts."""
NOTES = """\
- The paper's figures were measured, with cuDNN's kernels and MPI; these are predictions of a model in which kernels
  reach the data sheet's speed. So kernels are short here, and copies and launches weigh more; what convolutions take
  on a GPU beside what the data sheet says is on [another page](opara.md). What one would try next is to measure the
  kernels of both networks on two A40 (`tvm-sched profile`), and to plan with the profile; none were at hand.
- The paper's graphs have 119 and 374 operators; here a normalisation, an activation or a sum is part of a kernel
  where the lowering fuses it, and is an operator where not. Which NASNet-A it had is not said; its 331 pixels are the
  large one's.
- The paper's minutes are of a process that starts its engine for each measurement, which is not counted here.
"""


METHODS = ("sequential", "ios", "hios-lp", "hios-mr", "hios-lp-inter", "hios-mr-inter", "heft", "anytime")
STATES = 200_000
"""Most states of a block of IOS."""
BLOCKS = (0, 16, 12, 10)
"""Sizes of blocks that IOS is tried with, until one has few enough states; 0: the network's own, as in the paper. More than
16 operators take minutes for NASNet."""
RUNS = 36
"""How often the paper runs what it measures."""


def with_parameters_in_place() -> Topology:
    """Return the preset of two A40 without buses: the parameters are resident."""
    preset = load_topology("a40x2")
    return replace(preset, devices=tuple(replace(device, bus="") for device in preset.devices), buses=())


def schedule_of(
    problem: Problem, method: str, anytime: dict[str, float], workload: Workload | None = None
) -> tuple[Schedule, str]:
    """Return a method's schedule and the limits of IOS in words; ``anytime`` are that method's options."""
    if method != "ios":
        return solve(problem, method=method, options=anytime if method == "anytime" else {}), ""
    for block in BLOCKS:
        if (found := ios_with(problem, block, workload)) is not None:
            own = OWN_BLOCKS if workload is None else GIVEN_BLOCKS
            return found, f"blocks of {block}" if block else own
    raise SystemExit(f"IOS is too large even with blocks of {BLOCKS[-1]}")


def ios_with(problem: Problem, block: int, workload: Workload | None = None) -> Schedule | None:
    """Run IOS with the paper's groups and a block size; None if a block has too many states."""
    options = {"groups": 8, "group_size": 3, "block": block, "states": STATES}
    with suppress(TooLargeError):
        return solve(problem, workload, method="ios", options=options)
    return None


def block_rows(graph: OpGraph, case: str) -> Iterator[Row]:
    """Yield IOS's latency by block size, if the network's own blocks are too large."""
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


def rows_of(
    problem: Problem, case: str, kernels: int, anytime: dict[str, float], workload: Workload | None = None
) -> Iterator[Row]:
    """Yield all figures of a network at one image size, by one cost model."""
    graph = problem.graph
    alone = problem.costs.operator_ns[:, 0].astype(float).sum() / 1e9
    launches = kernels * problem.topology.devices[0].launch_overhead
    yield Row(case, "graph", len(graph.operators), "operators")
    yield Row(case, "graph", sum(map(len, graph.index.predecessors)), "dependences")
    yield Row(case, "graph", 100 * launches / alone, LAUNCHES)
    sequential = 0.0
    for method in METHODS:
        begin = time.perf_counter()
        schedule, limits = schedule_of(problem, method, anytime, workload)
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
    """Return the seconds of a method with profiling: its own time and `RUNS` runs of each measurement.

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
    arguments = parser(__doc__)
    arguments.add_argument("--seconds", type=float, default=5.0, help="time limit of anytime for a network")
    arguments.add_argument(
        "--graphs", type=Path, metavar="DIR", help="keep lowered graphs there, and take them from there"
    )
    arguments.add_argument("--resume", action="store_true", help="leave out cases that stand in the file of --json")
    options = arguments.parse_args()
    rows: list[Row] = []
    if options.resume and options.json and options.json.exists():
        rows = [Row(**row) for row in json.loads(options.json.read_text())]
    done = {row.case for row in rows}
    for name, sizes in SIZES.items():
        for size in sizes[: 1 if options.quick else None]:
            if all(case_of(name, size, model) in done for model in MODELS):
                continue
            print(f"{name}, {size} pixels", flush=True)
            kept = options.graphs / f"{name}-{size}.json" if options.graphs else None
            make = getattr(branched, name)
            graph = gpu_graph(
                lambda make=make, size=size: branched.exported(make(), size), load_topology("a40x2"), kept
            )
            topology = with_parameters_in_place()
            for model in MODELS:
                problem = Problem(graph, topology, costs(graph, topology, model))
                limit = {"time_limit": options.seconds}
                rows += rows_of(problem, case_of(name, size, model), len(graph.operators), limit)
            if size == sizes[0]:
                rows += block_rows(graph, case_of(name, size, MODELS[0]))
            if options.json:
                options.json.write_text(json.dumps([asdict(row) for row in rows], indent=1) + "\n")
    page(rows, RUNS, STATES, options.markdown).write()


if __name__ == "__main__":
    main()
