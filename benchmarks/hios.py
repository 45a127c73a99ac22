"""HIOS's simulations: latency against devices, operators, dependencies, layers and communication, method by method.

Three parts: the instances of the authors' generator with what their own code reached (where they are at hand), the sweeps
of Section V with random graphs, and how long scheduling takes. "Theirs" is the same method's figure from the authors' code
(their mapping under the paper's constraint, the `feasible_*` figures of those files), "paper" is from the paper's text.
"""

from __future__ import annotations

import json
import math
import os
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

import msgspec
from _checked import checked
from _common import parser
from _result_page import Page, Row, bold, pyplot, report, save, tables

from tvm_sched.schedulers import solve
from tvm_sched.schedulers.scheduler_registry import get
from tvm_sched_bench.testing.hios_problems import LayeredGraph, load_layered, random_layered
from tvm_sched_runtime.errors import InputError
from tvm_sched_runtime.problem import Problem, Workload
from tvm_sched_runtime.schedule import simulate

SPREAD = "standard deviation"
PRINTED = "ms, printed by the authors' code"
DEFAULT_DEVICES = 4
NOTES = """\
## Where paper, code and we differ

- "theirs" are the `feasible_*` figures of the instances' files: the mapping of the authors' code, priced under the
  paper's own precedence constraint. What their code prints for itself differs: it evaluates operators in the order of
  their numbers, which is not topological in these graphs, and breaks precedence on many edges. Here Algorithms 1 and 3 are
  as the paper prints them (`tests/schedulers/test_hios.py`); Algorithm 2 is as its text has it: a group that brings no gain
  leaves no trace, where line 11 as printed keeps it.
- `python benchmarks/instances_hios.py` makes the authors' instances, whose folder `--instances` names, from a clone of
  github.com/SHUs-Lab/HIOS (commit 1e774de), whose code runs there. Without them the command makes all but the page's first
  part and the column "authors' code prints". The page is of files that were made so for 20 seeds at 4 devices and for
  some of them at 2, 8 and 12; seed 0 at 2 devices was made again by that script, alike to the last digit.
- Where theirs has no feasible schedule (stages that wait for each other in a circle, or an exception), ours are
  compared on the other instances only; "of theirs feasible" counts those.
- The transfer of an edge goes by the time of the operator that reads it in the authors' generator, of the one that
  makes it in the paper and in the sweeps here. The sweeps' graphs are made after the paper's description, with seeds
  of our own.
- `ios` has the limits of the authors' simulation: 2 groups of up to 3 operators, 10 operators looked at together.
- `anytime` and "anytime with stages" are ours; the first is for operators by themselves, as `*-inter`, `heft` and `peft`
  are. Bounds are of the problem with or without stages that a method was given; with stages they are weaker.
"""
TOLERANCE = 0.05
"""Figures that are further apart than this contradict each other."""


@dataclass(frozen=True)
class Claim:
    """A figure of Section V: a latency in ms, or the ratio of two, as ``"a / b"``."""

    sweep: str
    figure: str
    low: float
    high: float
    """Least and most that the paper prints."""
    at: float | None = None
    """The sweep's value; left out: over all its values."""

    def said(self) -> str:
        """Return the paper's text of the claim."""
        if self.low == self.high:
            return f"{self.high:g}"
        return f"up to {self.high:g}" if self.low == 0 else f"{self.low:g} to {self.high:g}"

    def where(self) -> str:
        """Return the point of the sweep."""
        return self.sweep if self.at is None else f"{self.sweep} {self.at:g}"

    def differs(self, least: float, most: float) -> str:
        """Return "larger" or "smaller" if our figures contradict the paper's, else nothing."""
        if most > self.high * (1 + TOLERANCE):
            return "larger"
        return "smaller" if least < self.low * (1 - TOLERANCE) else ""


def _ends(sweep: str, figure: str, first: tuple[float, float], last: tuple[float, float]) -> list[Claim]:
    """Return the claims at two values of a sweep, each given as (value, figure)."""
    return [Claim(sweep, figure, said, said, at) for at, said in (first, last)]


