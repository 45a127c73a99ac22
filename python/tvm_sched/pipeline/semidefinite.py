"""`semidefinite`: a lower bound from a doubly nonnegative relaxation of the partition matrix.

Graph partitioning has had such bounds for long, e.g. Wolkowicz and Zhao, "Semidefinite programming relaxations for the
graph partitioning problem" (1999); here they are for max-throughput partitioning. See "Bounds of pipelines" in
``docs/model.md`` for the proof.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from .minorants import Linear, Rows, stage_costs, total_transfers
from .partition_problem import Floats, PartitionProblem

MOST_NODES = 1000
"""Above, an eigendecomposition takes so long that too few iterations fit into a minute."""

_STEP = 1.6
"""Of the multipliers, relative to the penalty."""
_LOOK_EVERY = 50
"""Iterations between looks at bound, clock and linearisations."""
_MIX = 0.5
"""Share of new linearisations at each look."""
_SETTLE = 400
"""Iterations after which the penalty is left alone."""
_SAFETY = 1e-9
"""Part of the sum of all times that is given up to rounding."""


@dataclass(frozen=True)
class DualPoint:
    """Multipliers that prove a bound: of the diagonal, of the stages' costs, of nonnegative entries."""

    diagonal: Floats
    stages: Floats
    entries: Floats


