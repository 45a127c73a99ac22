"""The steps of `anytime` that prove lower bounds of partitions; the exact program also finds partitions."""

from __future__ import annotations

import time

from ..anytime import Budget
from ..bounds.partitions.node import node_bound
from ..bounds.partitions.prices import price_bound
from ..bounds.partitions.semidefinite import MOST_NODES, PART_NODES, semidefinite_bound
from ..bounds.partitions.simple import simple_bound
from ..progress import report_progress
from .partition_state import PartitionState, stopped
from .programs import bottleneck_bound, bottleneck_guess_bound, exact_program

LARGE_PROGRAM = 100_000
"""Nodes and readers of tensors times blocks above which a program is not even written down."""

WRITING_SECONDS = 2e-4
"""To write down a program, for each node or reader of a tensor in each block; twice what an idle machine takes."""

FLOW_SECONDS = 2e-6
"""Of a flow for the bound from single nodes, for each node and reader of a tensor, roughly, on one core of a server."""

ITERATION_SECONDS = 1.5e-9
"""Of the semidefinite search, times the cube of the nodes, roughly, on one core of a server."""

STEP_SECONDS = 8e-7
"""Of a step of the search for stages that prices need, times the nodes, roughly, on one core of a server."""

LEAST_STEPS = 100_000
"""Fewer of these steps prove nothing that is worth it: on graphs of 150 nodes some 10⁵ to 10⁶ are needed."""

PRICED_NODES = 8
"""Average nodes of a stage up to which prices are searched for: stages of more nodes are too many to look through."""


def by_solver(name: str, state: PartitionState) -> str:
    """Name a bound that rests on the floating-point arithmetic of a solver: the name says which."""
    return f"{name} (solver {state.solver})"


class Formulas:
    """The simple bound, and what single nodes cost with the cheapest set around them."""

    name = "node bound"

    def step(self, state: PartitionState, budget: Budget) -> bool:
        """Both."""
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
    """The semidefinite relaxation, by alternating directions."""

    name = "semidefinite"

    def step(self, state: PartitionState, budget: Budget) -> bool:
        """As many iterations as the budget allows."""
        problem = state.problem
        whole = problem.size <= MOST_NODES
        cube = problem.size**3 if whole else problem.size * PART_NODES[1] ** 2
        each = ITERATION_SECONDS * max(cube, 1)

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
    """Prices of nodes, from the bound known on."""

    name = "prices"

    @staticmethod
    def pays(state: PartitionState, seconds: float) -> bool:
        """Whether so many seconds of work may prove more than is known, where stages have few nodes."""
        size = state.problem.size
        return 0 < size <= PRICED_NODES * state.stages and seconds >= LEAST_STEPS * STEP_SECONDS * size

    def step(self, state: PartitionState, budget: Budget) -> bool:
        """As many steps as the budget allows."""
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
    """The paper's program `bottleneck`: a stage of at least average work."""

    name = "bottleneck"

    def step(self, state: PartitionState, budget: Budget) -> bool:
        """All of it."""
        if can_write(state, 3, budget):
            with budget.clocked():
                found = bottleneck_bound(state.problem, state.stages, solver=state.solver, seconds=budget.seconds)
            budget.too_small = not found.proved
            state.raise_bound(found.bound, by_solver(self.name, state))
        return False


class BottleneckGuess:
    """The paper's programs `bottleneck-guess`: which stage that is."""

    name = "bottleneck-guess"

    def step(self, state: PartitionState, budget: Budget) -> bool:
        """All guesses; of a large graph, not all can even be written down in time, so the clock is looked at between."""
        if can_write(state, 3, budget):
            end = time.monotonic() + 1.5 * budget.seconds
            with budget.clocked():
                found = bottleneck_guess_bound(
                    state.problem,
                    state.stages,
                    solver=state.solver,
                    seconds=budget.seconds,
                    stop=lambda: state.proved or time.monotonic() > end,
                )
            budget.too_small = not found.proved
            state.raise_bound(found.bound, by_solver(self.name, state))
        return False


class ExactProgram:
    """The paper's exact program from the best partition and bound, with a range of stages for each node (`stage_ranges`)."""

    name = "exact program"

    def __init__(self, most: float = float("inf")) -> None:
        self._most = most

    def step(self, state: PartitionState, budget: Budget) -> bool:
        """All of it, where nodes times stages are no more than ``most``."""
        report_progress("integer programs", 3, 4)
        if state.problem.size * state.stages > self._most or not can_write(state, state.stages, budget):
            return False
        with budget.clocked():
            result = exact_program(
                state.problem,
                state.stages,
                solver=state.solver,
                seconds=budget.seconds,
                threads=max(state.threads - 1, 1),
                hint=state.stage_of,
                cutoff=state.cost,
                least=state.bound,
            )
        budget.too_small = not result.proved
        state.offer_partition(result.stage_of)
        state.raise_bound(result.bound, by_solver("exact", state))
        return False


def can_write(state: PartitionState, blocks: int, budget: Budget) -> bool:
    """Whether a program of this many blocks leaves time to solve it; a budget that it would be too late for is too small."""
    readers = sum(len(tensor.readers) for tensor in state.problem.tensors)
    entries = (state.problem.size + readers) * blocks
    if entries > LARGE_PROGRAM:
        return False
    budget.too_small = entries * WRITING_SECONDS >= budget.seconds
    return not budget.too_small
