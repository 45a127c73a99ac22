"""What each improver of `anytime` is worth: the same work with all of them and without one, on different instances.

The instances are schedules, or with ``--partitions`` pipelines that are cut into stages. Integer programs take no part in
cutting pipelines here, since only the clock can limit them.

Work is limited, not time, so that the figures are the same on every machine. "Loaded": parameters come from host memory
before a kernel reads them, over buses that copies use, too; "unloaded": nothing comes from host memory. With ``--json FILE``
what was measured is kept there, and a run that was interrupted goes on where it was.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from statistics import fmean, stdev
from typing import Any, NamedTuple

import msgspec
from _common import parser
from _result_page import Page
from rich.console import Console

from tvm_sched.cost_model.roofline_model import roofline
from tvm_sched.pipeline import anytime_partitioner as cutting
from tvm_sched.pipeline.partition_state import MOST_MOVES, PartitionState
from tvm_sched.schedulers.anytime.scheduler import AnytimeOptions, turns
from tvm_sched.schedulers.anytime.search_state import ScheduleState
from tvm_sched_bench.testing.hios_problems import random_layered
from tvm_sched_bench.testing.regal import regal_like
from tvm_sched_bench.testing.task_graphs import task_graph
from tvm_sched_runtime.pipeline import PartitionProblem
from tvm_sched_runtime.problem import Problem, load_topology
from tvm_sched_runtime.search_budget import Budget, Incumbent, Turn, improve

ALL = "all"
screen = Console(stderr=True)


class Measurement(msgspec.Struct, frozen=True):
    """Costs of a search on one instance by seed, and the lower bound."""

    instance: str
    loaded: bool
    without: str
    work: float
    costs: tuple[float, ...]
    bound: float

    @property
    def above(self) -> float:
        """Mean percent above the bound."""
        return 100 * (fmean(self.costs) / self.bound - 1)


class Stages(NamedTuple):
    """A graph and the number of stages that it is cut into."""

    graph: PartitionProblem
    count: int


class Instance(msgspec.Struct, frozen=True):
    """An instance whose problem is built on demand."""

    name: str
    loaded: bool
    make: Callable[[], Problem | Stages]


def _tasks(family: str, topology: str, loaded: bool) -> Instance:
    def make() -> Problem:
        graph, machine = task_graph(family, parameters=loaded), load_topology(topology)
        return Problem(graph, machine, roofline(graph, machine))

    return Instance(f"{family}, {topology}", loaded, make)


def _network(name: str, topology: str) -> Instance:
    def make() -> Problem:
        from tvm_sched.relax import make_problem
        from tvm_sched_bench.testing.models import onnx_model

        return make_problem(
            onnx_model(name), load_topology(topology), cost_model="roofline", name=name
        ).resolve()  # the search is of one choice

    return Instance(f"{name}, {topology}", True, make)


def _decoder(name: str, topology: str) -> Instance:
    def make() -> Problem:
        from _grid import make_problem

        return make_problem(name, 1, 32, topology)

    return Instance(f"{name} 1x32, {topology}", True, make)


def _layered(seed: int, devices: int, stages: bool) -> Instance:
    kind = "HIOS with stages" if stages else "HIOS"
    return Instance(f"{kind}, {devices} devices", False, lambda: random_layered(seed).problem(devices, stages))


INSTANCES = (
    _tasks("butterfly", "a6000-server", True),
    _tasks("cholesky", "v100-server", True),
    _tasks("grid", "p4d", True),
    _tasks("experts", "v100-hetero", True),
    _tasks("series-parallel", "a6000-server", True),
    _tasks("unet", "a6000-server", True),
    _tasks("cholesky", "a6000-server", False),
    _tasks("experts", "v100-server", False),
    _tasks("towers", "v100-hetero", False),
    _tasks("tree", "p4d", False),
    _layered(1, 4, False),
    _layered(3, 8, False),
    _layered(2, 4, True),
    _network("inception_v1", "p4d"),
    _decoder("gpt2-large", "v100-server"),
)


def _cut(seed: int, nodes: int, stages: int) -> Instance:
    return Instance(
        f"{nodes} nodes (seed {seed}), {stages} stages", False, lambda: Stages(regal_like(seed, nodes), stages)
    )


PARTITIONS = tuple(
    _cut(seed, nodes, stages)
    for seed, (nodes, stages) in enumerate(
        [(16, 3), (24, 4), (40, 4), (60, 8), (100, 4), (150, 8), (250, 8), (400, 16)] * 2
    )
)[:12]


def rounds(problem: Problem | Stages, seed: int, work: float) -> list[tuple[list[Turn[Any]], float]]:
    """Return the rounds of `anytime` for a problem: the improvers that alternate, and the work of the round."""
    if isinstance(problem, Stages):
        first = cutting.FIRST_SHARE * work
        return [(cutting.first_turns(True), first), (cutting.turns(True, False, MOST_MOVES), work - first)]
    return [(list(turns(problem, AnytimeOptions(work=work, seed=seed), work)), work)]


def search(problem: Problem | Stages, seed: int, work: float, without: str) -> Incumbent[Any]:
    """Run `anytime` without one improver; the others get its share of the work."""
    state: Incumbent[Any]
    if isinstance(problem, Stages):
        state = PartitionState(problem.graph, problem.count, seed, 1, "highs")
    else:
        state = ScheduleState(problem, seed)
    for chosen, part in rounds(problem, seed, work):
        if not state.proved:
            improve(state, [turn for turn in chosen if turn.improver.name != without], Budget(part))
    return state


def measure(
    instances: Sequence[Instance], seeds: int, work: float, only: Sequence[str] = (), known: Sequence[Measurement] = ()
) -> Iterator[Measurement]:
    """Measure each instance with all improvers and without each one, except what is known already."""
    done = {(m.instance, m.loaded, m.without): m for m in known if (len(m.costs), m.work) == (seeds, work)}
    for instance in instances:
        problem = instance.make()
        names = dict.fromkeys(turn.improver.name for chosen, _ in rounds(problem, 0, work) for turn in chosen)
        for without in (ALL, *(name for name in names if name and (not only or name in only))):
            found = done.get((instance.name, instance.loaded, without))
            if found is None:
                states = [search(problem, seed, work, without) for seed in range(seeds)]
                costs = tuple(float(state.cost) for state in states)
                bound = float(states[0].bound)
                found = Measurement(instance.name, instance.loaded, without, work, costs, bound)
                screen.print(f"{found.instance} without {found.without}: {found.above:.3f} % above the bound")
            yield found


def table(found: Sequence[Measurement]) -> list[list[str]]:
    """Make a row for each instance: percent above the bound with all improvers, then the change without each."""
    names = list(dict.fromkeys(m.without for m in found if m.without != ALL))
    rows = [["instance", "loaded", "all, % above the bound", *(f"without {name}" for name in names)]]
    by = {(m.instance, m.loaded, m.without): m for m in found}
    changes: dict[str, list[float]] = {name: [] for name in names}
    for instance, loaded in dict.fromkeys((m.instance, m.loaded) for m in found):
        base = by[instance, loaded, ALL]
        cells = [instance, "yes" if loaded else "no", f"{base.above:.3f}{_spread(base)}"]
        for name in names:
            other = by.get((instance, loaded, name))
            if other is not None:
                changes[name].append(other.above - base.above)
            cells.append("" if other is None else f"{other.above - base.above:+.3f}")
        rows.append(cells)
    rows.append(["mean change", "", "", *(f"{fmean(changes[name]):+.3f}" for name in names)])
    rows.append(["worse without it on", "", "", *(_count(changes[name], 1) for name in names)])
    rows.append(["better without it on", "", "", *(_count(changes[name], -1) for name in names)])
    return rows


def _spread(m: Measurement) -> str:
    return f" ± {100 * stdev(m.costs) / m.bound:.3f}" if len(m.costs) > 1 else ""


def _count(changes: Sequence[float], sign: int) -> str:
    return f"{sum(sign * change > 5e-4 for change in changes)} of {len(changes)}"


def page(found: Sequence[Measurement], work: float, seeds: int, path: Path | None) -> Page:
    """Make the page with the table."""
    head, *body = table(found)
    made = Page("Ablation of `anytime`", path, predicted=True, notes=(
        f"{work:g} s of work for each search, means of {seeds} seeds; ± is the standard deviation over seeds. "
        "What pays late is not seen here: by default a search has 16 s of work."
    ))  # fmt: skip
    made.text(*(__doc__ or "").rstrip().splitlines())
    made.table(head, body, left=2)
    return made


def main(arguments: Any = None) -> None:
    given_parser = parser(__doc__)
    given_parser.add_argument("--work", type=float, default=2.0, help="seconds of work of one search")
    given_parser.add_argument("--seeds", type=int, default=10)
    given_parser.add_argument("--partitions", action="store_true", help="of partitions instead of schedules")
    given_parser.add_argument("--only", default="", help="leave out these improvers alone, separated by commas")
    options = given_parser.parse_args(arguments)
    chosen = PARTITIONS if options.partitions else INSTANCES
    seeds, instances = (2, chosen[::5]) if options.quick else (options.seeds, chosen)
    only = [name for name in options.only.split(",") if name]
    resume: Path | None = options.json
    known = msgspec.json.decode(resume.read_bytes(), type=list[Measurement]) if resume and resume.is_file() else []
    found: list[Measurement] = []
    for each in measure(instances, seeds, options.work, only, known):
        found.append(each)
        if resume:
            resume.write_bytes(msgspec.json.encode(found + [m for m in known if m not in found]))
    page(found, options.work, seeds, options.markdown).write()


if __name__ == "__main__":
    main()
