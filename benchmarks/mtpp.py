"""Throughput partitioning: the tables of Archer et al. (ICML 2024) on our instances, and what `anytime` adds.

Table 1 and 3 of the paper: geometric means of lower bound over the best partition found. Table 2: of partition over the
simple bound, for ways to search orders. Figure 5: running times. Instances are REGAL-like graphs made from seeds
(`tvm_sched_bench.testing.regal`, which states its parameters), or files: JSON with ``nodes`` and ``edges``. With
``--resume`` a run goes on where an earlier one ended, and ``--minutes`` ends it; means are over the graphs measured so far,
whose number stands beside them. ``--methods anytime`` measures that alone: with 60 s on 20 graphs for three numbers of
stages it takes an hour. ``--generator local`` takes graphs that fit a row of the paper's Table 3, whose figures then stand
beside; with ``--iterations`` and ``--work`` no limit is a time, so that a busy machine gives the same figures.
``--memory`` gives the graphs parameters, and the stages memories of some shares of them; the page then shows cost and gap
against memory.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from math import exp, log
from pathlib import Path
from typing import TYPE_CHECKING

from _checked import partition_verdict, tally
from _common import parser
from _result_page import NONE, Page, Row, report

if TYPE_CHECKING:
    from tvm_sched_runtime.pipeline import PartitionProblem

ORDERS = {
    "mla": ("mla", 10_000),
    "mla-weighted": ("mla-weighted", 10_000),
    "random-1": ("random", 1),
    "random-100": ("random", 100),
    "random-10000": ("random", 10_000),
    "brkga-100": ("brkga", 100),
    "brkga-10000": ("brkga", 10_000),
}
TABLE_2 = {
    "mla": (1.216, 1.538, 1.950, 2.224, 2.304, 2.326),
    "mla-weighted": (1.206, 1.516, 1.920, 2.182, 2.258, 2.283),
    "random-1": (1.220, 1.551, 1.959, 2.230, 2.309, 2.333),
    "random-100": (1.201, 1.512, 1.916, 2.179, 2.258, 2.282),
    "random-10000": (1.199, 1.509, 1.911, 2.176, 2.256, 2.281),
    "brkga-100": (1.201, 1.516, 1.919, 2.184, 2.263, 2.288),
    "brkga-10000": (1.199, 1.509, 1.910, 2.175, 2.255, 2.272),
}
"""The paper's, for 2, 4, 8, 16, 32 and 64 stages."""
BOUNDS = ("semidefinite", "bottleneck", "bottleneck-guess", "exact")
PROGRAMS = BOUNDS[1:]
THOSE = "simple of those graphs"
OURS = "anytime"
NOTES = """
`bound / best` is the strongest bound of a method over the cheapest partition that any method found, `least` its worst graph;
means are geometric, over as many graphs as the table `graphs` says. The aims for `anytime` in 60 s on 2 cores, over
the 20 REGAL-like graphs of seeds 0 to 19 (`tvm_sched_bench.testing.regal`): 0.98, 0.95 and 0.90 for 4, 8 and 16 stages.
Seconds depend on what else runs on the machine; a run on a busy one has worse bounds, above all on the larger graphs.
Graphs that fit a row of the paper's Table 3, with its figures beside, are on [another page](mtpp_local.md).
"""
LOCAL_NOTES = """
Graphs of `tvm_sched_bench.testing.regal.regal_local`: 50 to 200 nodes, each of which reads two of the six before it, and a
factor between a tensor's transfer and its share of a node's cost. These three numbers were fitted to the row `simple` of
Table 3, so that row says nothing of the fit's truth; the other rows do. What REGAL drew, how bytes become time there, and
what its filter kept cannot be known from the paper. `bound / best` is a bound over the cheapest partition that any method
found; means are geometric, over as many graphs as the table `graphs` says. The programs of Table 3 have a limit in seconds,
and other work ran on the machine, so they had the processor for the seconds that stand last; in the paper they have 15 to
60 minutes. No other limit is a time: those partitions and bounds are the same on a busy machine. *Simple of those graphs* is
the simple bound on the graphs that the programs had. Graphs with parameters that overflow memory are on
[another page](mtpp_memory.md).
"""
MEMORY_NOTES = """
Graphs of `tvm_sched_bench.testing.regal` to which `with_short_memory` gave parameters: half of the nodes have some, on
average four times as large as a tensor. With `memory 0.75` a stage's memory is three quarters of the parameters over the
number of stages. Activations take their part of it first, and parameters that do not fit are streamed for each batch. The
paper says nothing of its graphs' parameters, so these sizes are ours, and no figure of the paper stands beside.

`cost / unlimited` is the cheapest partition that any method found over the cheapest with unlimited memory. `bound / best`
is a bound over the cheapest partition found; the gap is what it lacks of 1. The bounds count parameters that overflow the
memory, but leave out activations. A bound with more memory holds with less, too, since memory only saves time: the column
`strongest` takes the best of these. Alone, the semidefinite bound may come less far in its work with less memory. Each
partition then gets orders of least peak (`tvm_sched.pipeline.order_partition`): `given / least-peak order` is its cost
before over its cost after, and `peak given / least` the same of the peak of activations, averaged over the stages.
`proved least, %` counts the stages whose peak equals its lower bound. Means are geometric, except percentages. No limit
is a time, so costs and bounds are the same on a busy machine; other work ran on this one. Graphs without parameters are
on [another page](mtpp_local.md).
"""
_SEED = "seed "
"""Begins the name of a graph made from a seed."""


