"""Many services on a mixed cluster: RAMPA's evaluation (IEEE TCC 2025, Figures 7 to 11) with all allocators.

Requests come in random sequences until the first one that finds no place; the services placed until then are counted.
`pipeedge` and `ncar` have fixed numbers of stages: all 288 combinations of Table IX, or `--combinations` of them drawn at
random; the best, the mean and the worst are shown. The bound holds even if the sequences were known in advance. Throughput,
latency and stages are of the demand `same` (Figures 8 to 10). With ``--resume FILE`` each measurement is kept there, and a
run that was interrupted goes on where it was.
"""

from __future__ import annotations

import itertools
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from _checked import allocation_verdict, tally
from _common import parser
from _result_page import NONE, Page, Row, bold, pyplot, write_json
from rich.console import Console

from tvm_sched_cluster import (
    DEMANDS,
    Allocation,
    ClusterState,
    Service,
    ServicePlacement,
    ServiceRequest,
    demand_of_services,
    load_cluster,
    load_services,
    preset_names,
    requests_of,
    try_place,
    verify,
)
from tvm_sched_cluster.benchmark_kind import STAGES
from tvm_sched_cluster.bounds.mix_bound import bound_of_requests
from tvm_sched_cluster.search.cluster_search import ClusterSearch

REFERENCES = {
    (cluster, demand): services
    for cluster, placed in (("rampa-base", (201, 217, 286, 142)), ("rampa-large", (441, 483, 641, 314)))
    for demand, services in zip(("same", "high-throughput", "low-delay", "huge-model"), placed, strict=True)
}
"""What the authors' code placed, with its slips in units and formulas, on a sequence of its own."""

FREE, FIXED = ("anytime", "rampa", "first-fit"), ("ncar", "pipeedge")
QUARTILES = ("least", "quartile", "median", "quartile", "most")
NOTES = """\
RAMPA's evaluation (IEEE TCC 2025, Figures 7 to 11): services placed before the first that does not fit, by the formulas of
[the execution model](../model.md#clusters), on random sequences of requests with the probabilities of Table IV. The bound
holds even for allocators that know the sequences in advance; `tvm-sched cluster check` proves it. `anytime` does not know
the demand in advance: it counts past requests. `ncar` and `pipeedge` have fixed numbers of stages (services 1 to 6, in
brackets):
At most {combinations} of the 288 combinations of Table IX were run on each cell: as many as stand behind `of`, or all
(those that are best on other cells first), and the best is what the best of them places. The ants' pheromones are those of
Section IV-C with Table VII's settings: after each generation ρτ, and φ / cost more on the GPUs and links of the current best
solution (G^b and L^b of Table II); GPUs of one kind in one rack, which are alike, share one.

The authors' figures are what their code placed on the base and the large cluster, its slips included, on sequences of its
own. For the two other clusters the paper has Figure 7 as a picture alone, and the results are not in their repository.
What their program does otherwise, option by option and on their own clusters and sequences, is on
[another page](rampa_program.md)."""


def write(
    measured: Iterable[Measured],
    cells: Sequence[tuple[str, str]],
    sequences: int,
    combinations: int,
    rows: Path | None,
    markdown: Path | None,
) -> None:
    """Write the page of these cells and sequences; ``rows`` is a file for services placed and bounds."""
    by_cell: dict[tuple[str, str], list[Measured]] = defaultdict(list)
    for one in measured:
        if one.seed < sequences:
            by_cell[one.cluster, one.demand].append(one)
    for one in (one for own in by_cell.values() for one in own if one.checked):
        tally(one.checked)
    of = "1 sequence" if sequences == 1 else f"{sequences} sequences"
    page = Page(f"Services on mixed clusters, {of}", markdown)
    page.text(NOTES.format(combinations=combinations))
    found = {cell: by_cell[cell] for cell in cells if by_cell[cell]}
    figures = [row for cell, own in found.items() for row in _placed(cell, own)]
    _figure_7(page, found, figures, combinations)
    same = {name: own for (name, demand), own in found.items() if demand == "same"}
    _figure_8(page, same)
    if "rampa-base" in same:
        _figures_9_and_10(page, same["rampa-base"])
    _figure_11(page, same)
    _times(page, found, by_cell.get(("scale", ""), []))
    page.write()
    write_json(rows, [asdict(row) for row in figures])