CLAIMS = [
    *_ends("devices", "sequential / hios-lp", (2, 1.4), (12, 3.8)),
    *_ends("devices", "ios / hios-lp", (2, 1.3), (12, 3.5)),
    Claim("devices", "sequential / hios-mr", 0, 1.5),
    Claim("devices", "ios / hios-mr", 0, 1.4),
    Claim("operators", "sequential / hios-lp", 2.01, 2.12),
    Claim("operators", "ios / hios-lp", 1.81, 1.91),
    Claim("operators", "hios-mr / hios-lp", 1.51, 1.54),
    Claim("operators", "hios-lp-inter / hios-lp", 1.05, 1.08),
    Claim("operators", "hios-mr-inter / hios-mr", 1.153, 1.171),  # printed as 13.3 to 14.6 % less
    *_ends("edges", "sequential / hios-lp", (400, 2.06), (600, 1.64)),
    *_ends("edges", "ios / hios-lp", (400, 1.86), (600, 1.48)),
    *_ends("edges", "sequential / hios-mr", (400, 1.35), (600, 1.19)),
    *_ends("edges", "ios / hios-mr", (400, 1.22), (600, 1.08)),
    Claim("layers", "sequential", 411, 411),
    Claim("layers", "ios", 371, 371),
    Claim("layers", "hios-mr", 305, 305),
    *_ends("layers", "hios-lp", (6, 174), (22, 233)),
    *_ends("communication", "sequential / hios-lp", (0.4, 2.23), (1.2, 1.78)),
    *_ends("communication", "ios / hios-lp", (0.4, 2.01), (1.2, 1.60)),
    *_ends("communication", "sequential / hios-mr", (0.4, 1.52), (1.2, 1.10)),
    *_ends("communication", "ios / hios-mr", (0.4, 1.37), (1.2, 0.99)),
]
"""All that Section V prints, paragraphs C to G."""

Milliseconds = dict[tuple[str, str], float]
"""Mean latencies by case, such as ``"devices 2"``, and method."""


def figure_of(ms: Milliseconds, case: str, figure: str) -> float | None:
    """Return a latency or ratio of a case; None if it was not simulated."""
    parts = [ms.get((case, method)) for method in figure.split(" / ")]
    if None in parts:
        return None
    return parts[0] / parts[1] if len(parts) == 2 else parts[0]  # type: ignore[operator]


def here(ms: Milliseconds, claim: Claim) -> tuple[float, float] | None:
    """Return least and largest value of a claim's figure in the sweep; None if it was not simulated."""
    cases = dict.fromkeys(case for case, _ in ms if case.split()[0] == claim.sweep)
    wanted = [case for case in cases if claim.at is None or float(case.split()[1]) == claim.at]
    found = [value for case in wanted if (value := figure_of(ms, case, claim.figure)) is not None]
    return (min(found), max(found)) if found else None


def _span(least: float, most: float) -> str:
    low, high = f"{least:.3g}", f"{most:.3g}"
    return low if low == high else f"{low} to {high}"


def claims_table(ms: Milliseconds, printed: Milliseconds) -> Iterator[list[str]]:
    """Yield the cells: point, figure, paper, authors' code, here. ``printed`` is by point of the sweep."""
    for claim in CLAIMS:
        if (found := here(ms, claim)) is not None:
            theirs = figure_of(printed, claim.where(), claim.figure)
            yield [claim.where(), claim.figure, claim.said(), f"{theirs:.3g}" if theirs else "–", _span(*found)]


def contradictions(ms: Milliseconds) -> Iterator[str]:
    """Yield a sentence for each figure of a sweep that differs by more than `TOLERANCE` or changes the other way."""
    groups: dict[tuple[str, str], list[tuple[Claim, tuple[float, float]]]] = {}
    for claim in CLAIMS:
        if (found := here(ms, claim)) is not None:
            groups.setdefault((claim.sweep, claim.figure), []).append((claim, found))
    for (sweep, figure), rows in groups.items():
        apart = {claim.differs(*found) for claim, found in rows} - {""}
        same = True
        if len(rows) == 2:
            (first, a), (last, b) = rows
            same = (b[0] - a[0]) * (last.low - first.low) > 0
        if not apart and same:
            continue
        low, high = min(found[0] for _, found in rows), max(found[1] for _, found in rows)
        least, most = min(claim.low for claim, _ in rows), max(claim.high for claim, _ in rows)
        said = f"{_span(least, most) if least else f'up to {most:.3g}'} in the paper"
        changes = ""
        if len(rows) == 2:
            changes = f"; with {sweep} it changes {'in the same direction' if same else 'in the other direction'}"
        yield f"{sweep}: {figure} is {_span(low, high)} here, {said}{changes}."


