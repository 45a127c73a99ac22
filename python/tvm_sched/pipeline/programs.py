"""The integer programs of Archer et al. (ICML 2024) for max-throughput partitioning, and their lower bounds.

All three are one program over numbered blocks, Figure 3 of the paper, with some blocks standing for one stage and others
for several. The variables x are eliminated, and branching is on y, as Section 3.1 recommends. Overflow is in the program
without the peak memory of activations, which only lowers it, so that bounds stay bounds.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import timedelta
from itertools import pairwise
from typing import Any

import numpy as np
from ortools.math_opt.python import mathopt
from ortools.util.python.solve_interrupter import SolveInterrupter

from ..errors import InputError
from ..spread import have_workers, spread
from .partition_problem import Integers, PartitionProblem

SOLVERS = {"highs": mathopt.SolverType.HIGHS, "scip": mathopt.SolverType.GSCIP, "gurobi": mathopt.SolverType.GUROBI}

_SAFETY = 1e-6
"""Part of a bound that is given up to the solvers' tolerances."""


@dataclass(frozen=True)
class ProgramResult:
    """What a solver found out about a program.

    Attributes
    ----------
    bound : float
        No partition has a cheaper bottleneck.
    stage_of : array of int or None
        Block of each node in the best solution, where there is one.
    proved : bool
        Whether the program was solved to the end.
    """

    bound: float
    stage_of: Integers | None = None
    proved: bool = False


@dataclass
class BlockProgram:
    """Figure 3 over ``blocks`` blocks: variables y, c and the costs of the blocks, without an objective.

    ``devices`` says how many stages a block stands for, by default one each: parameters overflow what all of them hold.
    """

    problem: PartitionProblem
    blocks: int
    devices: tuple[int, ...] = ()
    model: Any = field(init=False)
    bottleneck: Any = field(init=False)
    y: list[list[Any]] = field(init=False)
    costs: list[Any] = field(init=False)
    works: list[Any] = field(init=False)

    def __post_init__(self) -> None:
        self.model = mathopt.Model(name="max-throughput partitioning")
        self.bottleneck = self.model.add_variable(lb=0, name="bottleneck")
        self.y = [self._completed_by(v) for v in range(self.problem.size)]
        self._dag()
        cuts = [self._cuts(b) for b in range(self.blocks)]
        self.works = [self._weighted(self.problem.work, b) for b in range(self.blocks)]
        self.costs = [self.works[b] + self._transfers(cuts[b]) + self._overflow(b) for b in range(self.blocks)]

    def x(self, v: int, b: int) -> Any:
        """Equation (11): node v is in block b."""
        return self.y[v][b] - (self.y[v][b - 1] if b > 0 else 0)

    def _completed_by(self, v: int) -> list[Any]:
        """Variables y of a node: in block b or earlier; monotone, and 1 in the last."""
        y: list[Any] = [self.model.add_binary_variable(name=f"y_{v}_{b}") for b in range(self.blocks - 1)]
        for before, after in pairwise(y):
            self.model.add_linear_constraint(before <= after)
        return [*y, 1]

    def _dag(self) -> None:
        """Equation (8): no edge leads to an earlier block."""
        for u, v in self.problem.edges:
            for b in range(self.blocks - 1):
                self.model.add_linear_constraint(self.y[u][b] >= self.y[v][b])

    def _cuts(self, b: int) -> list[Any]:
        """Equations (9) and (10): whether each tensor enters or leaves block b."""
        cuts: list[Any] = []
        for tensor in self.problem.tensors:
            if tensor.transfer == 0 or (not tensor.readers and not tensor.leaves):
                cuts.append(0)
                continue
            cut = self.model.add_variable(lb=0, ub=1)
            u = tensor.producer
            for v in tensor.readers:
                if u < 0:  # from outside, into each block that reads it
                    self.model.add_linear_constraint(cut >= self.x(v, b))
                    continue
                if b > 0:
                    self.model.add_linear_constraint(cut >= self.y[u][b - 1] + self.x(v, b) - 1)
                if b < self.blocks - 1:
                    self.model.add_linear_constraint(cut >= self.x(u, b) - self.y[v][b])
            if tensor.leaves:
                self.model.add_linear_constraint(cut >= self.x(u, b))
            cuts.append(cut)
        return cuts

    def _transfers(self, cuts: list[Any]) -> Any:
        tensors = zip(self.problem.tensors, cuts, strict=True)
        return mathopt.fast_sum(tensor.transfer * cut for tensor, cut in tensors)

    def _weighted(self, weights: Any, b: int) -> Any:
        return mathopt.fast_sum(float(weights[v]) * self.x(v, b) for v in range(self.problem.size) if weights[v])

    def _overflow(self, b: int) -> Any:
        """Equation (2) without peak memory."""
        if not np.isfinite(self.problem.memory) or self.problem.overflow_time == 0:
            return 0
        count = self.devices[b] if self.devices else 1
        overflow = self.model.add_variable(lb=0)
        self.model.add_linear_constraint(
            overflow >= self._weighted(self.problem.parameters, b) - count * self.problem.memory
        )
        return self.problem.overflow_time * overflow

    def restrict(self, first: Integers, last: Integers) -> None:
        """Allow each node the blocks from ``first`` to ``last`` only."""
        for v, y in enumerate(self.y):
            for b, done in enumerate(y[:-1]):
                if b < first[v]:
                    done.upper_bound = 0
                elif b >= last[v]:
                    done.lower_bound = 1

    def solve(self, solver: str, seconds: float, threads: int, hint: Integers | None = None) -> ProgramResult:
        """Minimise the bottleneck."""
        self.model.minimize(self.bottleneck)
        parameters = mathopt.SolveParameters(
            time_limit=timedelta(seconds=max(seconds, 0.01)),
            threads=None if solver == "highs" else threads,  # MathOpt runs HiGHS on one thread
            relative_gap_tolerance=1e-6,
        )
        hints: list[Any] = []
        if hint is not None:
            values = {y: float(hint[v] <= b) for v in range(self.problem.size) for b, y in enumerate(self.y[v][:-1])}
            hints.append(mathopt.SolutionHint(variable_values=values))
        model_parameters = mathopt.ModelSolveParameters(solution_hints=hints)
        return self._result(_interruptible(self.model, _solver(solver), parameters, model_parameters))

    def _result(self, result: Any) -> ProgramResult:
        reason = result.termination.reason
        bound = result.termination.objective_bounds.dual_bound
        if reason in (mathopt.TerminationReason.INFEASIBLE, mathopt.TerminationReason.INFEASIBLE_OR_UNBOUNDED):
            return ProgramResult(float("inf"), proved=True)
        stage_of = None
        if result.has_primal_feasible_solution():
            values = result.variable_values()
            stage_of = np.array(
                [sum(values[y] < 0.5 for y in self.y[v][:-1]) for v in range(self.problem.size)],
                dtype=np.int64,
            )
        proved = reason is mathopt.TerminationReason.OPTIMAL
        return ProgramResult(max(bound * (1 - _SAFETY), 0.0) if np.isfinite(bound) else 0.0, stage_of, proved)


