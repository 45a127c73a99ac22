"""`pipeline-exact`: searches for partitions and relaxations for bounds, in parallel in one time limit."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

import msgspec
import numpy as np

from ..errors import InputError
from ..progress import report_progress
from .neighbourhoods import improve_neighbours
from .node_bound import node_bound
from .partition_problem import Integers, PartitionProblem
from .programs import bottleneck_bound, bottleneck_guess_bound, exact_program, simple_bound
from .registry import Partition, register
from .slicegraph import cores, cut

_FEW_IDEALS = 20_000
"""Ideals up to which the program over them is run: a fraction of a second."""
_SMALL_PROGRAM = 200
"""Nodes times stages up to which the exact program is tried before anything else."""
_LARGE_POPULATION = 100_000
"""Nodes in all orders of a generation of the genetic search, of which there are 10 to 100."""
_LARGE_PROGRAM = 100_000
"""Nodes and readers of tensors times blocks above which a program is not even written down."""
_WRITING_SECONDS = 2e-4
"""To write down a program, for each node or reader of a tensor in each block; twice what an idle machine takes."""


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
        Annealing runs in a turn: from the best partition of the genetic search, then from the best of all so far.
    turns : int
        Turns of annealing.
    moves : int
        Tried in each annealing run.
    """

    time_limit: float = 60.0
    seed: int = 0
    threads: int = 0
    solver: str = "highs"
    annealings: int = 4
    turns: int = 3
    moves: int = 8_000_000


@dataclass
class _Best:
    """The best partition and the strongest bound so far; several threads tell it what they find."""

    problem: PartitionProblem
    stage_of: Integers
    cost: float = field(init=False)
    bound: float = 0.0
    bound_name: str = ""
    ended: bool = False
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def __post_init__(self) -> None:
        self.cost = self.problem.bottleneck(self.stage_of)

    def offer(self, stage_of: Integers | None) -> None:
        if stage_of is None:
            return
        cost = self.problem.bottleneck(stage_of)
        with self._lock:
            if cost < self.cost:
                self.stage_of, self.cost = stage_of, cost

    def raise_bound(self, bound: float, name: str) -> None:
        with self._lock:
            if bound > self.bound:
                self.bound, self.bound_name = bound, name

    @property
    def proved(self) -> bool:
        return self.bound >= self.cost * (1 - 1e-6)


@register("pipeline-exact", options=PipelineExactOptions)
def pipeline_exact(problem: PartitionProblem, stages: int, options: PipelineExactOptions) -> Partition:
    """Search and bounds together: genetic search, annealing, semidefinite and integer programs.

    Where the graph has few ideals, the program over them (`tarnawski-dp`) comes first, and nothing else where it proves
    its answer. Partitions: the best order of the genetic search of `slicegraph`, improved by annealing from several
    seeds, then neighbouring stages cut anew by the exact program (`improve_neighbours`). Bounds: the simple one, single
    nodes (`node_bound`), the semidefinite one beside the search, ``bottleneck``, ``bottleneck-guess``, and the exact program
    with the best partition as its start, the strongest bound as its least value, and a window of stages for each node
    (`windows`). The strongest is kept. Equal seeds give equal partitions as long as the time limit does not end the
    search and no program finds a better one.
    """
    if not options.time_limit > 0:
        raise InputError(f"time_limit is {options.time_limit}; a number of seconds above 0 is allowed")
    run = _Run(problem, stages, options)
    run.start()
    best = run.best
    if not best.proved and stages > 1:
        run.side_by_side()
    return Partition(best.stage_of, min(best.bound, best.cost), best.bound_name)


