"""Partitioner `anytime`: search for partitions, and relaxations for bounds, within one budget."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor, wait

import msgspec

from tvm_sched_runtime.checks import require_at_least, require_seed
from tvm_sched_runtime.errors import InputError
from tvm_sched_runtime.problem.partition_problem import PartitionProblem
from tvm_sched_runtime.search_budget import Budget, Status, Turn, budget_of, improve

from .bound_steps import Bottleneck, BottleneckGuess, ExactProgram, Formulas, Prices, Semidefinite
from .partition_state import MOST_MOVES, Annealing, Ideals, Neighbours, PartitionState
from .partitioner_registry import Partition, register

TIME_LIMIT = 60.0
"""Default time limit in seconds, if neither time nor work is limited."""

WORK_SHARE = 0.9
"""Fraction of the time limit that is counted as work."""

SMALL_PROGRAM = 200
"""Nodes times stages up to which the exact program is tried before anything else."""

PRICED_SHARE = 0.6
"""Fraction of the long searches' time for the bound from prices, after the semidefinite bound."""

FIRST_SHARE = 0.4
"""Fraction of the work for the methods that may prove a small graph before the long searches begin."""


class AnytimeOptions(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Options of `anytime`.

    Parameters
    ----------
    time_limit : float, optional
        Wall-clock seconds; default: 60, or no limit with ``work``.
    work : float, optional
        Seconds of work on an idle core. The integer programs, which only the clock can limit, are then left out, and the
        same work and seed give the same partition and bound, unless a time limit ends the search first.
    seed : int
    threads : int
        0: all cores. The answer does not depend on it.
    solver : {"highs", "scip", "gurobi"}
        Solver of the integer programs.
    moves : int
        Largest number of moves of an annealing run.
    """

    time_limit: float | None = None
    work: float | None = None
    seed: int = 0
    threads: int = 0
    solver: str = "highs"
    moves: int = MOST_MOVES

    def __post_init__(self) -> None:
        require_at_least(self, threads=0, moves=0)
        require_seed(self.seed)
        if self.time_limit is not None and not self.time_limit > 0:
            raise InputError(f"time_limit is {self.time_limit}; a number of seconds above 0 is allowed")
        self.budget()

    def budget(self) -> Budget:
        """Return the budget, which starts now."""
        return budget_of(self.time_limit, self.work, TIME_LIMIT, WORK_SHARE)


@register("anytime", options=AnytimeOptions, answers_interrupt=True)
def anytime(problem: PartitionProblem, stages: int, options: AnytimeOptions) -> Partition:
    """Find the best partition and the strongest bound that searches and relaxations give within a budget.

    If the graph has few ideals, the program over ideals runs first; if it proves its answer, nothing else runs. Then come
    bounds from formulas and small programs. The long searches are annealing, cutting neighbouring stages again, and the
    integer programs of Archer et al. (ICML 2024). The semidefinite bound runs beside them on a thread of its own; the
    bound from prices follows it if stages have few nodes.
    """
    budget, state = options.budget(), PartitionState(problem, stages, options.seed, options.threads, options.solver)
    counted = options.work is not None
    status = improve(state, first_turns(counted), budget.part(FIRST_SHARE * budget.work))
    if stages > 1 and status != "interrupted" and not state.proved:
        beside = not counted and state.threads > 1
        searches = turns(counted, beside, options.moves, Prices.pays(state, PRICED_SHARE * budget.left))
        later = _beside(state, searches, budget) if beside else improve(state, searches, budget)
        status = status if later == "no better found" else later  # the first methods may have been cut off
    best = state.incumbent
    return Partition(best.stage_of, state.bound, state.bound_name, status=status, order=best.order)


def first_turns(counted: bool) -> list[Turn[PartitionState]]:
    """Return the quick methods."""
    chosen = [Turn(Ideals(), 0.2), Turn(Formulas(), 0.1)]
    return chosen if counted else [*chosen, Turn(ExactProgram(SMALL_PROGRAM), 0.3)]


def turns(counted: bool, beside: bool, moves: int, priced: bool = False) -> list[Turn[PartitionState]]:
    """Return the long searches, with the bounds without a solver unless these run ``beside`` on a thread of their own."""
    searches: list[Turn[PartitionState]] = [] if beside else [Turn(Semidefinite(), 1.0)]
    searches.append(Turn(Annealing(moves), 0.35))
    if not counted:
        searches += [Turn(Neighbours(), 0.22), Turn(Bottleneck(), 0.06), Turn(BottleneckGuess(), 0.12)]
        searches.append(Turn(ExactProgram(), 0.25))
    if priced and not beside:
        searches.append(Turn(Prices(), 1.0))
    return searches


def _beside(state: PartitionState, searches: Sequence[Turn[PartitionState]], budget: Budget) -> Status:
    """Run the bounds without a solver on one thread while the other improvers take their turns."""
    with ThreadPoolExecutor(1) as pool:
        own = Budget(deadline=budget.deadline)
        running = pool.submit(compute_bounds, state, own)
        try:
            status = improve(state, searches, budget)
            if status != "interrupted":
                wait([running])
        except KeyboardInterrupt:
            status = "interrupted"
        finally:
            state.ended = True
        running.result()  # raises an error of the bound, interrupted or not
    if status == "interrupted" or state.proved:
        return status
    return "time limit" if own.too_small else status


def compute_bounds(state: PartitionState, budget: Budget) -> None:
    """Compute the semidefinite bound and, if stages hold few nodes, the bound from prices after it."""
    if not Prices.pays(state, PRICED_SHARE * budget.seconds):
        Semidefinite().step(state, budget)
        return
    first = Budget(deadline=budget.deadline - PRICED_SHARE * budget.seconds)
    Semidefinite().step(state, first)
    Prices().step(state, budget)
    budget.too_small |= first.too_small