def _means(own: Sequence[Measured], method: str) -> dict[tuple[int, ...], float]:
    """Return the mean of services placed by combination of fixed stages, if all sequences were run."""
    placed: dict[tuple[int, ...], dict[int, int]] = defaultdict(dict)
    for one in own:
        if one.method == method:
            placed[one.stages][one.seed] = one.placed
    seeds = max((len(each) for each in placed.values()), default=0)
    return {stages: float(np.mean(list(each.values()))) for stages, each in placed.items() if len(each) == seeds}


def _placed(cell: tuple[str, str], own: Sequence[Measured]) -> list[Row]:
    """Figure 7: best, mean and worst of each method with fixed stages."""
    case, rows = ", ".join(cell), []
    for method in ("bound", *FREE):
        figure = float(np.mean(list(_means(own, method).values())))
        rows.append(Row(case, method, figure, "bound" if method == "bound" else "placed", REFERENCES.get(cell)))
    for method in FIXED:
        if not (means := _means(own, method)):
            continue
        for what, pick in (("best", max), ("worst", min)):
            stages = pick(means, key=means.__getitem__)
            rows.append(Row(case, f"{method} {what}", means[stages], "placed", note=" ".join(map(str, stages))))
        rows.append(Row(case, f"{method} mean", float(np.mean(list(means.values()))), "placed", note=str(len(means))))
    return rows


def _figure_7(
    page: Page, found: dict[tuple[str, str], list[Measured]], figures: Sequence[Row], combinations: int
) -> None:
    page.text("## Services placed (Figure 7)")
    lines, most = [], 0
    for cell in found:
        own = {row.method: row for row in figures if row.case == ", ".join(cell)}
        others = [row.figure for name, row in own.items() if name not in ("bound", "anytime")]
        most += own["anytime"].figure > max(others)
        best = max(*others, own["anytime"].figure)
        free = [own[name].figure for name in FREE]
        shown = bold([f"{f:g}" for f in free], [f if f == best else None for f in free], max)
        for name in FIXED:
            if f"{name} best" in own:
                row, mean = own[f"{name} best"], own[f"{name} mean"]
                few = "" if int(mean.note) == combinations else f", of {mean.note}"
                shown += [f"{row.figure:g} ({row.note}{few})", f"{mean.figure:.4g}", f"{own[f'{name} worst'].figure:g}"]
            else:
                shown += [NONE] * 3
        lines.append([", ".join(cell), f"{own['bound'].figure:g}", *shown, str(REFERENCES.get(cell, NONE))])
    page.text(f"`anytime` places most on {most} of {len(found)} cells.")
    page.text(*_beside_the_authors(figures))
    page.text(*where_rampa_is_behind(figures))
    head = ["cluster, demand", "bound", *FREE]
    head += [f"{name} {what}" for name in FIXED for what in ("best (stages)", "mean", "worst")]
    page.table([*head, "authors' RAMPA"], lines)


def _beside_the_authors(figures: Sequence[Row]) -> list[str]:
    """Compare our RAMPA with the authors' code, by cluster."""
    ratios: dict[str, list[float]] = defaultdict(list)
    for row in figures:
        if row.method == "rampa" and row.peer is not None:
            ratios[row.case.partition(",")[0]].append(row.figure / row.peer)
    told = [f"{min(each):.2f} to {max(each):.2f} of the authors' figures on {name}" for name, each in ratios.items()]
    return [f"Our `rampa` places {', '.join(told)}."] if told else []