def off_by(ms: Milliseconds, printed: Milliseconds) -> str:
    """Compare the paper with the authors' code and with our figures, over the claims of which both are known."""
    theirs, ours = [], []
    for claim in CLAIMS:
        said, found = figure_of(printed, claim.where(), claim.figure), here(ms, claim)
        if said is not None and found is not None and claim.low:
            middle = (claim.low + claim.high) / 2
            theirs.append(abs(said / middle - 1))
            ours.append(abs(fmean(found) / middle - 1))
    if not theirs:
        return "The authors' instances were not at hand when this page was made."
    return (
        f"Of the {len(theirs)} figures of which both are known, what their code prints is off the paper's by "
        f"{100 * fmean(theirs):.0f} % in the mean, what is here by {100 * fmean(ours):.0f} %. "
        "We infer that the paper's figures are of that code, which breaks precedence as the last section says, and that "
        "this is why those below differ from the paper's. No source says so."
    )


def page(rows: list[Row], sweeps: Iterable[str], path: Path | None, pictures: Path | None, told: str) -> Page:
    """Make the page. ``pictures`` is the folder of `draw`'s pictures relative to the page, ``told`` the text at its head."""
    made = Page("HIOS's simulations", path, notes=told)
    made.text("## The authors' instances")
    made.rows([row for row in rows if "instances" in row.case], level=3)
    for sweep in sweeps:
        chosen = [row for row in rows if row.case.split()[0] == sweep and row.unit in ("ms", SPREAD)]
        if chosen:
            made.text(f"## Latency against {sweep}")
            if pictures is not None:
                made.text(f"![Latency of each method against {sweep}]({pictures / _picture(sweep)})")
            _by_value(made, chosen)
    _section_v(made, rows)
    for times in tables([row for row in rows if row.unit == "s"]):
        made.text("## Scheduling time, s")
        made.table(times.header, times.lines)
    made.text(*NOTES.splitlines())
    return made


def _section_v(made: Page, rows: list[Row]) -> None:
    """Add all figures of the paper's Section V beside ours."""
    ms = {(row.case, row.method): row.figure for row in rows if row.unit == "ms"}
    printed = _printed_by_point(rows)
    made.text("## Figures of Section V")
    head = ("where", "ms, or ms / ms", "paper", "authors' code prints", "here")
    made.table(head, claims_table(ms, printed), left=5)
    made.text(
        "The authors' code prints it of its own schedules of the authors' instances, which have the default settings "
        f"({DEFAULT_DEVICES} devices, 200 operators, 400 edges, 14 layers, 0.8). {off_by(ms, printed)}"
    )
    made.text("What contradicts the paper by more than 5 %, or changes in another direction:")
    made.text(*([f"- {text}" for text in contradictions(ms)] or ["- nothing."]))


def _printed_by_point(rows: list[Row]) -> Milliseconds:
    """Return the figures that the authors' code prints, by the sweep points that their instances represent."""
    found: Milliseconds = {}
    for row in rows:
        if "instances" in row.case and (row.unit == PRINTED or (row.unit == "ms" and row.method == "sequential")):
            devices = int(row.case.split()[2])
            points = [f"devices {devices}"]
            if devices == DEFAULT_DEVICES:
                points += ["operators", "layers", "edges 400"]
            found |= {(point, row.method): row.figure for point in points}
    return found


def _by_value(made: Page, rows: list[Row]) -> None:
    """Add a line for each value of a sweep: mean milliseconds of each method, with the standard deviation."""
    means = {(row.case, row.method): row.figure for row in rows if row.unit == "ms"}
    spread = {(row.case, row.method): f" ± {row.figure:.2g}" for row in rows if row.unit == SPREAD}
    methods = sorted(dict.fromkeys(method for _, method in means), key=lambda method: FEWER in method)
    alike = sum(FEWER not in method for method in methods)
    lines = []
    for case in dict.fromkeys(case for case, _ in means):
        figures = [means[case, method] for method in methods]
        cells = [f"{ms:.4g}" + spread.get((case, method), "") for ms, method in zip(figures, methods, strict=True)]
        lines.append([case.split()[1], *bold(cells[:alike], figures[:alike]), *cells[alike:]])
    made.table([f"{rows[0].case.split()[0]} (latency in ms)", *methods], lines, left=len(methods) + 1)


