"""State of a search for a partition, and the improvers that find partitions."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

import numpy as np

from tvm_sched_runtime.cores import cores
from tvm_sched_runtime.problem.partition_problem import Integers, PartitionProblem
from tvm_sched_runtime.search_budget import Budget, Incumbent

from ..progress import report_progress
from .neighbourhoods import improve_neighbours
from .partitioner_registry import PROVED
from .slicegraph import cut

FEW_IDEALS = 20_000
"""Largest number of ideals for the program over ideals, which takes a fraction of a second."""

IDEALS_PER_SECOND = 500_000
"""Approximate number of ideals listed in a second on one core of a server."""

MOVES_PER_SECOND = 7_000_000
"""Approximate number of annealing moves in a second on one core of a server."""

MOST_MOVES = 16_000_000
"""Largest number of moves of an annealing run."""

MOST_RUNS = 8
"""Largest number of annealing runs, each with its own seed. One long run is better than several that share its moves."""


class Cut(NamedTuple):
    """The stage of each node, and the order in which stages run; None: Kahn's."""

    stage_of: Integers
    order: Integers | None


class PartitionState(Incumbent[Cut]):
    """Incumbent partition into stages; its cost is that of the bottleneck stage.

    Parameters
    ----------
    problem : PartitionProblem
    stages, seed : int
    threads : int
        0: all cores. Annealing does not depend on it.
    solver : str
        Solver of the integer programs.
    """

    def __init__(
        self, problem: PartitionProblem, stages: int, seed: int = 0, threads: int = 0, solver: str = "highs"
    ) -> None:
        super().__init__(margin=PROVED)
        self.problem, self.stages, self.seed, self.solver = problem, stages, seed, solver
        self.threads = threads or cores()
        self.ended = False
        order = problem.kahn(np.zeros(problem.size))
        self.offer_partition(cut(problem, order, stages), order)

    def offer_partition(self, stage_of: Integers | None, order: Integers | None = None) -> None:
        """Price a partition, if there is one, and keep it if it is the best."""
        if stage_of is not None:
            self.offer(Cut(stage_of, order), self.problem.bottleneck(stage_of, order))

    @property
    def incumbent(self) -> Cut:
        """The best partition; there is always one."""
        assert self.best is not None
        return self.best

    @property
    def stage_of(self) -> Integers:
        """Stage of each node in the best partition."""
        return self.incumbent.stage_of


class Ideals:
    """The program over ideals, for graphs with few ideals; most networks have few and short branches."""

    name = "ideals"

    def step(self, state: PartitionState, budget: Budget) -> bool:
        """Run the program if the graph has no more ideals than the budget can list."""
        most = min(FEW_IDEALS, int(budget.left * IDEALS_PER_SECOND))
        count, late, optimum = state.problem.ideals(state.stages, most=most, limit=state.cost, seconds=_until(budget))
        budget.spend(count / IDEALS_PER_SECOND)
        if count <= most and not late:
            state.offer_partition(optimum)
            if state.problem.fits_anywhere:
                state.raise_bound(state.cost, "ideals")
        else:
            budget.too_small = late or most < FEW_IDEALS
        return False


class Annealing:
    """Annealing from the best partition: one run, or several if the work allows more moves than a run may have."""

    name = "annealing"

    def __init__(self, most_moves: int = MOST_MOVES) -> None:
        self._most_moves = most_moves

    def step(self, state: PartitionState, budget: Budget) -> bool:
        """Run all. The number of moves is fixed before: annealing that ends while it is hot is worth nothing."""
        report_progress("annealing", 2, 4)
        start, total = state.stage_of, int(budget.left * MOVES_PER_SECOND)
        runs = min(MOST_RUNS, max(1, round(total / max(self._most_moves, 1))))
        moves = min(self._most_moves, total // runs)
        budget.too_small |= runs * moves < MOST_RUNS * self._most_moves
        if moves < 1:
            return False

        def anneal(run: int) -> Integers:
            seed = state.seed * 1000 + run
            return state.problem.refine(start, state.stages, seed=seed, moves=moves, seconds=_until(budget))

        with ThreadPoolExecutor(max(state.threads - 1, 1)) as pool:
            for stage_of in pool.map(anneal, range(runs)):
                state.offer_partition(stage_of)
        budget.spend(runs * moves / MOVES_PER_SECOND)
        budget.too_small |= budget.late
        return False


class Neighbours:
    """Cut neighbouring stages again by the exact program, the bottleneck among them."""

    name = "neighbours"

    def step(self, state: PartitionState, budget: Budget) -> bool:
        """Search until it helps no more."""
        with budget.clocked():
            stage_of, whole = improve_neighbours(
                state.problem, state.stage_of, state.stages, solver=state.solver, seconds=budget.seconds
            )
        budget.too_small = not whole
        state.offer_partition(stage_of)
        return False


def _until(budget: Budget) -> float:
    """Return the seconds until the deadline, for a method whose share of the work is fixed."""
    return max(Budget(deadline=budget.deadline).seconds, 0.01)


def stopped(state: PartitionState) -> Callable[[], bool]:
    """Return a function that tells whether a search on a thread of its own should stop."""
    return lambda: state.ended or state.proved