@dataclass(frozen=True)
class Measurement:
    """What one method found on one graph."""

    graph: str
    stages: int
    method: str
    limit: float
    nodes: int
    simple: float
    cost: float | None
    bound: float | None
    bound_name: str
    seconds: float
    checked: str = ""
    memory: float | None = None
    """Memory of a stage over its share of the parameters; None without ``--memory``."""
    given_cost: float | None = None
    """With ``--memory`` the cost before the nodes of each stage had an order of least peak; ``cost`` is that after."""
    peak_ratio: float = 1.0
    """Geometric mean over the stages of their peak in the given order over that in the new one."""
    proved_peaks: float = 0.0
    """Fraction of the stages whose peak is proved to be the least."""
    processor: float = 0.0
    """Seconds of the processor, which other work on the machine does not change much; 0: not noted."""


def main() -> None:
    options = _arguments()
    measured = _read(options.resume)
    known = {(m.graph, m.stages, m.method, m.limit, m.memory) for m in measured}
    end = time.monotonic() + 60 * options.minutes
    wanted = list(_wanted(options))
    for graph, problem, k, method, limit, memory in wanted:
        if (graph, k, method, limit, memory) in known:
            continue
        if time.monotonic() > end:
            break
        measured.append(measure_graph(graph, problem, k, method, limit, memory))
        if options.resume is not None:
            options.resume.write_text(json.dumps([asdict(m) for m in measured], indent=1) + "\n")
    for checked in (m.checked or "made before they were checked" for m in measured if m.cost is not None):
        tally(checked)
    graphs, most = len({m.graph for m in measured}), len({graph for graph, *_ in wanted})
    rows, local = list((memory_rows if options.memory else rows_of)(measured)), options.generator == "local"
    title = f"Throughput partitioning: {graphs} of {most} graphs" + (" like the paper's" if local else "")
    if options.memory:
        title = f"Throughput partitioning with short memory: {graphs} of {most} graphs"
    notes = MEMORY_NOTES if options.memory else LOCAL_NOTES if local else NOTES
    report(title, rows, options.json, notes=notes)
    if options.markdown is not None:
        page = Page(title, options.markdown, notes=notes)
        if local and not options.memory:
            beside_the_paper(page, rows)
        page.rows(rows)
        page.write()
    if options.pictures is not None:
        _draw(measured, options.pictures)