class _Run:
    """One call: what is shared by its parts."""

    def __init__(self, problem: PartitionProblem, stages: int, options: PipelineExactOptions) -> None:
        self.problem, self.stages, self.options = problem, stages, options
        self.threads = options.threads or cores()
        self.end = time.monotonic() + options.time_limit
        self.best: _Best

    def left(self, share: float = 1.0) -> float:
        """Seconds: a share of what is left, or a hundredth."""
        return max(share * (self.end - time.monotonic()), 0.01)

    def start(self) -> None:
        """What is there in no time: the genetic search, bounds by formula, small programs."""
        problem, stages, options = self.problem, self.stages, self.options
        best = self.best = _Best(problem, cut(problem, problem.kahn(np.zeros(problem.size)), stages))
        self._ideals()
        if best.proved:
            return
        report_progress("genetic search over orders", 0, 4)
        # The clock is looked at between generations, so these must not take long.
        population = max(10, min(100, _LARGE_POPULATION // max(problem.size, 1)))
        order = problem.evolve(
            stages, population=population, seed=options.seed, threads=self.threads, seconds=self.left(0.15)
        )
        _, ends = problem.slice(order, stages, best.cost)
        if ends:
            best.offer(problem.stages_of(order, ends))
        best.raise_bound(simple_bound(problem, stages), "simple")
        if not best.proved:
            report_progress("bounds from single nodes", 1, 4)
            share = time.monotonic() + self.left(0.05)
            best.raise_bound(node_bound(problem, lambda: time.monotonic() > share) * (1 - 1e-9), "node")
        if not best.proved and stages > 1 and problem.size * stages <= _SMALL_PROGRAM:
            self._exact(self.left(0.2))

    def _ideals(self) -> None:
        """The best partition of a graph with few ideals, such as most networks: their branches are few and short."""
        count, stopped, found = self.problem.ideals(
            self.stages, most=_FEW_IDEALS, limit=self.best.cost, seconds=self.left(0.1)
        )
        if count > _FEW_IDEALS or stopped:
            return
        self.best.offer(found)
        if self.problem.fits_anywhere:
            self.best.raise_bound(self.best.cost, "ideals")

    def side_by_side(self) -> None:
        """The semidefinite bound on one thread, all else on the other; one after the other where there is one only."""
        with ThreadPoolExecutor(1) as pool:
            beside = pool.submit(self._semidefinite, 1.0 if self.threads > 1 else 0.5)
            try:
                if self.threads == 1:
                    beside.result()
                self._partitions()
                self._programs()
                beside.result()
            finally:
                self.best.ended = True

    def _semidefinite(self, share: float) -> None:
        from .semidefinite import semidefinite_bound

        best = self.best

        def watch(bound: float) -> bool:
            best.raise_bound(bound, "semidefinite")
            return best.proved or best.ended

        semidefinite_bound(
            self.problem,
            self.stages,
            cutoff=best.cost,
            seconds=self.left(share),
            watch=watch,
            order=self.problem.kahn(-best.stage_of),
        )

    def _partitions(self) -> None:
        """Two thirds of the time at most: turns of annealing, then the neighbours of the dearest stage."""
        report_progress("annealing", 2, 4)
        limit = time.monotonic() + self.left(0.3)
        for turn in range(self.options.turns):
            if not self.best.proved:
                self._anneal(turn, limit)
        if not self.best.proved:
            self.best.offer(
                improve_neighbours(
                    self.problem,
                    self.best.stage_of,
                    self.stages,
                    solver=self.options.solver,
                    seconds=self.left(0.5),
                )
            )

    def _anneal(self, turn: int, limit: float) -> None:
        """Annealing that is cut off while it is hot is worth nothing, so each run may take all the time there is."""
        options, start = self.options, self.best.stage_of

        def anneal(i: int) -> Integers:
            seed, seconds = options.seed * 1000 + turn * 100 + i, max(limit - time.monotonic(), 0.01)
            return self.problem.refine(start, self.stages, seed=seed, moves=options.moves, seconds=seconds)

        with ThreadPoolExecutor(max(self.threads - 1, 1)) as pool:
            for stage_of in pool.map(anneal, range(options.annealings)):
                self.best.offer(stage_of)

    def _programs(self) -> None:
        """The programs of the paper, small ones first."""
        report_progress("integer programs", 3, 4)
        problem, stages, solver, best = self.problem, self.stages, self.options.solver, self.best
        bounds: list[tuple[str, Callable[[], float]]] = [
            ("bottleneck", lambda: bottleneck_bound(problem, stages, solver=solver, seconds=self.left(0.15)).bound),
            ("bottleneck-guess", lambda: self._guess(self.left(0.3))),
        ]
        for name, bound in bounds:
            if not best.proved and self._can_write(3):
                best.raise_bound(min(bound(), best.cost), name)
        if not best.proved:
            self._exact(self.left())

    def _can_write(self, blocks: int) -> bool:
        """Whether a program of this many blocks leaves time to solve it."""
        readers = sum(len(tensor.readers) for tensor in self.problem.tensors)
        entries = (self.problem.size + readers) * blocks
        return entries <= _LARGE_PROGRAM and entries * _WRITING_SECONDS < self.left(0.5)

    def _guess(self, seconds: float) -> float:
        """Many programs: of a large graph, not all can even be written down in time."""
        end, best = time.monotonic() + 1.5 * seconds, self.best
        result = bottleneck_guess_bound(
            self.problem,
            self.stages,
            solver=self.options.solver,
            seconds=seconds,
            stop=lambda: best.proved or time.monotonic() > end,
        )
        return result.bound

    def _exact(self, seconds: float) -> None:
        """The exact program, from the best partition and bound."""
        problem, best = self.problem, self.best
        if not self._can_write(self.stages):
            return
        cutoff = best.cost
        result = exact_program(
            problem,
            self.stages,
            solver=self.options.solver,
            seconds=seconds,
            threads=max(self.threads - 1, 1),
            hint=best.stage_of,
            cutoff=cutoff,
            least=best.bound,
        )
        best.offer(result.stage_of)
        best.raise_bound(min(result.bound, cutoff), "exact")