def printed_points(ms: Milliseconds, sweep: str) -> dict[str, list[tuple[float, float, float]]]:
    """Return the milliseconds that the paper's text gives a method, as (value of the sweep, least, most).

    The text has few latencies. A speed-up over sequential execution becomes a latency by the sequential one here. "Up to"
    leaves the latency open.
    """
    found: dict[str, list[tuple[float, float, float]]] = {}
    values = [float(case.split()[1]) for case in dict.fromkeys(case for case, _ in ms if case.split()[0] == sweep)]
    for claim in [claim for claim in CLAIMS if claim.sweep == sweep and claim.low]:
        for value in [value for value in values if claim.at in (None, value)]:
            if " / " not in claim.figure:
                found.setdefault(claim.figure, []).append((value, claim.low, claim.high))
            elif claim.figure.startswith("sequential / "):
                sequential = ms[f"{sweep} {value:g}", "sequential"]
                method = claim.figure.removeprefix("sequential / ")
                found.setdefault(method, []).append((value, sequential / claim.high, sequential / claim.low))
    return found


def _picture(sweep: str) -> str:
    return f"hios-{sweep}.svg"


def draw(rows: list[Row], sweeps: Iterable[str], folder: Path) -> None:
    """Draw each sweep as Figures 7 to 11 do: mean latencies with standard deviations, and what the paper prints."""
    ms = {(row.case, row.method): row.figure for row in rows if row.unit == "ms"}
    for sweep in sweeps:
        figure, axes = pyplot().subplots(figsize=(6, 4))
        chosen = [row for row in rows if row.case.split()[0] == sweep]
        spread = {(r.case, r.method): r.figure for r in chosen if r.unit == SPREAD}
        colours = {}
        for method in dict.fromkeys(row.method for row in chosen if row.unit == "ms"):
            points = [row for row in chosen if row.method == method and row.unit == "ms"]
            line = axes.errorbar(
                [float(row.case.split()[1]) for row in points],
                [row.figure for row in points],
                [spread.get((row.case, method), 0.0) for row in points],
                label=method,
                capsize=2,
            )
            colours[method] = line[0].get_color()
        for method, points in printed_points(ms, sweep).items():
            where, least, most = zip(*points, strict=True)
            axes.vlines(where, least, most, color=colours[method], alpha=0.4, linewidth=6)
            axes.plot(where, most, "x", color=colours[method], label=f"{method}, paper")
        axes.set(xlabel=sweep, ylabel="latency, ms", ylim=(0, None))
        axes.legend(fontsize="small", loc="center left", bbox_to_anchor=(1.02, 0.5))
        save(figure, folder / _picture(sweep))
        pyplot().close(figure)


INSTANCES = Path(__file__).resolve().parents[2] / "shared" / "data" / "hios"
INTER = ("hios-lp-inter", "hios-mr-inter", "heft", "peft", "anytime")
STAGED = ("sequential", "ios", "hios-lp", "hios-mr", "hios-mr-anywhere", "anytime with stages")
SWEPT = (
    "sequential",
    "ios",
    "hios-lp-inter",
    "hios-lp",
    "hios-mr-inter",
    "hios-mr",
    "hios-mr-anywhere",
    "heft",
    "peft",
    "anytime",
)
FEWER = ", first "
"""Begins the end of a method's name whose means are over fewer graphs than those of the others."""
SWEEPS = {
    "devices": [2, 4, 6, 8, 10, 12],
    "operators": [100, 150, 200, 250, 300, 350, 400],
    "edges": [400, 450, 500, 550, 600],
    "layers": [6, 10, 14, 18, 22],
    "communication": [0.4, 0.6, 0.8, 1.0, 1.2],
}


class Kept:
    """Figures by key; with a file, each is added to it as soon as it is there, so that a run goes on where it was."""

    def __init__(self, path: Path | None) -> None:
        self.path, self.found = path, dict[str, list[float]]()
        if path is not None and path.is_file():
            for line in path.read_text().splitlines():
                key, figures = json.loads(line)
                self.found[key] = figures

    def get(self, key: str, make: Callable[[], Sequence[float]]) -> list[float]:
        """Return the figures of a key, and make them if they are not there."""
        if key not in self.found:
            self.found[key] = list(make())
            if self.path is not None:
                with self.path.open("a") as file:
                    file.write(json.dumps([key, self.found[key]]) + "\n")
        return self.found[key]