def beside_the_paper(page: Page, rows: list[Row]) -> None:
    """Add the rows of Table 3, and those of Table 2 for their order alone, whose models are others."""
    from tvm_sched_bench.regal_table import PAPER, STAGES

    found = {(row.method.partition(",")[0], row.case): row.figure for row in rows if row.unit == "bound / best"}
    page.text("## Beside Table 3")
    lines = [
        [f"{bound}, {where}", *(f"{figure:.4f}" if figure is not None else NONE for figure in figures)]
        for bound in ["simple", THOSE, *list(PAPER)[1:], "semidefinite"]
        for where, figures in (
            ("paper", PAPER.get(bound, ())), ("here", [found.get((bound, f"k={k}")) for k in STAGES])
        )
        if any(figure is not None for figure in figures)
    ]  # fmt: skip
    page.table(["bound", *(f"k={k}" for k in STAGES)], lines)
    simple = {
        k: found["simple", f"k={k}"] / paper - 1
        for k, paper in zip(STAGES, PAPER["simple"], strict=True)
        if ("simple", f"k={k}") in found
    }
    far = max(simple, key=lambda k: abs(simple[k]))
    side = "above" if simple[far] > 0 else "below"
    page.text(f"The fitted row `simple` is {abs(simple[far]):.1%} {side} the paper's at k={far}, nearer elsewhere.")
    ours = {(row.method, row.case): row.figure for row in rows if row.unit == "partition / best"}
    page.text("## Beside Table 2")
    page.text(
        "The paper's Table 2 is of its production models, over the simple bound; here each figure is over the best of its",
        "column, the paper's over the best of all seven orders, so that only what one order gains on another compares.",
    )
    best = [min(figures) for figures in zip(*TABLE_2.values(), strict=True)]
    lines = []
    for method, paper in TABLE_2.items():
        here = [ours.get((method, f"k={k}")) for k in STAGES]
        if any(here):
            lines.append([f"{method}, paper", *(f"{a / b:.3f}" for a, b in zip(paper, best, strict=True))])
            lines.append([f"{method}, here", *(f"{figure:.3f}" if figure else NONE for figure in here)])
    page.table(["partition over the best order's", *(f"k={k}" for k in STAGES)], lines)


def _arguments() -> argparse.Namespace:
    arguments = parser(__doc__)
    arguments.add_argument("--instances", type=Path, metavar="DIR", help="a folder of graphs (*.json) instead")
    arguments.add_argument(
        "--generator", choices=("regal", "local"), default="regal", help="of graphs without --instances"
    )
    arguments.add_argument("--count", type=int, default=20, metavar="N", help="REGAL-like instances")
    arguments.add_argument("--stages", default="4,8,16", metavar="K,K", help="numbers of stages")
    arguments.add_argument("--seconds", type=float, default=60.0, help="for anytime")
    arguments.add_argument("--bound-seconds", type=float, default=60.0, help="for each bound of --bounds")
    arguments.add_argument(
        "--methods", default=f"{OURS},brkga-10000", metavar="NAME,NAME", help=f"of {OURS}, {', '.join(ORDERS)}"
    )
    arguments.add_argument(
        "--iterations", type=int, metavar="N", help="the semidefinite bound after so many, whatever the time"
    )
    arguments.add_argument("--work", type=float, metavar="SECONDS", help="anytime with seconds of an idle core's work")
    arguments.add_argument(
        "--bounds", nargs="?", const=",".join(BOUNDS), default="", metavar="NAME,NAME",
        help=f"bounds by themselves, too (Tables 1, 3), of {', '.join(BOUNDS)}; default: all",
    )  # fmt: skip
    arguments.add_argument("--bounded", type=int, metavar="N", help="only the first N graphs have them; default: all")
    arguments.add_argument("--orders", action="store_true", help="each search over orders, too (Table 2)")
    arguments.add_argument(
        "--memory",
        type=_shares,
        default=[],
        metavar="SHARE,SHARE",
        help="memories of a stage over its even share of the parameters, such as 0.5,1,inf; each in (0, inf]",
    )
    arguments.add_argument("--minutes", type=float, default=float("inf"), help="begin nothing new after")
    arguments.add_argument("--resume", type=Path, metavar="FILE", help="keep measurements there, and go on from it")
    arguments.add_argument("--pictures", type=Path, metavar="DIR", help="draw running times there, an SVG for each K")
    options = arguments.parse_args()
    if unknown := set(options.methods.split(",")) - {OURS, *ORDERS}:
        raise SystemExit(f"there is no method {min(unknown)!r}; there are {OURS}, {', '.join(ORDERS)}")
    options.bounds = [name for name in options.bounds.split(",") if name]
    if unknown := set(options.bounds) - set(BOUNDS):
        raise SystemExit(f"there is no bound {min(unknown)!r}; there are {', '.join(BOUNDS)}")
    if options.quick:
        options.count, options.seconds, options.bound_seconds = 3, 4.0, 4.0
    return options


