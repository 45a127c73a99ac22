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
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

import msgspec
from _checked import checked
from _common import parser
from _hios_page import PRINTED, SPREAD, draw, page
from _result_page import Row, report

from tvm_sched.errors import InputError
from tvm_sched.problem import Problem
from tvm_sched.schedule import simulate
from tvm_sched.schedulers import solve
from tvm_sched.schedulers.scheduler_registry import get
from tvm_sched.testing.hios_problems import LayeredGraph, load_layered, random_layered

INSTANCES = Path(__file__).resolve().parents[2] / "shared" / "data" / "hios"
INTER = ("hios-lp-inter", "hios-mr-inter", "heft", "peft", "anytime")
STAGED = ("sequential", "ios", "hios-lp", "hios-mr", "anytime with stages")
SWEPT = ("sequential", "ios", "hios-lp-inter", "hios-lp", "hios-mr-inter", "hios-mr", "heft", "peft", "anytime")
SWEEPS = {
    "devices": [2, 4, 6, 8, 10, 12],
    "operators": [100, 150, 200, 250, 300, 350, 400],
    "edges": [400, 450, 500, 550, 600],
    "layers": [6, 10, 14, 18, 22],
    "communication": [0.4, 0.6, 0.8, 1.0, 1.2],
}


class Runner:
    """Runs methods on graphs."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        # A problem keeps its bound, so the methods of a graph share it.
        self._of = lru_cache(maxsize=2)(lambda graph, devices, staged: graph.problem(devices, concurrency=staged))

    def _problem(self, graph: LayeredGraph, devices: int, method: str) -> Problem:
        return self._of(graph, devices, method in STAGED)

    def _options(self, method: str) -> dict[str, Any]:
        if method.startswith("anytime"):
            return {"time_limit": self.seconds}
        # The limits of the authors' simulation.
        return {"groups": 2, "group_size": 3, "block": 10} if method == "ios" else {}

    def certified(self, graph: LayeredGraph, devices: int, method: str) -> tuple[float, float, float]:
        """Latency and lower bound in milliseconds, and the seconds of the scheduler."""
        problem = self._problem(graph, devices, method)
        schedule = checked(problem, solve(problem, method=method.split()[0], options=self._options(method)))
        assert schedule.certificate is not None
        return schedule.certificate.latency * 1e3, schedule.certificate.lower_bound * 1e3, schedule.seconds

    def milliseconds(self, graph: LayeredGraph, devices: int, method: str) -> float:
        """Latency alone: no bound."""
        problem, scheduler = self._problem(graph, devices, method), get(method.split()[0])
        schedule = scheduler.function(problem, msgspec.convert(self._options(method), scheduler.options))
        return simulate(problem, schedule).latency_ns / 1e6


def instance_rows(folder: Path, runner: Runner, most: int) -> Iterator[Row]:
    """Means over the authors' instances, beside what their code reached on the same ones."""
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
                figures = runner.certified(graph, devices, method)
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
    """What the authors' code says of its own schedules of an instance, as it is, in milliseconds."""
    if "ios" in results:
        yield "ios", results["ios"]["reported"]
    for name, reached in results.get("gpus", {}).get(devices, {}).items():
        for method, kind in ((f"hios-{name}-inter", "reported_inter"), (f"hios-{name}", "reported_full")):
            if reached.get(kind) is not None:
                yield method, reached[kind]


def sweep_rows(runner: Runner, graphs: int, values: int) -> Iterator[Row]:
    """Means and standard deviations over random graphs at each point of the paper's sweeps."""
    known: dict[tuple[object, ...], list[float]] = {}
    for sweep, points in SWEEPS.items():
        chosen = points[:: max(1, math.ceil((len(points) - 1) / (values - 1)))]
        for value in chosen:
            settings = {"operators": 200, "edges": 400, "layers": 14, "communication": 0.8}
            devices = int(value) if sweep == "devices" else 4
            if sweep == "operators":
                settings["edges"] = 2 * value
            if sweep != "devices":
                settings[sweep] = value
            made = [random_layered(seed, **settings) for seed in range(graphs)]
            for method in SWEPT:
                point = (devices, method, *settings.values())
                if point not in known:  # all sweeps go through one point
                    known[point] = [runner.milliseconds(graph, devices, method) for graph in made]
                yield Row(f"{sweep} {value:g}", method, fmean(known[point]), "ms")
                if graphs > 1:
                    yield Row(f"{sweep} {value:g}", method, stdev(known[point]), SPREAD)


def time_rows(quick: bool) -> Iterator[Row]:
    """How long scheduling takes."""
    for operators in (400,) if quick else (400, 5000):
        problem = random_layered(0, operators, operators // 28, 2 * operators).problem(8)
        for method in ("heft", "peft", "hios-lp", "hios-mr"):
            scheduler = get(method)
            begin = time.perf_counter()
            scheduler.function(problem, msgspec.convert({}, scheduler.options))
            yield Row(f"{operators} operators, 8 devices", method, time.perf_counter() - begin, "s")


def main() -> None:
    arguments = parser(__doc__, models=False)
    arguments.add_argument("--instances", type=Path, metavar="DIR", help="files of the authors' generator")
    arguments.add_argument("--files", type=int, default=1000, metavar="N", help="only the first N of these files")
    arguments.add_argument("--pictures", type=Path, metavar="DIR", help="draw the sweep over devices there")
    arguments.add_argument("--graphs", type=int, metavar="N", help="random graphs a point (default 30, quick 2)")
    arguments.add_argument("--seconds", type=float, default=10.0, help="time limit of anytime for an instance")
    given = arguments.parse_args()
    folder = given.instances or (INSTANCES if INSTANCES.is_dir() else None)
    rows = []
    solve(random_layered(0, 20, 4, 30).problem(2), method="heft")  # loads what is loaded once
    rows += time_rows(given.quick)
    if folder is None:
        print("The authors' instances are not here; name their folder with --instances.")
    else:
        rows += instance_rows(folder, Runner(given.seconds), 2 if given.quick else given.files)
    graphs = given.graphs or (2 if given.quick else 30)
    seconds = min(0.5, given.seconds)  # for each of hundreds of graphs, enough to see the shape of the curves
    rows += sweep_rows(Runner(seconds), graphs, 3 if given.quick else 7)
    report("HIOS's simulations", rows, given.json)
    if given.pictures:
        draw(rows, SWEEPS, given.pictures)
    if given.markdown:
        where = given.pictures and Path(os.path.relpath(given.pictures, given.markdown.parent))
        told = (
            f"`anytime` had {given.seconds:g} s for each of the authors' instances, and {seconds:g} s for each graph of the "
            f"sweeps, which have {graphs} graphs a point for every method. Both are by the clock: what else the machine did "
            "counts."
        )
        page(rows, SWEEPS, given.markdown, where, told).write()


if __name__ == "__main__":
    main()