def simple_bound(problem: PartitionProblem, stages: int) -> float:
    """Lemma 3.3: some stage has the largest node's work, and some stage the average work."""
    return max(float(problem.work.max(initial=0)), float(problem.work.sum()) / stages)


def bottleneck_bound(
    problem: PartitionProblem, stages: int, *, solver: str = "highs", seconds: float = 60, threads: int = 1
) -> ProgramResult:
    """Section 3.2: a stage with at least the simple bound's work, all earlier and all later stages free of charge.

    The paper prints the objective as the middle block's cost; overflow and transfers of that block are in it.
    """
    program = BlockProgram(problem, 3)
    program.model.add_linear_constraint(program.works[1] >= simple_bound(problem, stages))
    program.model.add_linear_constraint(program.bottleneck >= program.costs[1])
    return _no_stages(program.solve(solver, seconds, threads))


def bottleneck_guess_bound(
    problem: PartitionProblem,
    stages: int,
    *,
    solver: str = "highs",
    seconds: float = 60,
    threads: int = 1,
    stop: Callable[[], bool] = lambda: False,
) -> ProgramResult:
    """Section 3.3: guess which stage has the simple bound's work; the least bound of all guesses holds.

    Guesses share the time equally; what a guess leaves over, the later ones get. Where there are workers
    (`tvm_sched.spread`), each guess is a part and has all the time; the bound is the same unless time ends one.
    """
    if have_workers():
        parts = [(problem, stages, j, solver, seconds, threads) for j in range(stages)]
        results = spread(_solve_guess, parts)
        bound = max(min(result.bound for result in results), simple_bound(problem, stages))
        return ProgramResult(bound, proved=all(result.proved for result in results))
    least, proved = float("inf"), True
    left = seconds
    for j in range(stages):
        if stop():
            return ProgramResult(simple_bound(problem, stages))
        started = time.monotonic()
        result = _solve_guess(problem, stages, j, solver, left / (stages - j), threads)
        left = max(left - (time.monotonic() - started), 0.0)
        least, proved = min(least, result.bound), proved and result.proved
        if least <= simple_bound(problem, stages):
            break
    return ProgramResult(max(least, simple_bound(problem, stages)), proved=proved)