def _shares(text: str) -> list[float]:
    shares = [float(part) for part in text.split(",")]
    if not all(share > 0 for share in shares):
        raise argparse.ArgumentTypeError(f"{text}: shares above 0 are allowed")
    return shares


def _wanted(options: argparse.Namespace) -> Iterator[tuple[str, PartitionProblem, int, str, float, float | None]]:
    """Yield the measurements to make, graph after graph."""
    from tvm_sched_bench.testing.regal import with_short_memory

    names = dict.fromkeys([*options.methods.split(","), *(ORDERS if options.orders else ())])
    methods = [(name, options.seconds if name == OURS else 0.0) for name in names]
    bounds = [(name, options.bound_seconds) for name in options.bounds]
    if options.work is not None:
        methods.append((f"{OURS}, {options.work:g} s of work", 0.0))
    if options.iterations is not None:
        methods.append((f"semidefinite, {options.iterations} iterations", 0.0))
    for seed, (graph, problem) in enumerate(_instances(options.instances, options.count, options.generator)):
        for k in [int(text) for text in options.stages.split(",")]:
            for memory in options.memory or [None]:
                made = problem if memory is None else with_short_memory(problem, seed, k, memory)
                bounded = options.bounded is None or seed < options.bounded
                for method, limit in methods + bounds * bounded:
                    yield graph, made, k, method, limit, memory


def _instances(folder: Path | None, count: int, generator: str) -> Iterator[tuple[str, PartitionProblem]]:
    from tvm_sched.pipeline.graph_files import load_instance
    from tvm_sched_bench.testing.regal import regal_like, regal_local

    if folder is None:
        for seed in range(count):
            if generator == "local":
                yield f"ring {seed}", regal_local(seed)
            else:
                yield f"{_SEED}{seed}", regal_like(seed)
        return
    files = sorted(folder.glob("*.json"))
    if not files:
        raise SystemExit(f"{folder} holds no graphs (*.json)")
    for file in files:
        yield file.stem, load_instance(file)


def _read(file: Path | None) -> list[Measurement]:
    if file is None or not file.is_file():
        return []
    return [Measurement(**fields) for fields in json.loads(file.read_text())]


