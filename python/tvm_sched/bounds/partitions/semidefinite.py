"""The bound ``semidefinite``: search for multipliers of a relaxation of the partition matrix.

Proof: ``docs/proofs/partition_semidefinite.md``. Any multipliers give a bound, which `matrix_relaxation` evaluates.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence

import numpy as np
from scipy.linalg import lapack
from threadpoolctl import threadpool_limits

from tvm_sched_runtime.problem.partition_problem import Floats, Integers, PartitionProblem

from .matrix_cuts import paths, separate
from .matrix_relaxation import DualPoint, Line, MatrixRelaxation
from .parts import consecutive, induced

MOST_NODES = 1000
"""Largest number of nodes of a whole; larger graphs are bounded in parts, since an iteration takes O(nodes³)."""
PART_STAGES = 4
"""Nodes in a part, in average stages."""
PART_NODES = (150, 500)
"""Least and largest number of nodes in a part."""

_STEP = 1.6
"""Step length of the multipliers, relative to the penalty."""
_LOOK_EVERY = 25
"""Iterations between looks at bound, clock and linearisations."""
_MIX = 0.1
"""Share of new linearisations at each look."""
_SETTLE = 400
"""Iterations after which the penalty is left alone."""
_CUT_EVERY = 4
"""Looks between searches for cuts."""
_MOST_CUTS = 1500
"""At a time; steps take time in their square."""
_UNUSED, _NEAR = 1e-9, 0.02
"""Cuts with a smaller multiplier that are slack by more are dropped."""
_SAFETY = 1e-9
"""Part of the sum of all times by which the bound is lowered for rounding."""


def semidefinite_bound(
    problem: PartitionProblem,
    stages: int,
    *,
    cutoff: float = math.inf,
    seconds: float = math.inf,
    iterations: int = 10_000,
    watch: Callable[[float], bool] = lambda bound: False,
    stop: Callable[[], bool] = lambda: False,
    order: Integers | None = None,
) -> float:
    """Bound the bottleneck of every partition into at most ``stages`` stages.

    O(nodes³) for each iteration; any number of them gives a bound. The result depends on the machine if ``seconds`` ends the
    search. Graphs of more than `MOST_NODES` nodes are cut into parts (Lemma 8).

    Parameters
    ----------
    cutoff : float
        Cost of a known partition; the bound is about partitions that cost at most as much.
    watch : callable
        Told the best bound from time to time; the search ends where it returns true.
    stop : callable
        Asked after each iteration; the search ends where it returns true.
    order : array of int, optional
        A topological order: parts consist of neighbours in it.
    """
    total = float(problem.work.sum()) + sum(tensor.transfer for tensor in problem.tensors)
    if total == 0 or stages < 2:
        return 0.0
    end = time.monotonic() + seconds

    def over() -> bool:
        return stop() or time.monotonic() > end

    search = Searches(problem, stages, cutoff, order)
    best = 0.0
    # Matrices are small, and other searches have the other cores. Numbers overflow if a search diverges.
    with threadpool_limits(1), np.errstate(over="ignore", invalid="ignore"):
        for look in range(max(iterations // _LOOK_EVERY, 1)):
            for part in range(len(search.parts)):
                search.work_on(part, look, over)
                best = max(best, search.bound - _SAFETY * total)
                if watch(best) or over():
                    return best
            if search.ended:
                break
    return best


class Searches:
    """Searches for the parts of a graph (one part if it is small), and the best line of each."""

    def __init__(self, problem: PartitionProblem, stages: int, cutoff: float, order: Integers | None) -> None:
        self.stages, self.fixed, self.cutoff = stages, fixed_costs(problem, stages), cutoff
        self.bound = self.fixed / stages
        self.parts = _parts(problem, stages, order)
        self.before = paths(problem)
        self.problems = induced(problem, self.parts)
        self.lines = [Line()] * len(self.parts)
        self.searches: dict[int, Search] = {}
        self.failed: set[int] = set()

    @property
    def ended(self) -> bool:
        """Whether all searches have diverged."""
        return len(self.failed) == len(self.parts)

    def work_on(self, part: int, look: int, over: Callable[[], bool]) -> None:
        """Run some iterations for a part; keep its line if it raises the bound."""
        if part in self.failed:
            return
        try:
            search = self._search(part)
            if look > 0:
                search.tighten(self.bound, cut=look % _CUT_EVERY == 0)
            search.run(_LOOK_EVERY, over)
            line = search.relaxation.line(search.dual())
        except np.linalg.LinAlgError:  # the search has diverged; earlier lines stay valid
            self.failed.add(part)
            return
        if line.at(self.bound) > self.lines[part].at(self.bound):
            self.lines[part] = line
            self.bound = bound_of_lines(self.fixed, self.stages, self.lines)

    def _search(self, part: int) -> Search:
        if part not in self.searches:
            nodes = self.parts[part]
            before = self.before[np.ix_(nodes, nodes)]
            relaxation = MatrixRelaxation(self.problems[part], self.stages, self.cutoff, before)
            self.searches[part] = Search(relaxation, 1.1 * self.bound)
        return self.searches[part]


def _parts(problem: PartitionProblem, stages: int, order: Integers | None) -> list[Integers]:
    """Cut an order into parts, of sizes for which bounds are good."""
    if problem.size <= MOST_NODES:
        return [np.arange(problem.size)]
    most = int(np.clip(PART_STAGES * problem.size // stages, *PART_NODES))
    return consecutive(problem.kahn(np.zeros(problem.size)) if order is None else order, most)


def bound_of_lines(fixed: float, stages: int, lines: Sequence[Line]) -> float:
    """Return the bound that lines prove: Theorem 6, or Lemma 8 for several parts."""
    return (fixed + sum(line.constant for line in lines)) / (stages + sum(line.slope for line in lines))


def fixed_costs(problem: PartitionProblem, stages: int) -> float:
    """Return the least cost of all stages together, without transfers: `W` of Lemma 5."""
    over = 0.0
    if np.isfinite(problem.memory):
        over = max(float(problem.parameters.sum()) - stages * problem.memory, 0.0) * problem.overflow_time
    return float(problem.work.sum()) + over


class Search:
    """Alternating directions on the dual (Wen, Goldfarb and Yin 2010): multipliers, cone, entries in turn.

    ``matrix`` is the partition matrix less 1 / stages, ``room`` by how much inequalities are slack; ``aim`` is the
    bottleneck aimed at.
    """

    def __init__(self, relaxation: MatrixRelaxation, aim: float) -> None:
        self.relaxation = relaxation
        n = relaxation.problem.size
        self.matrix = np.eye(n) * (1 - 1 / relaxation.stages)
        self.cone, self.entries = np.zeros((n, n)), np.zeros((n, n))
        self.diagonal = np.zeros(n)
        self.multipliers, self.room, self.free = np.zeros(n), np.zeros(n), np.zeros(n)
        self.penalty, self.done = 8.0, 0
        self.inverse = np.zeros((0, 0))
        self.prepare(aim, anew=True)

    def prepare(self, aim: float, anew: bool) -> None:
        """Prepare the steps for the present linearisations; ``aim`` is the bottleneck aimed at.

        The inverse of an earlier linearisation is near enough for some time: `_solve` corrects it.
        """
        relaxation = self.relaxation
        operator = relaxation.operator
        self.limits = relaxation.limits(aim) - operator @ relaxation.even.ravel()
        if len(self.inverse) != len(self.limits) or anew:
            gram = (operator @ operator.T).toarray()
            self.inverse = _inverse(gram + np.eye(len(gram)))

    def tighten(self, aim: float, cut: bool) -> None:
        """Make new linearisations at the present matrix and, if ``cut``, add cuts that it violates."""
        relaxation = self.relaxation
        n = relaxation.problem.size
        matrix = np.clip(self.matrix + relaxation.even, 0, 1)
        cuts = relaxation.cuts
        if cut:
            used = (self.multipliers[n:] < -_UNUSED) | (cuts.violations(matrix) > -_NEAR)
            kept = np.concatenate([np.ones(n, dtype=bool), used])
            cuts = cuts.take(used)
            count = len(cuts)
            most = max(_MOST_CUTS - count, 0)
            cuts = cuts.join(separate(matrix, relaxation.before, most))
            new = len(cuts) - count
            self.multipliers, self.room, self.free = (
                np.concatenate([values[kept], np.zeros(new)]) for values in (self.multipliers, self.room, self.free)
            )
        relaxation.linearise(matrix, max(_MIX, 20 / (self.done + 1)), cuts)
        self.prepare(aim, anew=cut)

    def dual(self) -> DualPoint:
        """Return the present multipliers."""
        n = self.relaxation.problem.size
        multipliers = np.maximum(-self.multipliers, 0)
        return DualPoint(self.diagonal, multipliers[:n], multipliers[n:], self.entries)

    def run(self, iterations: int, over: Callable[[], bool]) -> None:
        """Run some iterations; at least one, and fewer if time is over."""
        for _ in range(iterations):
            self._iterate()
            if over():
                break

    def _iterate(self) -> None:
        relaxation, penalty = self.relaxation, self.penalty
        even, cost, operator = relaxation.even, relaxation.cost, relaxation.operator
        known = self.cone + self.entries - cost
        # The diagonal of the inequalities is 0, so both groups of multipliers are independent.
        self.diagonal = (1 - even[0, 0] - np.diag(self.matrix)) / penalty - np.diag(known)
        missing = (self.limits - self.room) / penalty - operator @ (self.matrix / penalty + known).ravel()
        self.multipliers = self._solve(missing - self.free)
        remainder = cost - np.diag(self.diagonal) - relaxation.combine(self.multipliers)
        self.cone = _positive_part(remainder - self.entries - self.matrix / penalty)
        entries = remainder - self.cone - (self.matrix + even) / penalty
        self.entries = np.where(relaxation.apart, entries, np.maximum(entries, 0))
        np.fill_diagonal(self.entries, 0)
        self.free = np.maximum(-self.multipliers - self.room / penalty, 0)
        residual = self.cone + self.entries - remainder
        self.matrix = self.matrix + _STEP * penalty * residual
        self.room = self.room + _STEP * penalty * (self.multipliers + self.free)
        self.done += 1
        if self.done % 20 == 0 and self.done < _SETTLE:
            self._balance(residual)

    def _solve(self, right: Floats) -> Floats:
        """Solve the linear system of the multipliers, with one step of refinement."""
        operator = self.relaxation.operator
        solution = (self.inverse @ right.astype(np.float32)).astype(np.float64)
        missing = right - solution - operator @ (operator.T @ solution)
        return solution + self.inverse @ missing.astype(np.float32)

    def _balance(self, residual: Floats) -> None:
        """Move the penalty towards equal infeasibility of primal and dual."""
        even = self.relaxation.even
        primal = float(np.linalg.norm(np.minimum(self.matrix + even, 0)))
        primal += float(np.linalg.norm(np.diag(self.matrix) - (1 - even[0, 0])))
        primal /= math.sqrt(len(even))
        dual = float(np.linalg.norm(residual)) / max(float(np.linalg.norm(self.relaxation.cost)), 1e-12)
        if primal < dual / 2:
            self.penalty *= 1.3
        elif dual < primal / 2:
            self.penalty /= 1.3


def _inverse(matrix: Floats) -> Floats:
    """Invert a positive definite matrix in single precision."""
    factor, failed = lapack.spotrf(matrix.astype(np.float32))
    if failed:
        raise np.linalg.LinAlgError("the inequalities' products are not positive definite")
    upper = np.triu(lapack.spotri(factor)[0])
    return np.asarray(upper + np.triu(upper, 1).T)


def _positive_part(matrix: Floats) -> Floats:
    """Project onto the positive semidefinite matrices, with the smaller set of eigenvectors.

    In single precision, which takes half the time; the resulting bound is evaluated in double precision.
    """
    values, vectors = np.linalg.eigh((matrix + matrix.T).astype(np.float32) / 2)
    positive = values > 0
    if 2 * positive.sum() <= len(values):
        chosen = vectors[:, positive]
        return np.asarray((chosen * values[positive]) @ chosen.T)
    chosen = vectors[:, ~positive]
    return np.asarray(matrix - (chosen * values[~positive]) @ chosen.T)