def where_rampa_is_behind(figures: Sequence[Row]) -> list[str]:
    """Name the cells where our RAMPA places fewer services than NCAR's best stages or than first-fit."""
    by_case: dict[str, dict[str, float]] = defaultdict(dict)
    for row in figures:
        by_case[row.case][row.method] = row.figure
    told = []
    for method, name in (("ncar best", "`ncar` with its best stages"), ("first-fit", "`first-fit`")):
        both = {case: (own["rampa"], own[method]) for case, own in by_case.items() if {"rampa", method} <= own.keys()}
        behind = [f"{case} ({ours:g} against {theirs:g})" for case, (ours, theirs) in both.items() if ours < theirs]
        if not both:
            continue
        cells = f": {'; '.join(behind)}" if behind else ""
        told.append(f"Our `rampa` places fewer services than {name} on {len(behind)} of {len(both)} cells{cells}.")
        if method == "ncar best" and behind:
            told.append(
                "The paper says that RAMPA places at least as many as the best case of NCAR in all environments; our runs, "
                "of one sequence a cell, contradict that here."
            )
    return told


def _by_service(own: Iterable[Measured], method: str) -> dict[str, list[Placed]]:
    """Return the placements of a method without fixed stages, by service."""
    placed: dict[str, list[Placed]] = defaultdict(list)
    for one in own:
        if one.method == method and not one.stages:
            for service in one.services:
                placed[service.service].append(service)
    return dict(sorted(placed.items()))


def _figure_8(page: Page, same: dict[str, list[Measured]]) -> None:
    """Add the share of services with each number of stages."""
    page.text("## Stages (Figure 8)", "", "Services of each kind with 1, 2, ... stages, demand `same`.")
    figure, grid = pyplot().subplots(
        len(same), 2, figsize=(8, 1.9 * len(same)), squeeze=False, layout="constrained", sharex=True
    )
    lines = []
    for (name, own), pair in zip(same.items(), grid, strict=True):
        for method, axes in zip(("rampa", "anytime"), pair, strict=True):
            axes.set_title(f"{name}, {method}")
            for at, (service, placed) in enumerate(_by_service(own, method).items()):
                counts = [sum(p.stages == n for p in placed) for n in range(1, 11)]
                left = 0.0
                for n, count in ((n, count) for n, count in enumerate(counts, 1) if count):
                    axes.barh(at, count / len(placed), left=left, color=pyplot().get_cmap("viridis")(n / 10))
                    left += count / len(placed)
                said = ", ".join(f"{n}: {count}" for n, count in enumerate(counts, 1) if count)
                lines.append([name, service, method, said])
            axes.set(yticks=range(6), yticklabels=[f"service {s}" for s in range(1, 7)], xlim=(0, 1))
    colours = [pyplot().Rectangle((0, 0), 1, 1, color=pyplot().get_cmap("viridis")(n / 10)) for n in range(1, 11)]
    figure.legend(colours, [str(n) for n in range(1, 11)], loc="outside right center", title="stages")
    page.picture("figure-8", "Parts of the services that have 1, 2, ... stages", figure)
    page.table(["cluster", "service", "method", "stages: services"], lines)


def _figures_9_and_10(page: Page, own: list[Measured]) -> None:
    """Add throughput and latency on the base cluster: RAMPA, `anytime`, and PipeEdge by its number of stages."""
    required = {service.name: service for service in load_services()}
    best = {name: max(means, key=means.__getitem__) for name in FIXED if (means := _means(own, name))}
    for number, what, unit, take, limit in (
        (9, "Throughput", "inputs a second", lambda p: p.throughput, lambda s: s.throughput),
        (10, "Latency", "ms", lambda p: p.latency_ms, lambda s: 1e3 * s.latency),
    ):
        page.text(f"## {what} on the base cluster, {unit} (Figure {number})")
        bars = {method: _by_service(own, method) for method in FREE}
        for method, stages in best.items():
            chosen = [p for one in own if (one.method, one.stages) == (method, stages) for p in one.services]
            bars[f"{method}, its best stages"] = {s: [p for p in chosen if p.service == s] for s in required}
        for n in range(1, 10):
            fixed = [p for one in own if one.method == "pipeedge" for p in one.services if p.stages == n]
            bars[f"PipeEdge, {n}"] = {s: [p for p in fixed if p.service == s] for s in required}
        _draw(page, number, f"{what}, {unit}", bars, take, {name: limit(s) for name, s in required.items()})
        lines = []
        for service in required:
            for method, placed in bars.items():
                if figures := [take(p) for p in placed.get(service, [])]:
                    five = np.percentile(figures, [0, 25, 50, 75, 100])
                    lines.append(
                        [service, method, str(len(figures)), f"{np.mean(figures):.4g}", *(f"{f:.4g}" for f in five)]
                    )
        page.table(["service", "method", "placements", "mean", *QUARTILES], lines)