def measure_graph(
    graph: str, problem: PartitionProblem, k: int, method: str, limit: float, memory: float | None = None
) -> Measurement:
    from tvm_sched.bounds.partitions.semidefinite import semidefinite_bound
    from tvm_sched.bounds.partitions.simple import simple_bound
    from tvm_sched.pipeline import order_partition, partition
    from tvm_sched.pipeline.integer_programs import bottleneck_bound, bottleneck_guess_bound, exact_program

    simple = simple_bound(problem, k)
    bounds: dict[str, Callable[[], float]] = {
        "semidefinite": lambda: semidefinite_bound(problem, k, seconds=limit),
        "bottleneck": lambda: bottleneck_bound(problem, k, seconds=limit).bound,
        "bottleneck-guess": lambda: bottleneck_guess_bound(problem, k, seconds=limit).bound,
        "exact": lambda: exact_program(problem, k, seconds=limit).bound,
    }
    started, own = time.monotonic(), time.process_time()
    cost, name = None, method
    if method.endswith("iterations"):
        iterations = int(method.split()[-2])
        bound: float | None = max(semidefinite_bound(problem, k, iterations=iterations), simple)
    elif method in bounds:
        bound = max(bounds[method](), simple)
    elif method.startswith(OURS):
        given = {"work": float(method.split()[1])} if method.endswith("of work") else {"time_limit": limit}
        found = partition(problem, k, OURS, given)
        cost, bound, name = found.cost, found.bound, found.bound_name
    else:
        order, evaluations = ORDERS[method]
        found = partition(problem, k, "slicegraph", {"order": order, "evaluations": evaluations})
        cost, bound = found.cost, None
    seconds, processor = time.monotonic() - started, time.process_time() - own
    ordered: dict[str, float] = {}
    if cost is not None and memory is not None:
        (found, orders), given = order_partition(problem, found), cost
        cost, ratios = found.cost, [order.given_peak / order.peak for order in orders if order.peak]
        proved = sum(order.peak <= order.bound for order in orders) / len(orders)
        ordered = {"given_cost": given, "peak_ratio": _mean(ratios or [1.0]), "proved_peaks": proved}
    checked = "" if cost is None else partition_verdict(problem, k, found)
    return Measurement(
        graph,
        k,
        method,
        limit,
        problem.size,
        simple,
        cost,
        bound,
        name,
        seconds,
        checked,
        memory,
        processor=processor,
        **ordered,
    )


def rows_of(measured: list[Measurement]) -> Iterator[Row]:
    """Yield the tables by number of stages; bounds are relative to the best partition of the graph."""
    best: dict[tuple[str, int], float] = {}
    for m in measured:
        if m.cost is not None:
            best[m.graph, m.stages] = min(m.cost, best.get((m.graph, m.stages), float("inf")))
    for k in sorted({m.stages for m in measured}):
        ours = [m for m in measured if m.stages == k and (m.graph, k) in best]
        once = {m.graph: m for m in ours}.values()
        yield Row(f"k={k}", "simple", _mean([m.simple / best[m.graph, k] for m in once]), "bound / best")
        yield Row(f"k={k}", "simple", len(once), "graphs")
        programs = {m.graph: m for m in ours if m.method in PROGRAMS}.values()
        if len(programs) < len(once) and programs:
            yield Row(f"k={k}", THOSE, _mean([m.simple / best[m.graph, k] for m in programs]), "bound / best")
        for method, limit in dict.fromkeys((m.method, m.limit) for m in ours):
            group = [m for m in ours if (m.method, m.limit) == (method, limit)]
            name = f"{method}, {limit:g} s" if limit else method
            yield Row(f"k={k}", name, len(group), "graphs")
            bounds = [m.bound / best[m.graph, k] for m in group if m.bound is not None]
            if bounds:
                yield Row(f"k={k}", name, _mean(bounds), "bound / best")
                yield Row(f"k={k}", name, min(bounds), "least")
            costs = [(m.cost, m) for m in group if m.cost is not None]
            if costs:
                ratio = _mean([cost / best[m.graph, k] for cost, m in costs])
                yield Row(f"k={k}", name, ratio, "partition / best")
                yield Row(f"k={k}", name, _mean([cost / m.simple for cost, m in costs]), "partition / simple bound")
            yield Row(f"k={k}", name, sum(m.seconds for m in group) / len(group), "s a graph")
            if all(m.processor for m in group):
                yield Row(f"k={k}", name, sum(m.processor for m in group) / len(group), "processor s a graph")
            if method == OURS:
                yield from _by_family(k, name, group, best)