class Runner:
    """Runs methods on graphs, or takes what a former run kept."""

    def __init__(self, work: float, kept: Kept) -> None:
        self.work, self.kept = work, kept
        # A problem keeps its bound, so the methods of a graph share it.
        self._of = lru_cache(maxsize=2)(lambda graph, devices, staged: graph.problem(devices, concurrency=staged))

    def _problem(self, graph: LayeredGraph, devices: int, method: str) -> Problem:
        return self._of(graph, devices, method in STAGED)

    def _options(self, method: str) -> dict[str, Any]:
        if method.startswith("anytime"):
            return {"work": self.work}
        # The limits of the authors' simulation.
        return {"groups": 2, "group_size": 3, "block": 10} if method == "ios" else {}

    def certified(self, graph: LayeredGraph, devices: int, method: str) -> tuple[float, float, float]:
        """Return latency and lower bound in milliseconds, and the scheduler's seconds."""
        problem = self._problem(graph, devices, method)
        schedule = checked(problem, solve(problem, method=method.split()[0], options=self._options(method)))
        assert schedule.certificate is not None
        return schedule.certificate.latency * 1e3, schedule.certificate.lower_bound * 1e3, schedule.seconds

    def milliseconds(self, graph: LayeredGraph, devices: int, method: str) -> float:
        """Return the latency in milliseconds, without a bound."""
        problem, scheduler = self._problem(graph, devices, method), get(method.split()[0])
        schedule = scheduler.function(problem, Workload(), msgspec.convert(self._options(method), scheduler.options))
        return simulate(problem, schedule).latency_ns / 1e6


def instance_rows(folder: Path, runner: Runner, most: int) -> Iterator[Row]:
    """Yield means over the authors' instances, beside the results of their code."""
    files = sorted(folder.glob("*.json"))[:most]
    if not files:
        raise InputError(f"{folder} holds no instances (*.json)")
    for devices in (2, 4, 8, 12):
        found: dict[str, list[tuple[float, float, float]]] = {}
        theirs: dict[str, list[tuple[float, float]]] = {}
        printed: dict[str, list[float]] = {}
        used = 0
        for file in files:
            results = json.loads(file.read_text()).get("results", {})
            reached = results.get("renum", {}).get("gpus", {}).get(str(devices))
            if reached is None:
                continue
            used += 1
            for method, latency in _printed(results.get("asis", {}), str(devices)):
                printed.setdefault(method, []).append(latency)
            graph = load_layered(file)
            for method in (*INTER, *STAGED):
                key = f"{file.stem}, {devices} devices, {method}"
                latency, bound, seconds = runner.kept.get(key, partial(runner.certified, graph, devices, method))
                figures = latency, bound, seconds
                found.setdefault(method, []).append(figures)
                name = method.removesuffix("-inter")
                kind = "feasible_inter" if name != method else "feasible_full"
                peer = reached.get(name.removeprefix("hios-"), {}).get(kind) if name.startswith("hios") else None
                if peer is not None:
                    theirs.setdefault(method, []).append((figures[0], peer))
        for method, rows in found.items():
            case = f"{used} instances, {devices} devices"
            pairs = theirs.get(method)
            yield Row(case, method, fmean(latency for latency, _, _ in rows), "ms")
            yield Row(case, method, 100 * fmean(latency / bound - 1 for latency, bound, _ in rows), "% above the bound")
            if pairs:  # ours over the same instances, since theirs has no feasible schedule of some
                ours, peers = fmean(a for a, _ in pairs), fmean(b for _, b in pairs)
                yield Row(case, method, peers, "ms, theirs")
                yield Row(case, method, ours / peers, "of theirs")
                yield Row(case, method, len(pairs), "of theirs feasible")
            yield Row(case, method, max(seconds for _, _, seconds in rows), "s at most")
        for method, latencies in printed.items():
            yield Row(f"{used} instances, {devices} devices", method, fmean(latencies), PRINTED)


def _printed(results: dict[str, Any], devices: str) -> Iterator[tuple[str, float]]:
    """Yield the milliseconds that the authors' code prints for its own schedules of an instance."""
    if "ios" in results:
        yield "ios", results["ios"]["reported"]
    for name, reached in results.get("gpus", {}).get(devices, {}).items():
        for method, kind in ((f"hios-{name}-inter", "reported_inter"), (f"hios-{name}", "reported_full")):
            if reached.get(kind) is not None:
                yield method, reached[kind]


