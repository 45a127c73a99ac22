"""`pipeline-exact`: genetic search and annealing for partitions, several relaxations for bounds, in one time limit."""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

import msgspec

from ..errors import InputError
from ..schedulers.registry import report_progress
from .node_bound import node_bound
from .partition_problem import Integers, PartitionProblem
from .programs import bottleneck_guess_bound, exact_program, simple_bound
from .registry import Partition, register
from .slicegraph import cores, cut


class PipelineExactOptions(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Options of `pipeline-exact`.

    Parameters
    ----------
    time_limit : float
        Seconds in all.
    seed : int
    threads : int
        0: all cores.
    solver : {"highs", "scip", "gurobi"}
        Of the integer programs.
    annealings : int
        Annealing runs from the best partition of the genetic search, and of as many from the best of these.
    moves : int
        Tried in each annealing run.
    """

    time_limit: float = 60.0
    seed: int = 0
    threads: int = 0
    solver: str = "highs"
    annealings: int = 6
    moves: int = 3_000_000


@dataclass
class _Best:
    """The best partition and the strongest bound so far."""

    problem: PartitionProblem
    stage_of: Integers
    cost: float = field(init=False)
    bound: float = 0.0
    bound_name: str = ""

    def __post_init__(self) -> None:
        self.cost = self.problem.bottleneck(self.stage_of)

    def offer(self, stage_of: Integers | None) -> None:
        if stage_of is not None and (cost := self.problem.bottleneck(stage_of)) < self.cost:
            self.stage_of, self.cost = stage_of, cost

    def raise_bound(self, bound: float, name: str) -> None:
        if bound > self.bound:
            self.bound, self.bound_name = bound, name

    @property
    def proved(self) -> bool:
        return self.bound >= self.cost * (1 - 1e-6)


@register("pipeline-exact", options=PipelineExactOptions)
def pipeline_exact(problem: PartitionProblem, stages: int, options: PipelineExactOptions) -> Partition:
    """Search and bounds together: genetic search over orders, annealing over assignments, integer programs.

    Partitions: the best order of the genetic search of `slicegraph`, improved by annealing from several seeds. Bounds:
    the simple one, single nodes (`node_bound`), ``bottleneck-guess``, and the exact program with the best partition as
    its start and as the limit that gives each node a window of stages (`windows`). The strongest is kept. Equal seeds
    give equal partitions as long as the time limit does not end the search and the program finds nothing better.
    """
    if not options.time_limit > 0:
        raise InputError(f"time_limit is {options.time_limit}; a number of seconds above 0 is allowed")
    end = time.monotonic() + options.time_limit
    threads = options.threads or cores()
    best = _search(problem, stages, options, threads, end)
    best.raise_bound(simple_bound(problem, stages), "simple")
    if not best.proved:
        report_progress("bounds from single nodes", 2, 4)
        share = time.monotonic() + 0.05 * options.time_limit
        best.raise_bound(node_bound(problem, lambda: time.monotonic() > share) * (1 - 1e-9), "node")
    if not best.proved and stages > 1:
        report_progress("integer programs", 3, 4)
        _programs(problem, stages, options, threads, end, best)
    return Partition(best.stage_of, best.bound, best.bound_name)


def _search(problem: PartitionProblem, stages: int, options: PipelineExactOptions, threads: int, end: float) -> _Best:
    """A third of the time at most: genetic search, then annealing twice, each from several seeds."""
    begin = time.monotonic()
    limit = begin + (end - begin) / 3
    report_progress("genetic search over orders", 0, 4)
    order = problem.evolve(stages, seed=options.seed, threads=threads, seconds=0.4 * (limit - begin))
    best = _Best(problem, cut(problem, order, stages))
    report_progress("annealing", 1, 4)
    for turn in range(2):
        start, seconds = best.stage_of, (limit - time.monotonic()) / (2 - turn)
        each = max(seconds * threads / max(options.annealings, 1), 0.01)
        tasks = [
            _annealing(problem, stages, start, options.seed * 1000 + turn * 100 + i, options.moves, each)
            for i in range(options.annealings)
        ]
        with ThreadPoolExecutor(threads) as pool:
            for stage_of in pool.map(lambda task: task(), tasks):
                best.offer(stage_of)
    return best


def _annealing(
    problem: PartitionProblem, stages: int, start: Integers, seed: int, moves: int, seconds: float
) -> Callable[[], Integers]:
    return lambda: problem.refine(start, stages, seed=seed, moves=moves, seconds=seconds)


def _programs(
    problem: PartitionProblem, stages: int, options: PipelineExactOptions, threads: int, end: float, best: _Best
) -> None:
    """The exact program, and beside it, where there is a second thread, the three-block one."""
    exact_options = {"solver": options.solver, "hint": best.stage_of, "cutoff": best.cost, "least": best.bound}
    seconds = max(end - time.monotonic(), 0.1)
    with ThreadPoolExecutor(2) as pool:
        beside = None
        if threads > 1:
            beside = pool.submit(bottleneck_guess_bound, problem, stages, solver=options.solver, seconds=seconds / 2)
        exact = exact_program(problem, stages, seconds=seconds, threads=max(threads - 1, 1), **exact_options)  # type: ignore[arg-type]
        best.offer(exact.stage_of)
        best.raise_bound(min(exact.bound, best.cost), "exact")
        if beside is not None:
            best.raise_bound(min(beside.result().bound, best.cost), "bottleneck-guess")