def memory_rows(measured: list[Measurement]) -> Iterator[Row]:
    """Yield cost, gap and what orders of least peak gain, by number of stages and memory."""
    best: dict[tuple[str, int, float], float] = {}
    strongest: dict[tuple[str, int, float], float] = {}
    for m in measured:
        if m.cost is not None and m.memory is not None:
            place = m.graph, m.stages, m.memory
            best[place] = min(m.cost, best.get(place, float("inf")))
            roomier = [o for o in measured if (o.graph, o.stages) == place[:2] and (o.memory or 0) >= m.memory]
            strongest[place] = max(max(o.simple, o.bound or 0) for o in roomier)
    for k, memory in sorted({(k, memory) for _, k, memory in best}):
        graphs = sorted({graph for graph, *place in best if place == [k, memory]})
        case = f"k={k}, memory {memory:g}" if memory < float("inf") else f"k={k}, unlimited"
        yield Row(case, "best of all", len(graphs), "graphs")
        unlimited = [best[g, k, memory] / best[g, k, float("inf")] for g in graphs if (g, k, float("inf")) in best]
        if unlimited:
            yield Row(case, "best of all", _mean(unlimited), "cost / unlimited")
        group = [m for m in measured if m.stages == k and m.memory == memory and m.graph in graphs]
        simple = {m.graph: m.simple / best[m.graph, k, memory] for m in group}
        yield Row(case, "simple", _mean(list(simple.values())), "bound / best")
        for method in dict.fromkeys(m.method for m in group):
            own = [m for m in group if m.method == method]
            bounds = [m.bound / best[m.graph, k, memory] for m in own if m.bound is not None]
            if bounds:
                yield Row(case, method, _mean(bounds), "bound / best")
                every = [strongest[g, k, memory] / best[g, k, memory] for g in graphs]
                yield Row(case, "strongest, of this or more memory", _mean(every), "bound / best")
            costs = [(m.cost, m.given_cost, m) for m in own if m.cost is not None and m.given_cost is not None]
            if costs:
                found = _mean([cost / best[m.graph, k, memory] for cost, _, m in costs])
                yield Row(case, method, found, "partition / best")
                yield Row(case, method, _mean([given / cost for cost, given, _ in costs]), "given / least-peak order")
                yield Row(case, method, _mean([m.peak_ratio for *_, m in costs]), "peak given / least")
                proved = 100 * sum(m.proved_peaks for *_, m in costs) / len(costs)
                yield Row(case, method, proved, "proved least, %")


def _by_family(k: int, name: str, group: list[Measurement], best: dict[tuple[str, int], float]) -> Iterator[Row]:
    """Yield bound over best of the REGAL-like graphs by kind of random graph."""
    from tvm_sched_bench.testing.regal import FAMILIES

    for number, family in enumerate(FAMILIES):
        ratios = [
            m.bound / best[m.graph, k]
            for m in group
            if m.bound is not None and m.graph.startswith(_SEED) and int(m.graph[len(_SEED) :]) % 3 == number
        ]
        if ratios:
            yield Row(f"k={k}, {family}", name, _mean(ratios), "bound / best")
            yield Row(f"k={k}, {family}", name, len(ratios), "graphs")
            yield Row(f"k={k}, {family}", name, min(ratios), "least")


def _draw(measured: list[Measurement], folder: Path) -> None:
    """Draw Figure 5 of the paper for each number of stages: running time of each method on each graph."""
    import matplotlib

    matplotlib.use("svg")
    matplotlib.rcParams["svg.hashsalt"] = "mtpp"
    import matplotlib.pyplot as plt

    folder.mkdir(parents=True, exist_ok=True)
    shown = ("brkga-10000", OURS, *BOUNDS)
    for k in sorted({m.stages for m in measured}):
        figure, axes = plt.subplots(figsize=(5, 3.5), layout="constrained")
        for method in shown:
            points = [(m.nodes, m.seconds) for m in measured if m.stages == k and m.method == method]
            if points:
                axes.scatter(*zip(*points, strict=True), s=12, label=method)
        axes.set(xlabel="nodes", ylabel="running time, s", yscale="log", title=f"{k} stages")
        figure.legend(fontsize="small", loc="outside right center")
        figure.savefig(folder / f"mtpp-{k}.svg", metadata={"Date": None})
        plt.close(figure)


def _mean(ratios: list[float]) -> float:
    """Return the geometric mean."""
    return exp(sum(log(ratio) for ratio in ratios) / len(ratios))


if __name__ == "__main__":
    main()