def sweep_rows(runner: Runner, graphs: int, values: int, of_anytime: int) -> Iterator[Row]:
    """Yield means and standard deviations over random graphs at each point of the paper's sweeps."""
    few = "" if of_anytime >= graphs else f"{FEWER}{of_anytime} graphs"
    for sweep, points in SWEEPS.items():
        chosen = points[:: max(1, math.ceil((len(points) - 1) / (values - 1)))]
        for value in chosen:
            settings = {"operators": 200, "edges": 400, "layers": 14, "communication": 0.8}
            devices = int(value) if sweep == "devices" else 4
            if sweep == "operators":
                settings["edges"] = 2 * value
            if sweep != "devices":
                settings[sweep] = value
            found: dict[str, list[float]] = {method: [] for method in SWEPT}
            for seed in range(graphs):
                graph = random_layered(seed, **settings)
                for method, ms in found.items():
                    if method == "anytime" and seed >= of_anytime:
                        continue
                    # All sweeps go through one point.
                    key = f"{devices} devices, {settings}, seed {seed}, {method}"
                    ms += runner.kept.get(key, partial(_alone, runner, graph, devices, method))
            for method, ms in found.items():
                name = method + few * (method == "anytime")
                yield Row(f"{sweep} {value:g}", name, fmean(ms), "ms")
                if len(ms) > 1:
                    yield Row(f"{sweep} {value:g}", name, stdev(ms), SPREAD)


def _alone(runner: Runner, graph: LayeredGraph, devices: int, method: str) -> list[float]:
    return [runner.milliseconds(graph, devices, method)]


def time_rows(sizes: Iterable[int]) -> Iterator[Row]:
    """Yield the scheduling times of graphs with so many operators."""
    for operators in sizes:
        problem = random_layered(0, operators, operators // 28, 2 * operators).problem(8)
        for method in ("heft", "peft", "hios-lp", "hios-mr"):
            scheduler = get(method)
            begin = time.perf_counter()
            scheduler.function(problem, Workload(), msgspec.convert({}, scheduler.options))
            yield Row(f"{operators} operators, 8 devices", method, time.perf_counter() - begin, "s")


def main() -> None:
    arguments = parser(__doc__)
    arguments.add_argument("--instances", type=Path, metavar="DIR", help="files of the authors' generator")
    arguments.add_argument("--files", type=int, default=1000, metavar="N", help="only the first N of these files")
    arguments.add_argument("--pictures", type=Path, metavar="DIR", help="draw the sweeps there")
    arguments.add_argument("--graphs", type=int, metavar="N", help="random graphs a point (default 30, quick 2)")
    arguments.add_argument(
        "--anytime-graphs", type=int, metavar="N", help="of these, for anytime (default all); it takes most of the time"
    )
    arguments.add_argument(
        "--work", type=float, default=1.0, help="seconds of an idle core's work for anytime on an instance"
    )
    arguments.add_argument(
        "--times", default="400,5000", metavar="N,N", help="operators of the graphs whose schedulers are timed"
    )
    arguments.add_argument("--resume", type=Path, metavar="FILE", help="keep figures there, and go on from them")
    options = arguments.parse_args()
    kept = Kept(options.resume)
    folder = options.instances or (INSTANCES if INSTANCES.is_dir() else None)
    rows = []
    solve(random_layered(0, 20, 4, 30).problem(2), method="heft")  # loads what is loaded once
    rows += time_rows([400] if options.quick else map(int, options.times.split(",")))
    if folder is None:
        print("The authors' instances are not here; name their folder with --instances.")
    else:
        rows += instance_rows(folder, Runner(options.work, kept), 2 if options.quick else options.files)
    graphs = options.graphs or (2 if options.quick else 30)
    work = min(0.25, options.work)  # for each of hundreds of graphs, enough to see the shape of the curves
    of_anytime = min(graphs, options.anytime_graphs or graphs)
    rows += sweep_rows(Runner(work, kept), graphs, 3 if options.quick else 7, of_anytime)
    report("HIOS's simulations", rows, options.json)
    if options.pictures:
        draw(rows, SWEEPS, options.pictures)
    if options.markdown:
        where = options.pictures and Path(os.path.relpath(options.pictures, options.markdown.parent))
        told = (
            f"`anytime` had {options.work:g} s of an idle core's work for each of the authors' instances, and {work:g} s "
            f"for each graph of the sweeps, which have {graphs} graphs a point, the first {of_anytime} for `anytime`. "
            "Crosses in the pictures are what the paper's text prints of its Figures 7 to 11; a speed-up over sequential "
            "execution is drawn as our sequential latency divided by it, with a bar where the text gives a range. Seconds "
            "are by the clock: what else the machine did counts."
        )
        page(rows, SWEEPS, options.markdown, where, told).write()


if __name__ == "__main__":
    main()
