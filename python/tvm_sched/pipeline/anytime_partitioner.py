"""Partitioner `anytime`: searches for partitions and relaxations for bounds, within one budget."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor, wait

import msgspec

from ..anytime import Budget, Status, Turn, budget_of, improve
from ..errors import InputError, require_at_least
from ..problem.partition_problem import PartitionProblem
from .bound_steps import Bottleneck, BottleneckGuess, ExactProgram, Formulas, Prices, Semidefinite
from .partition_state import MOST_MOVES, Annealing, Ideals, Neighbours, PartitionState
from .partitioner_registry import Partition, register

TIME_LIMIT = 60.0
"""Seconds, where neither time nor work is limited."""

WORK_SHARE = 0.9
"""Part of the time limit for which there is work."""

SMALL_PROGRAM = 200
"""Nodes times stages up to which the exact program is tried before anything else."""

PRICED_SHARE = 0.6
"""Part of the long searches' time for bounds that is left to prices where they pay: after the semidefinite bound."""

FIRST_SHARE = 0.4
"""Share of the work for what may prove a small graph before the long searches begin."""


class AnytimeOptions(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Options of `anytime`.

    Parameters
    ----------
    time_limit : float, optional
        Seconds by the clock, after which the best so far is the answer; 60, or no limit where ``work`` is given.
    work : float, optional
        Seconds of work on an idle core. Then the integer programs, which only the clock can limit, take no part, and the
        same work and seed give the same partition and bound again, unless a time limit ends the search first.
    seed : int
    threads : int
        0: all cores. The answer does not depend on it.
    solver : {"highs", "scip", "gurobi"}
        Of the integer programs.
    moves : int
        Most moves of an annealing run.
    """

    time_limit: float | None = None
    work: float | None = None
    seed: int = 0
    threads: int = 0
    solver: str = "highs"
    moves: int = MOST_MOVES

    def __post_init__(self) -> None:
        require_at_least(self, seed=0, threads=0, moves=0)
        if self.time_limit is not None and not self.time_limit > 0:
            raise InputError(f"time_limit is {self.time_limit}; a number of seconds above 0 is allowed")
        self.budget()

    def budget(self) -> Budget:
        """The budget, counted from now."""
        return budget_of(self.time_limit, self.work, TIME_LIMIT, WORK_SHARE)


@register("anytime", options=AnytimeOptions, answers_interrupt=True)
def anytime(problem: PartitionProblem, stages: int, options: AnytimeOptions) -> Partition:
    """The best partition that searches and relaxations find together within a budget, with the strongest bound.

    Where the graph has few ideals, the program over them comes first, and nothing else where it proves its answer. Then
    bounds from formulas, small programs; annealing, neighbouring stages cut anew, and the integer programs of Archer et al.
    (ICML 2024), while the semidefinite bound has a thread of its own, and after it, where stages have few nodes, the bound
    from prices.
    """
    budget, state = options.budget(), PartitionState(problem, stages, options.seed, options.threads, options.solver)
    counted = options.work is not None
    status = improve(state, first_turns(counted), budget.part(FIRST_SHARE * budget.work))
    if stages > 1 and status != "interrupted" and not state.proved:
        beside = not counted and state.threads > 1
        searches = turns(counted, beside, options.moves, Prices.pays(state, PRICED_SHARE * budget.left))
        later = _beside(state, searches, budget) if beside else improve(state, searches, budget)
        status = status if later == "no better found" else later  # the first ones may have been cut off
    found = state.found
    return Partition(found.stage_of, state.bound, state.bound_name, status=status, order=found.order)


def first_turns(counted: bool) -> list[Turn[PartitionState]]:
    """What is there in no time."""
    chosen = [Turn(Ideals(), 0.2), Turn(Formulas(), 0.1)]
    return chosen if counted else [*chosen, Turn(ExactProgram(SMALL_PROGRAM), 0.3)]


def turns(counted: bool, beside: bool, moves: int, priced: bool = False) -> list[Turn[PartitionState]]:
    """The long searches; bounds without a solver take their turns where they have no thread of their own."""
    found: list[Turn[PartitionState]] = [] if beside else [Turn(Semidefinite(), 1.0)]
    found.append(Turn(Annealing(moves), 0.35))
    if not counted:
        found += [
            Turn(Neighbours(), 0.22),
            Turn(Bottleneck(), 0.06),
            Turn(BottleneckGuess(), 0.12),
            Turn(ExactProgram(), 0.25),
        ]
    if priced and not beside:
        found.append(Turn(Prices(), 1.0))
    return found


def _beside(state: PartitionState, searches: Sequence[Turn[PartitionState]], budget: Budget) -> Status:
    """Let bounds without a solver work on one thread while the other improvers take their turns."""
    with ThreadPoolExecutor(1) as pool:
        own = Budget(deadline=budget.deadline)
        running = pool.submit(_bounds, state, own)
        try:
            status = improve(state, searches, budget)
            if status != "interrupted":
                wait([running])
        except KeyboardInterrupt:
            status = "interrupted"
        finally:
            state.ended = True
        running.result()  # a fault of the bound is a fault, interrupted or not
    if status == "interrupted" or state.proved:
        return status
    return "time limit" if own.too_small else status


def _bounds(state: PartitionState, budget: Budget) -> None:
    """The semidefinite bound; where stages hold few nodes, prices after a part of the time."""
    if not Prices.pays(state, PRICED_SHARE * budget.seconds):
        Semidefinite().step(state, budget)
        return
    first = Budget(deadline=budget.deadline - PRICED_SHARE * budget.seconds)
    Semidefinite().step(state, first)
    Prices().step(state, budget)
    budget.too_small |= first.too_small
