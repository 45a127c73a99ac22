"""Figure 3 of Archer et al. (ICML 2024) over numbered blocks, for the solvers of OR-Tools MathOpt.

The variables x are eliminated, and branching is on y, as Section 3.1 recommends. Overflow leaves out the peak memory of
activations, which only lowers the cost, so bounds stay bounds. Import this module only to solve a program: OR-Tools takes
two seconds.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from datetime import timedelta
from itertools import pairwise
from typing import Any

import numpy as np
from ortools.math_opt.python import mathopt
from ortools.util.python.solve_interrupter import SolveInterrupter

from tvm_sched_runtime.problem.partition_problem import Integers, PartitionProblem

from ..schedulers.common.milp import limited_model, solver_type
from ..schedulers.common.solver_runs import solve_in_thread, stdout_aside
from .integer_programs import ProgramResult

_SAFETY = 1e-6
"""Fraction subtracted from a bound for the solvers' tolerances."""


@dataclass
class BlockProgram:
    """Figure 3 over ``blocks`` blocks: variables y, c and the costs of the blocks, without an objective.

    ``devices`` is the number of stages of each block, by default 1; a block has the memory of all its stages.
    """

    problem: PartitionProblem
    blocks: int
    devices: tuple[int, ...] = ()
    model: Any = field(init=False)
    bottleneck: Any = field(init=False)
    y: list[list[Any]] = field(init=False)
    costs: list[Any] = field(init=False)
    works: list[Any] = field(init=False)
    _begun: float = field(init=False)

    def __post_init__(self) -> None:
        self._begun = time.monotonic()
        self.model = limited_model()
        self.bottleneck = self.model.add_variable(lb=0, name="bottleneck")
        self.y = [self._completed_by(v) for v in range(self.problem.size)]
        self._dag()
        cuts = [self._cuts(b) for b in range(self.blocks)]
        self.works = [self._weighted(self.problem.work, b) for b in range(self.blocks)]
        self.costs = [self.works[b] + self._transfers(cuts[b]) + self._overflow(b) for b in range(self.blocks)]

    def x(self, v: int, b: int) -> Any:
        """Return equation (11): 1 if node v is in block b."""
        return self.y[v][b] - (self.y[v][b - 1] if b > 0 else 0)

    def _completed_by(self, v: int) -> list[Any]:
        """Add a node's variables y: whether it is in block b or earlier; monotone, and 1 in the last block."""
        y: list[Any] = [self.model.add_binary_variable(name=f"y_{v}_{b}") for b in range(self.blocks - 1)]
        for before, after in pairwise(y):
            self.model.add_linear_constraint(before <= after)
        return [*y, 1]

    def _dag(self) -> None:
        """Add equation (8): no edge leads to an earlier block."""
        for u, v in self.problem.edges:
            for b in range(self.blocks - 1):
                self.model.add_linear_constraint(self.y[u][b] >= self.y[v][b])

    def _cuts(self, b: int) -> list[Any]:
        """Add equations (9) and (10): whether each tensor enters or leaves block b."""
        cuts: list[Any] = []
        for tensor in self.problem.tensors:
            if tensor.transfer == 0 or (not tensor.readers and not tensor.leaves):
                cuts.append(0)
                continue
            cut = self.model.add_variable(lb=0, ub=1)
            u = tensor.producer
            for v in tensor.readers:
                if u < 0:  # an outside tensor enters each block that reads it
                    self.model.add_linear_constraint(cut >= self.x(v, b))
                    continue
                if b > 0:
                    self.model.add_linear_constraint(cut >= self.y[u][b - 1] + self.x(v, b) - 1)
                if b < self.blocks - 1:
                    self.model.add_linear_constraint(cut >= self.x(u, b) - self.y[v][b])
            if tensor.leaves and u >= 0:
                self.model.add_linear_constraint(cut >= self.x(u, b))
            cuts.append(cut)
        return cuts

    def _transfers(self, cuts: list[Any]) -> Any:
        tensors = zip(self.problem.tensors, cuts, strict=True)
        return mathopt.fast_sum(tensor.transfer * cut for tensor, cut in tensors)

    def _weighted(self, weights: Any, b: int) -> Any:
        return mathopt.fast_sum(float(weights[v]) * self.x(v, b) for v in range(self.problem.size) if weights[v])

    def _overflow(self, b: int) -> Any:
        """Add equation (2) without peak memory."""
        if not np.isfinite(self.problem.memory) or self.problem.overflow_time == 0:
            return 0
        count = self.devices[b] if self.devices else 1
        overflow = self.model.add_variable(lb=0)
        self.model.add_linear_constraint(
            overflow >= self._weighted(self.problem.parameters, b) - count * self.problem.memory
        )
        return self.problem.overflow_time * overflow

    def restrict(self, first: Integers, last: Integers) -> None:
        """Allow each node only the blocks from ``first`` to ``last``."""
        for v, y in enumerate(self.y):
            for b, done in enumerate(y[:-1]):
                if b < first[v]:
                    done.upper_bound = 0
                elif b >= last[v]:
                    done.lower_bound = 1

    def solve(self, solver: str, seconds: float, threads: int, hint: Integers | None = None) -> ProgramResult:
        """Minimise the bottleneck; ``seconds`` include the time to build the program."""
        seconds -= time.monotonic() - self._begun
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
        interrupter, method = SolveInterrupter(), solver_type(solver)

        def solve() -> mathopt.SolveResult:
            with stdout_aside():
                return mathopt.solve(
                    self.model, method, params=parameters, model_params=model_parameters, interrupter=interrupter
                )

        return self._result(solve_in_thread(solve, interrupter.interrupt))

    def _result(self, result: Any) -> ProgramResult:
        reason = result.termination.reason
        bound = result.termination.objective_bounds.dual_bound
        if reason in (mathopt.TerminationReason.INFEASIBLE, mathopt.TerminationReason.INFEASIBLE_OR_UNBOUNDED):
            return ProgramResult(float("inf"), proved=True)
        stage_of = None
        if result.has_primal_feasible_solution():
            values = result.variable_values()
            blocks = [sum(values[y] < 0.5 for y in self.y[v][:-1]) for v in range(self.problem.size)]
            stage_of = np.array(blocks, dtype=np.int64)
        proved = reason is mathopt.TerminationReason.OPTIMAL
        return ProgramResult(max(bound * (1 - _SAFETY), 0.0) if np.isfinite(bound) else 0.0, stage_of, proved)