def _draw(
    page: Page,
    number: int,
    what: str,
    bars: dict[str, dict[str, list[Placed]]],
    take: Callable[[Placed], float],
    limits: dict[str, float],
) -> None:
    """Draw each service: means as bars, least and largest as lines, the requirement in red."""
    figure, grid = pyplot().subplots(2, 3, figsize=(8, 4.5), layout="constrained")
    for axes, (service, limit) in zip(grid.flat, limits.items(), strict=True):
        shown = {m.replace("PipeEdge, ", "PE "): [take(p) for p in of.get(service, [])] for m, of in bars.items()}
        shown = {method: figures for method, figures in shown.items() if figures and "best" not in method}
        means = [float(np.mean(figures)) for figures in shown.values()]
        # A mean of equal figures may be off by a rounding error.
        spans = [
            (min(f), float(np.clip(m, min(f), max(f))), max(f)) for m, f in zip(means, shown.values(), strict=True)
        ]
        ends = [[m - a for a, m, _ in spans], [b - m for _, m, b in spans]]
        colours = ["#e0903a" if m == "rampa" else "#3b6fb6" if m in FREE else "#9aa0a6" for m in shown]
        axes.bar(range(len(shown)), means, yerr=ends, color=colours, error_kw={"lw": 0.7})
        axes.axhline(limit, color="red", lw=0.8)
        axes.set(title=service, xticks=range(len(shown)))
        axes.set_xticklabels(list(shown), rotation=60, ha="right", fontsize=6)
    figure.supylabel(what)
    page.picture(f"figure-{number}", f"{what}: means, least and most by method, required in red", figure)


def _figure_11(page: Page, same: dict[str, list[Measured]]) -> None:
    """Add the milliseconds to place a service over its number of operators, base and large cluster."""
    page.text("## Time to place a service, ms (Figure 11)")
    operators = {service.name: len(service.operators) for service in load_services()}
    figure, axes = pyplot().subplots(figsize=(5, 3.2), layout="constrained")
    lines = []
    for name in (name for name in ("rampa-base", "rampa-large") if name in same):
        for method in ("rampa", "anytime"):
            points = []
            for service, placed in _by_service(same[name], method).items():
                ms = [p.ms for p in placed]
                spread = 1.96 * float(np.std(ms, ddof=1)) / len(ms) ** 0.5 if len(ms) > 1 else 0.0
                points.append((operators[service], float(np.mean(ms)), spread))
                five = np.percentile(ms, [0, 25, 50, 75, 100])
                mean = f"{points[-1][1]:.3g} ± {spread:.2g}"
                lines.append([name, service, str(operators[service]), method, mean, *(f"{f:.3g}" for f in five)])
            x, y, error = zip(*sorted(points), strict=True)
            axes.errorbar(x, y, error, label=f"{method}, {name}", marker="o", ms=3, lw=0.8, capsize=2)
    axes.set(xlabel="operators", ylabel="ms", yscale="log")
    axes.legend(fontsize=6)
    page.picture("figure-11", "Milliseconds to place a service over its number of operators", figure)
    page.text("The interval is that of the mean with 95 % confidence.")
    page.table(["cluster", "service", "operators", "method", "mean", *QUARTILES], lines)


def _times(page: Page, found: dict[tuple[str, str], list[Measured]], scale: Sequence[Measured]) -> None:
    """Add the mean and the slowest of all attempts, including the last, which failed."""
    page.text("## All attempts, ms: mean (slowest)")
    lines = []
    for cell, own in found.items():
        cells = []
        for method in (*FREE, *FIXED):
            runs = [one for one in own if one.method == method]
            mean = np.mean([r.mean_ms for r in runs]) if runs else 0.0
            cells.append(f"{mean:.3g} ({max(r.most_ms for r in runs):.3g})" if runs else NONE)
        lines.append([", ".join(cell), *cells])
    for one in scale:
        lines.append([f"10,080 GPUs, {one.placed} requests", f"{one.mean_ms:.3g} ({one.most_ms:.3g})", *[NONE] * 4])
    page.table(["cluster, demand", *FREE, *FIXED], lines)