def _solve_guess(
    problem: PartitionProblem, stages: int, j: int, solver: str, seconds: float, threads: int
) -> ProgramResult:
    return _guess(problem, stages, j).solve(solver, seconds, threads)


def _guess(problem: PartitionProblem, stages: int, j: int) -> BlockProgram:
    program = BlockProgram(problem, 3, (j, 1, stages - 1 - j))
    model = program.model
    model.add_linear_constraint(program.works[1] >= simple_bound(problem, stages))
    model.add_linear_constraint(program.bottleneck >= program.costs[1])
    for block, count in ((0, j), (2, stages - 1 - j)):
        if count:
            model.add_linear_constraint(count * program.bottleneck >= program.costs[block])
        else:
            for v in range(problem.size):
                model.add_linear_constraint(program.x(v, block) == 0)
    return program


def exact_program(
    problem: PartitionProblem,
    stages: int,
    *,
    solver: str = "highs",
    seconds: float = 60,
    threads: int = 1,
    hint: Integers | None = None,
    cutoff: float = math.inf,
    least: float = 0.0,
) -> ProgramResult:
    """Section 3.1, equations (5) to (12), and windows of stages that are not in the paper.

    Parameters
    ----------
    hint : array of int, optional
        A partition to start from: the stage of each node.
    cutoff : float
        Cost of a partition. Cheaper ones only are looked for, in which each node has a window of stages (`windows`);
        where there are none, the bound is the cutoff.
    least : float
        A bound known before.
    """
    program = BlockProgram(problem, stages)
    for cost in program.costs:
        program.model.add_linear_constraint(program.bottleneck >= cost)
    program.bottleneck.lower_bound = max(simple_bound(problem, stages), least)
    if math.isfinite(cutoff):
        first, last = windows(problem, stages, cutoff)
        if (first > last).any():
            return ProgramResult(cutoff, proved=True)
        program.restrict(first, last)
    result = program.solve(solver, seconds, threads, hint)
    bound = min(max(result.bound, simple_bound(problem, stages), least), cutoff)
    return ProgramResult(bound, result.stage_of, result.proved)


def windows(problem: PartitionProblem, stages: int, cutoff: float) -> tuple[Integers, Integers]:
    """First and last stage of each node in any partition that costs at most ``cutoff``.

    All that a node depends on runs in its stage or earlier ones, and there is room for ``cutoff`` of work in each.
    """
    related = np.eye(problem.size, dtype=bool)  # [v, u]: u is v or before it
    order = problem.kahn(np.zeros(problem.size))
    before: list[list[int]] = [[] for _ in range(problem.size)]
    for u, v in problem.edges:
        before[v].append(u)
    for v in order:
        for u in before[v]:
            related[v] |= related[u]
    work, room = problem.work, max(cutoff, 1e-300) * (1 + 1e-9)
    first = np.maximum(np.ceil(related @ work / room) - 1, 0)
    last = stages - np.maximum(np.ceil(related.T @ work / room), 1)
    return first.astype(np.int64), last.astype(np.int64)


def _no_stages(result: ProgramResult) -> ProgramResult:
    """The blocks of a relaxation are no stages."""
    return ProgramResult(result.bound, None, result.proved)


def _solver(name: str) -> Any:
    if name not in SOLVERS:
        raise InputError(f"solver {name!r} is not known; allowed are {', '.join(SOLVERS)}")
    return SOLVERS[name]


def _interruptible(model: Any, solver: Any, parameters: Any, model_parameters: Any) -> Any:
    """Solve in a thread, so that Ctrl-C reaches the caller, who stops the solver."""
    interrupter = SolveInterrupter()
    results: list[Any] = []
    errors: list[BaseException] = []

    def work() -> None:
        try:
            results.append(
                mathopt.solve(model, solver, params=parameters, model_params=model_parameters, interrupter=interrupter)
            )
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=work, name="solver")
    thread.start()
    try:
        while thread.is_alive():
            thread.join(0.05)
    except BaseException:
        interrupter.interrupt()
        thread.join()
        raise
    if errors:
        raise errors[0]
    return results[0]