def semidefinite_bound(
    problem: PartitionProblem,
    stages: int,
    *,
    seconds: float = math.inf,
    iterations: int = 4000,
    stop: Callable[[], bool] = lambda: False,
) -> float:
    """No partition into at most ``stages`` stages has a cheaper bottleneck; 0 where the graph is too large to try.

    O(nodes³) for each iteration; any number of them gives a bound. The answer depends on the machine where ``seconds``
    end the search.
    """
    if problem.size == 0 or problem.size > MOST_NODES or stages < 2:
        return 0.0
    total = float(problem.work.sum()) + sum(tensor.transfer for tensor in problem.tensors)
    if total == 0:
        return 0.0
    end = time.monotonic() + seconds
    relaxation = _Relaxation(problem, stages)
    search = _Search(relaxation)
    best = 0.0
    for _ in range(max(iterations // _LOOK_EVERY, 1)):
        for _ in range(_LOOK_EVERY):
            search.iterate()
        best = max(best, relaxation.bound(search.dual()) - _SAFETY * total)
        if stop() or time.monotonic() > end:
            break
        search.linearise(best)
    return best


class _Relaxation:
    """The relaxation with its present linearisations; times are in units of the average node's."""

    def __init__(self, problem: PartitionProblem, stages: int) -> None:
        self.problem, self.stages = problem, stages
        n = problem.size
        self.even = np.full((n, n), 1 / stages)
        start = np.maximum(self.even, np.eye(n))
        total = float(problem.work.sum()) + sum(tensor.transfer for tensor in problem.tensors)
        self.unit = total / n
        self.transfers: Linear = total_transfers(problem, start)
        self.costs: Rows = stage_costs(problem, start)

    def linearise(self, matrix: Floats) -> None:
        """Mixes in the linear bounds that are tight at a matrix."""
        self.transfers = self.transfers.mix(total_transfers(self.problem, matrix), _MIX)
        self.costs = self.costs.mix(stage_costs(self.problem, matrix), _MIX)

    @property
    def fixed(self) -> float:
        """What all stages together cost in any partition, but for transfers."""
        problem = self.problem
        over = 0.0
        if np.isfinite(problem.memory):
            over = max(float(problem.parameters.sum()) - self.stages * problem.memory, 0.0) * problem.overflow_time
        return float(problem.work.sum()) + over

    def slack(self, dual: DualPoint) -> Floats:
        """The matrix whose product with a partition matrix is what the multipliers leave over."""
        rows = dual.stages[:, None] * self.costs.matrix / self.unit
        return self.transfers.matrix / self.unit - np.diag(dual.diagonal) + (rows + rows.T) / 2 - dual.entries

    def bound(self, dual: DualPoint) -> float:
        """The bound that multipliers prove; those of stages and entries are 0 or more.

        The sum of all stages' costs is at least ``constant - slope * bottleneck`` for every bottleneck that a
        partition has, and at most the number of stages times it. Eigenvalues below 0 are paid for: the trace of a
        partition matrix less 1 / stages is known.
        """
        n = self.problem.size
        slack = self.slack(dual)
        least = min(float(np.linalg.eigvalsh(slack)[0]), 0.0)
        transfers = dual.diagonal.sum() + (slack * self.even).sum() + least * n * (1 - 1 / self.stages)
        transfers += dual.stages @ self.costs.constant / self.unit
        constant = self.fixed + self.transfers.constant + float(transfers) * self.unit
        return constant / (self.stages + float(dual.stages.sum()))


class _Search:
    """Alternating directions on the dual (Wen, Goldfarb and Yin 2010): multipliers, cone, entries in turn.

    ``matrix`` is the partition matrix less 1 / stages, ``room`` what stages are cheaper than the bottleneck aimed at.
    """

    def __init__(self, relaxation: _Relaxation) -> None:
        self.relaxation = relaxation
        n = relaxation.problem.size
        self.matrix = np.eye(n) * (1 - 1 / relaxation.stages)
        self.room = np.zeros(n)
        self.cone, self.entries = np.zeros((n, n)), np.zeros((n, n))
        self.diagonal, self.rows, self.row_slack = np.zeros(n), np.zeros(n), np.zeros(n)
        self.penalty, self.done = 8.0, 0
        self.aim = 1.1 * relaxation.fixed / relaxation.stages
        self._prepare()

    def _prepare(self) -> None:
        """What the steps need of the linearisations."""
        relaxation = self.relaxation
        self.cost = relaxation.transfers.matrix / relaxation.unit
        self.row_cost = relaxation.costs.matrix / relaxation.unit
        self.limits = (self.aim - relaxation.costs.constant) / relaxation.unit
        self.limits -= self.row_cost.sum(axis=1) / relaxation.stages
        squares = self.row_cost * self.row_cost.T / 2
        np.fill_diagonal(squares, (self.row_cost**2).sum(axis=1) / 2 + 1)
        self.row_inverse = np.linalg.inv(squares)

    def linearise(self, bound: float) -> None:
        """New linearisations at the present matrix, and the bound as the bottleneck to aim at."""
        self.relaxation.linearise(np.clip(self.matrix + self.relaxation.even, 0, 1))
        self.aim = max(bound, self.relaxation.fixed / self.relaxation.stages)
        self._prepare()

    def dual(self) -> DualPoint:
        return DualPoint(self.diagonal, np.maximum(-self.rows, 0), self.entries)

    def iterate(self) -> None:
        even, penalty = self.relaxation.even, self.penalty
        known = self.cone + self.entries - self.cost
        self.diagonal = (1 - even[0, 0] - np.diag(self.matrix)) / penalty - np.diag(known)
        missing = (self.limits - self._row_costs(self.matrix) - self.room) / penalty
        self.rows = self.row_inverse @ (missing - self._row_costs(known) - self.row_slack)
        product = self.rows[:, None] * self.row_cost
        rest = self.cost - np.diag(self.diagonal) - (product + product.T) / 2
        self.cone = _positive_part(rest - self.entries - self.matrix / penalty)
        self.entries = np.maximum(rest - self.cone - (self.matrix + even) / penalty, 0)
        np.fill_diagonal(self.entries, 0)
        self.row_slack = np.maximum(-self.rows - self.room / penalty, 0)
        residual = self.cone + self.entries - rest
        self.matrix = self.matrix + _STEP * penalty * residual
        self.room = self.room + _STEP * penalty * (self.rows + self.row_slack)
        self.done += 1
        if self.done % 20 == 0 and self.done < _SETTLE:
            self._balance(residual)

    def _row_costs(self, matrix: Floats) -> Floats:
        return np.einsum("vu,vu->v", self.row_cost, matrix)

    def _balance(self, residual: Floats) -> None:
        """Moves the penalty towards equal infeasibility of primal and dual."""
        even = self.relaxation.even
        primal = np.linalg.norm(np.minimum(self.matrix + even, 0))
        primal += np.linalg.norm(np.diag(self.matrix) - (1 - even[0, 0]))
        primal /= math.sqrt(len(even))
        dual = np.linalg.norm(residual) / max(np.linalg.norm(self.cost), 1e-12)
        if primal < dual / 2:
            self.penalty *= 1.3
        elif dual < primal / 2:
            self.penalty /= 1.3


def _positive_part(matrix: Floats) -> Floats:
    """Projection onto the positive semidefinite matrices, from the fewer eigenvectors."""
    values, vectors = np.linalg.eigh((matrix + matrix.T) / 2)
    positive = values > 0
    if 2 * positive.sum() <= len(values):
        chosen = vectors[:, positive]
        return np.asarray((chosen * values[positive]) @ chosen.T)
    chosen = vectors[:, ~positive]
    return np.asarray(matrix - (chosen * values[~positive]) @ chosen.T)
