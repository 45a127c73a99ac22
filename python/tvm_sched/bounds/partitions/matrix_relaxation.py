"""Evaluate the bound that multipliers prove in the doubly nonnegative relaxation of the partition matrix.

Proof: Theorem 6 of ``docs/proofs/partition_semidefinite.md``.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy import sparse

from tvm_sched_runtime.problem.partition_problem import Floats, PartitionProblem

from .eigenvalue import least_eigenvalue, rounding
from .matrix_cuts import Cuts
from .minorants import stage_costs, total_transfers


@dataclass(frozen=True)
class Line:
    """A bound on transfers: in any partition those of all stages take at least ``constant - slope * bottleneck``."""

    constant: float = 0.0
    slope: float = 0.0

    def at(self, bottleneck: float) -> float:
        """Return the least transfers of a partition with this bottleneck."""
        return self.constant - self.slope * bottleneck


@dataclass(frozen=True)
class DualPoint:
    """Multipliers of Theorem 6: of the diagonal, the costs of stages, the cuts and the entries of the matrix.

    Multipliers of the diagonal, and of entries that are always 0, have any sign; all others are 0 or more.
    """

    diagonal: Floats
    stages: Floats
    cuts: Floats
    entries: Floats


class MatrixRelaxation:
    """The relaxation with its present linear bounds and cuts. Its unit of time is the average work plus transfer of a node.

    ``before[u, v]``: whether a path leads from node u to node v, perhaps through nodes that the problem does not contain.
    """

    def __init__(self, problem: PartitionProblem, stages: int, cutoff: float, before: npt.NDArray[np.bool_]) -> None:
        self.problem, self.stages, self.before = problem, stages, before
        self.apart = _apart(problem, self.before, cutoff)
        n = problem.size
        self.even = np.full((n, n), 1 / stages)
        start = np.maximum(self.even, np.eye(n))
        total = float(problem.work.sum()) + sum(tensor.transfer for tensor in problem.tensors)
        self.unit = total / n
        self.transfers = total_transfers(problem, start)
        self.costs = stage_costs(problem, start)
        self.cuts = Cuts.none()
        self.prepare()

    def prepare(self) -> None:
        """Collect the inequalities in one linear operator on the matrix: the costs of stages, then the cuts."""
        n = self.problem.size
        row, column = np.divmod(np.arange(n * n), n)
        halves = self.costs.matrix.ravel() / (2 * self.unit)
        costs = sparse.csr_matrix(
            (
                np.concatenate([halves, halves]),
                (np.concatenate([row, row]), np.concatenate([row * n + column, column * n + row])),
            ),
            shape=(n, n * n),
        )
        self.operator = sparse.vstack([costs, self.cuts.operator(n)], format="csr")
        self.cost = self.transfers.matrix / self.unit
        # For errors of rounding: sizes of the inequalities' entries, and the most of them at one place of the matrix.
        self.sizes = np.asarray(abs(self.operator).sum(axis=1)).ravel()
        self.terms = int(np.bincount(self.operator.indices).max(initial=0)) + 4

    def linearise(self, matrix: Floats, share: float, cuts: Cuts) -> None:
        """Mix in, with weight ``share``, the linear bounds that are tight at ``matrix``; replace the cuts."""
        self.transfers = self.transfers.mix(total_transfers(self.problem, matrix), share)
        self.costs = self.costs.mix(stage_costs(self.problem, matrix), share)
        self.cuts = cuts
        self.prepare()

    def limits(self, bottleneck: float) -> Floats:
        """Return the right-hand sides of the inequalities for a bottleneck."""
        return np.concatenate([(bottleneck - self.costs.constant) / self.unit, self.cuts.limits])

    def combine(self, multipliers: Floats) -> Floats:
        """Return the matrix of the sum of all inequalities, times their multipliers."""
        n = self.problem.size
        return np.asarray(self.operator.T @ multipliers).reshape(n, n)

    def line(self, dual: DualPoint) -> Line:
        """Return the least transfers that multipliers prove, as a function of the bottleneck (Theorem 6).

        The result is lowered by the sum of absolute values of everything added up, times the largest rounding error, so
        it holds however large the multipliers are.
        """
        n, known = self.problem.size, 1 - 1 / self.stages
        stages, cuts = np.maximum(dual.stages, 0), np.maximum(dual.cuts, 0)
        multipliers = np.concatenate([stages, cuts])
        entries = np.where(self.apart, dual.entries, np.maximum(dual.entries, 0))
        np.fill_diagonal(entries, 0)
        slack = self.cost - np.diag(dual.diagonal) + self.combine(multipliers) - entries
        slack = (slack + slack.T) / 2
        least = min(least_eigenvalue(slack), 0.0)
        transfers = dual.diagonal.sum() + slack.sum() / self.stages + least * n * known
        transfers += stages @ self.costs.constant / self.unit - cuts @ self.cuts.limits
        sizes = np.abs(self.cost).sum() + 2 * np.abs(dual.diagonal).sum() + np.abs(entries).sum()
        sizes += self.sizes @ multipliers + np.abs(slack).sum() / self.stages + abs(least) * n
        sizes += stages @ np.abs(self.costs.constant) / self.unit + cuts @ np.abs(self.cuts.limits)
        error = float(sizes) * rounding(self.terms + n * n + len(multipliers) + 8)
        return Line(self.transfers.constant + (float(transfers) - error) * self.unit, float(stages.sum()))


def _apart(problem: PartitionProblem, before: npt.NDArray[np.bool_], cutoff: float) -> npt.NDArray[np.bool_]:
    """Return the pairs of nodes that share no stage cheaper than ``cutoff`` (Lemma 4)."""
    n = problem.size
    reach = before | np.eye(n, dtype=bool)
    between = (reach * problem.work) @ reach
    apart = before & (between > cutoff * (1 + 1e-9))
    return np.asarray(apart | apart.T)