MOST_REQUESTS = 2000
BOUND, SCALE = "bound", "scale"
DETAILED = ("rampa-base", "same")
"""The cell of Figures 9 and 10, where the placements of methods with fixed stages are kept, too."""


class Placed(msgspec.Struct, frozen=True, array_like=True):
    """A service that found a place."""

    service: str
    stages: int
    throughput: float
    latency_ms: float
    ms: float  # to place it


class Measured(msgspec.Struct, frozen=True):
    """What a method placed of a sequence of requests; or the bound, or a run on a cluster many times as large.

    ``stages`` are the fixed numbers of stages of the services in turn; ``mean_ms`` and ``most_ms`` milliseconds of an
    attempt; ``services`` what was placed, where it is kept; ``checked`` what `tvm_sched_check.clusters` said of it.
    """

    cluster: str
    demand: str
    seed: int
    method: str
    stages: tuple[int, ...]
    placed: int
    mean_ms: float = 0.0
    most_ms: float = 0.0
    services: tuple[Placed, ...] = ()
    checked: str = ""

    @property
    def key(self) -> tuple[str, str, int, str, tuple[int, ...]]:
        """Key of the measurement."""
        return self.cluster, self.demand, self.seed, self.method, self.stages


class Kept:
    """Measurements by key; with a file, each is added to it as soon as it is there."""

    def __init__(self, path: Path | None) -> None:
        self.path, self.found = path, dict[Any, Measured]()
        if path is not None and path.is_file():
            whole, _, rest = path.read_bytes().rpartition(b"\n")
            lines = [msgspec.json.decode(line, type=Measured) for line in whole.splitlines()]
            self.found = {line.key: line for line in lines}
            if rest:  # half a line of a run that was interrupted
                path.write_bytes(whole + b"\n" if whole else b"")

    def add(self, measured: Measured) -> None:
        """Keep one."""
        self.found[measured.key] = measured
        if self.path is not None:
            with self.path.open("ab") as file:
                file.write(msgspec.json.encode(measured) + b"\n")


def main() -> None:
    arguments = parser(__doc__)
    arguments.add_argument("--clusters", default=",".join(preset_names()), metavar="NAME,NAME")
    arguments.add_argument("--demands", default=",".join(DEMANDS), metavar="NAME,NAME")
    arguments.add_argument("--sequences", type=int, default=3, metavar="N", help="of requests, seeds 0 to N - 1")
    arguments.add_argument("--combinations", type=int, default=288, metavar="N", help="of fixed numbers of stages")
    arguments.add_argument("--resume", type=Path, metavar="FILE", help="keep measurements there, and go on from them")
    options = arguments.parse_args()
    if options.quick:
        options.sequences, options.combinations = 1, 2
    kept = Kept(options.resume)
    cells = list(itertools.product(options.clusters.split(","), options.demands.split(",")))
    measure(kept, cells, options.sequences, _combinations(options.combinations))
    write(kept.found.values(), cells, options.sequences, options.combinations, options.json, options.markdown)


