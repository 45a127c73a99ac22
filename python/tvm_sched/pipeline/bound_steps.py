"""The steps of `anytime` that prove lower bounds of partitions; the exact program also finds partitions."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial

from tvm_sched_runtime.search_budget import Budget, OutOfTime, ending_at

from ..bounds.partitions.node import node_bound
from ..bounds.partitions.prices import price_bound
from ..bounds.partitions.semidefinite import MOST_NODES, PART_NODES, semidefinite_bound
from ..bounds.partitions.simple import simple_bound
from ..progress import report_progress
from .integer_programs import ProgramResult, bottleneck_bound, bottleneck_guess_bound, exact_program
from .partition_state import PartitionState, stopped

LARGE_PROGRAM = 100_000
"""Largest product of blocks and (nodes + readers of tensors) for which an integer program is built."""

WRITING_SECONDS = 2e-4
"""Seconds to build a program, for each node and reader of a tensor in each block; twice the time of an idle machine."""

FLOW_SECONDS = 2e-6
"""Approximate seconds of a flow for the bound `node`, for each node and reader, on one core of a server."""

ITERATION_SECONDS = 1.5e-9
"""Approximate seconds of an iteration of the semidefinite search, over nodes³, on one core of a server."""

LEAST_ITERATION_SECONDS = 1e-4
"""Approximate seconds of an iteration on the smallest graphs."""

STEP_SECONDS = 8e-7
"""Approximate seconds of a step of branch and bound for the bound `prices`, over nodes, on one core of a server."""

LEAST_STEPS = 100_000
"""Least number of these steps worth starting with; graphs of 150 nodes need about 10⁵ to 10⁶."""

PRICED_NODES = 8
"""Largest average number of nodes of a stage for which the bound `prices` is tried."""


def by_solver(name: str, state: PartitionState) -> str:
    """Name a bound that rests on the floating-point arithmetic of a solver: the name says which."""
    return f"{name} (solver {state.solver})"


class Formulas:
    """The bounds `simple` and `node`."""

    name = "node bound"

    def step(self, state: PartitionState, budget: Budget) -> bool:
        """Compute both."""
        state.raise_bound(simple_bound(state.problem, state.stages), "simple")
        if not state.proved:
            report_progress("bounds from single nodes", 1, 4)
            flow = FLOW_SECONDS * (state.problem.size + sum(len(t.readers) for t in state.problem.tensors))

            def stop() -> bool:
                budget.spend(flow)
                budget.too_small |= budget.over
                return budget.over

            state.raise_bound(node_bound(state.problem, stop) * (1 - 1e-9), "node")
        return False


class Semidefinite:
    """The bound `semidefinite`."""

    name = "semidefinite"

    def step(self, state: PartitionState, budget: Budget) -> bool:
        """Run as many iterations as the budget allows."""
        problem = state.problem
        whole = problem.size <= MOST_NODES
        cube = problem.size**3 if whole else problem.size * PART_NODES[1] ** 2
        each = max(ITERATION_SECONDS * cube, LEAST_ITERATION_SECONDS)

        def watch(bound: float) -> bool:
            state.raise_bound(bound, "semidefinite")
            return stopped(state)()

        semidefinite_bound(
            problem,
            state.stages,
            cutoff=state.cost,
            seconds=max(budget.deadline - time.monotonic(), 0.01),
            iterations=int(min(budget.left / each, 1e6)),
            watch=watch,
            stop=stopped(state),
            order=problem.kahn(-state.stage_of),
        )
        budget.spend(budget.left)
        budget.too_small = not stopped(state)()  # iterations have no end but the proof
        return False


class Prices:
    """The bound `prices`."""

    name = "prices"

    @staticmethod
    def pays(state: PartitionState, seconds: float) -> bool:
        """Return whether prices may raise the bound: stages have few nodes, and there is time for enough steps."""
        size = state.problem.size
        return 0 < size <= PRICED_NODES * state.stages and seconds >= LEAST_STEPS * STEP_SECONDS * size

    def step(self, state: PartitionState, budget: Budget) -> bool:
        """Run as many steps as the budget allows."""
        each = STEP_SECONDS * state.problem.size
        steps = int(min(budget.left / each, 1e12))

        def watch(bound: float) -> bool:
            state.raise_bound(bound * (1 - 1e-9), "prices")
            return stopped(state)()

        def seconds() -> float:
            return 0.0 if stopped(state)() else budget.deadline - time.monotonic()

        taken = price_bound(
            state.problem,
            state.stages,
            bound=state.bound,
            cutoff=state.cost,
            steps=steps,
            watch=watch,
            seconds=seconds,
        )[1]
        budget.spend(taken * each)
        budget.too_small = not state.proved and (taken >= steps or budget.late)
        return False


class Bottleneck:
    """The bound `bottleneck`, an integer program."""

    name = "bottleneck"

    def step(self, state: PartitionState, budget: Budget) -> bool:
        """Solve the program."""
        if can_write(state, 3, budget):
            solve_program(state, budget, self.name, bottleneck_bound)
        return False


class BottleneckGuess:
    """The bound `bottleneck-guess`, integer programs."""

    name = "bottleneck-guess"

    def step(self, state: PartitionState, budget: Budget) -> bool:
        """Solve all guesses; large graphs take long to build, so the clock is checked between guesses."""
        if can_write(state, 3, budget):
            end = time.monotonic() + 1.5 * budget.seconds
            guess = partial(bottleneck_guess_bound, stop=lambda: state.proved or time.monotonic() > end)
            solve_program(state, budget, self.name, guess)
        return False


class ExactProgram:
    """The paper's exact program from the best partition and bound, with a range of stages for each node (`stage_ranges`)."""

    name = "exact program"

    def __init__(self, most: float = float("inf")) -> None:
        self._most = most

    def step(self, state: PartitionState, budget: Budget) -> bool:
        """Solve the program if nodes times stages are at most ``most``."""
        report_progress("integer programs", 3, 4)
        if state.problem.size * state.stages > self._most or not can_write(state, state.stages, budget):
            return False
        threads = max(state.threads - 1, 1)
        program = partial(exact_program, threads=threads, hint=state.stage_of, cutoff=state.cost, least=state.bound)
        state.offer_partition(solve_program(state, budget, "exact", program).stage_of)
        return False


def solve_program(
    state: PartitionState, budget: Budget, name: str, program: Callable[..., ProgramResult]
) -> ProgramResult:
    """Solve a program in the budget's time, and take its bound, which gets this name."""
    with budget.clocked(), ending_at(budget.deadline):
        try:
            result = program(state.problem, state.stages, solver=state.solver, seconds=budget.seconds)
        except OutOfTime:
            result = ProgramResult(0.0)
    budget.too_small = not result.proved
    state.raise_bound(result.bound, by_solver(name, state))
    return result


def can_write(state: PartitionState, blocks: int, budget: Budget) -> bool:
    """Return whether a program of this many blocks can be built with time left to solve it."""
    readers = sum(len(tensor.readers) for tensor in state.problem.tensors)
    entries = (state.problem.size + readers) * blocks
    if entries > LARGE_PROGRAM:
        return False
    budget.too_small = entries * WRITING_SECONDS >= budget.seconds
    return not budget.too_small