def measure(kept: Kept, cells: Sequence[tuple[str, str]], sequences: int, combinations: Sequence[Any]) -> None:
    """Measure what is missing, sequence after sequence."""
    searches = {name: ClusterSearch(load_cluster(name)) for name, _ in cells}
    services = load_services()
    fixed = [[(method, stages) for stages in combinations] for method in FIXED]
    groups: list[list[tuple[str, dict[str, int]]]] = [[(method, {}) for method in FREE], *fixed]
    for seed, runs, (name, demand) in itertools.product(range(sequences), groups, cells):
        Console(stderr=True).print(
            f"{name}, {demand}, sequence {seed}: {', '.join(dict.fromkeys(method for method, _ in runs))}"
        )
        asked = requests_of(demand_of_services(demand, services), MOST_REQUESTS, seed)
        if (name, demand, seed, BOUND, ()) not in kept.found:
            bound = bound_of_requests(searches[name], services, asked)
            kept.add(Measured(name, demand, seed, BOUND, (), int(bound)))
        for method, stages in runs:
            known = kept.found.get((name, demand, seed, method, tuple(stages.values())))
            if known is None or (not stages and not known.checked):
                kept.add(_measured(searches[name], services, asked, (name, demand, seed, method), stages))
        if runs[0][0] in FIXED:  # the best of all is placed once more, and checked
            of_method = [m for m in kept.found.values() if m.key[:4] == (name, demand, seed, runs[0][0])]
            best = max(of_method, key=lambda m: (m.placed, m.checked))
            if not best.checked:
                stages = dict(zip(STAGES, best.stages, strict=True))
                kept.add(_measured(searches[name], services, asked, best.key[:4], stages, check=True))
    if (SCALE, "", 0, "anytime", ()) not in kept.found:
        kept.add(_scale())


def _measured(
    search: ClusterSearch,
    services: Sequence[Service],
    asked: Sequence[ServiceRequest],
    key: tuple[str, str, int, str],
    stages: dict[str, int],
    check: bool = False,
) -> Measured:
    """Place requests; check allocation and bound if stages are free or ``check`` is set."""
    allocation, *ms = _run(search, services, asked, key[3], {"stages": stages} if stages else {})
    detailed = key[:2] == DETAILED or (key[1] == DETAILED[1] and not stages)
    told = tuple(map(_told, allocation.placements)) if detailed else ()
    said = allocation_verdict(search, services, asked, allocation) if check or not stages else ""
    return Measured(*key, tuple(stages.values()), len(allocation.placements), *ms, told, said)


def _told(placed: ServicePlacement) -> Placed:
    figures = placed.throughput, placed.latency_ns / 1e6, 1e3 * placed.seconds
    return Placed(placed.service, len(placed.stages), *(float(f"{figure:.6g}") for figure in figures))


def _scale(times: int = 7) -> Measured:
    """Measure an allocation on several times the racks of the large cluster."""
    large, services = load_cluster("rampa-large"), load_services()
    racks = tuple(
        msgspec.structs.replace(
            rack,
            name=f"{rack.name}x{i}",
            servers=tuple(msgspec.structs.replace(server, name=f"{server.name}x{i}") for server in rack.servers),
        )
        for i in range(times)
        for rack in large.racks
    )
    cluster = msgspec.structs.replace(large, racks=racks)
    asked = [ServiceRequest(f"r{n}", service.name) for n, service in enumerate(services * 10)]
    allocation, *ms = _run(ClusterSearch(cluster), services, asked, "anytime", {})
    return Measured(SCALE, "", 0, "anytime", (), len(allocation.placements), *ms)


def _combinations(count: int) -> list[dict[str, int]]:
    """Return the numbers of stages of each service: all of Table IX, or a sample."""
    ranges = [range(least, most + 1) for least, most in STAGES.values()]
    all_of_them = [dict(zip(STAGES, stages, strict=True)) for stages in itertools.product(*ranges)]
    chosen = np.random.default_rng(0).permutation(len(all_of_them))[:count]
    return [all_of_them[i] for i in sorted(chosen)]


def _run(
    search: ClusterSearch, services: Sequence[Service], requests: Sequence[ServiceRequest], method: str, options: Any
) -> tuple[Allocation, float, float]:
    """Place services until the first failure; return the allocation, and mean and largest milliseconds of an attempt."""
    state = ClusterState(search.cluster, services, search)
    ms = list(_attempts(state, requests, method, options))
    if not options:  # each placement was verified by itself; of 288 combinations, all placements together are not again
        verify(search.cluster, services, state.allocation)
    return state.allocation, sum(ms) / len(ms), max(ms)


def _attempts(state: ClusterState, requests: Sequence[ServiceRequest], method: str, options: Any) -> Iterator[float]:
    for request in requests:
        begin = time.perf_counter()
        placement = try_place(state, request, method, options)
        yield 1e3 * (time.perf_counter() - begin)
        if placement is None:
            return


if __name__ == "__main__":
    main()
