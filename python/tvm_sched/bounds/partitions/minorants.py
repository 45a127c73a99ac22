"""Bound transfers and costs of stages from below by linear functions of the partition matrix.

Proof that the bounds hold for every partition: Lemmas 2 and 3 of ``docs/proofs/partition_semidefinite.md``. Of all such
bounds these are chosen to be tight near one matrix.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from typing import Any

import numpy as np

from tvm_sched_runtime.problem.partition_problem import Floats, Integers, PartitionProblem, StageTensor


@dataclass(frozen=True)
class Minorant:
    """A linear lower bound in the partition matrix X.

    The bound of one quantity is ``constant + <matrix, X>``, with a symmetric matrix. The bound of a quantity for each node v
    is ``constant[v] + matrix[v] @ X[v]``. The diagonal of the matrix is 0, since the diagonal of X is 1 and ``constant``
    contains it.
    """

    constant: Any
    matrix: Floats

    def mix(self, other: Minorant, share: float) -> Minorant:
        """Return the convex combination of two bounds, which is a bound; ``other`` has weight ``share``."""
        return Minorant(
            (1 - share) * self.constant + share * other.constant,
            (1 - share) * self.matrix + share * other.matrix,
        )


def members(tensor: StageTensor) -> Integers:
    """Return the nodes whose stages may pay for a tensor: its producer, if it has one, then its readers."""
    producer = [tensor.producer] if tensor.producer >= 0 else []
    return np.array([*producer, *tensor.readers], dtype=np.int64)


def total_transfers(problem: PartitionProblem, near: Floats) -> Minorant:
    """Bound the transfers of all stages together, tightly near ``near``: Lemma 3. O(edges degree)."""
    constant, matrix = 0.0, np.zeros_like(near)
    for tensor in problem.tensors:
        nodes = members(tensor)
        if tensor.transfer == 0 or len(nodes) == 0:
            continue
        always = tensor.producer < 0 or tensor.leaves
        if always:
            constant += tensor.transfer
        if len(nodes) == 1:
            continue
        minorant = tensor_minorant(near[np.ix_(nodes, nodes)], not always)
        constant += tensor.transfer * minorant.constant
        first, second = nodes[minorant.pairs].T
        np.add.at(matrix, (first, second), -0.5 * tensor.transfer * minorant.weights)
    return Minorant(constant, matrix + matrix.T)


@dataclass(frozen=True)
class TensorMinorant:
    """The bound of Lemma 3 for one tensor: ``constant`` less the sum of ``weights`` times X at ``pairs`` of members.

    ``order`` are the members counted. Pairs of the first ``base`` of them have weight ``slope``, all other pairs weight 1.
    """

    constant: float
    pairs: Integers
    weights: Floats
    order: Integers
    base: int
    slope: float


def tensor_minorant(near: Floats, sent: bool) -> TensorMinorant:
    """Bound the number of stages that pay for a tensor by Lemma 3; for one that is always paid, this number less 1.

    The order of the members is greedy: each next one has the least sum of entries of ``near`` with the members before it.
    The numbers of first and of further members are chosen for the largest value of the bound at ``near``.

    Parameters
    ----------
    near : array, (members, members)
        Entries of a matrix at which the bound is to be tight.
    sent : bool
        Whether no stage pays if one stage has all members.
    """
    m = len(near)
    order, shared = _apart_first(near)
    together = np.cumsum(shared)
    alone = np.maximum(1 - shared, 0)
    # Behind the first member that gains nothing none is counted, for it would have to stand among those before.
    end = int(np.argmax(alone == 0)) if (alone == 0).any() else m
    best: tuple[float, int, int, float, float] | None = None
    for base in range(2, m + 1):
        last = max(base, end)
        constant, weight = max(_facets(base, sent), key=lambda line: line[0] - line[1] * together[base - 1])
        value = constant - weight * together[base - 1] + float(alone[base:last].sum())
        if best is None or value > best[0]:
            best = value, base, last, constant, weight
    assert best is not None
    _, base, last, constant, weight = best
    later, earlier = np.tril_indices(last, -1)
    weights = np.where(later < base, weight, 1.0)
    pairs = np.stack([order[earlier], order[later]], axis=1)
    return TensorMinorant(constant + last - base, pairs, weights, order[:last], base, weight)


def _apart_first(near: Floats) -> tuple[Integers, Floats]:
    """Return a greedy order of the members, and for each one the sum of its entries with the members before it."""
    m = len(near)
    first = int((near + 2 * np.eye(m)).min(axis=1).argmin())
    order, shared = [first], [0.0]
    sums = near[first].copy()
    sums[first] = np.inf
    for _ in range(1, m):
        member = int(sums.argmin())
        order.append(member)
        shared.append(float(sums[member]))
        sums += near[member]
        sums[member] = np.inf
    return np.array(order, dtype=np.int64), np.array(shared)


def fewest_pairs(members: int, stages: int) -> float:
    """Return the fewest pairs of members that share a stage; stages are as even as possible."""
    size, large = divmod(members, stages)
    return large * size * (size + 1) / 2 + (stages - large) * size * (size - 1) / 2


@cache
def _facets(m: int, sent: bool) -> tuple[tuple[float, float], ...]:
    """Return pairs (a, b) such that ``a - b * shared`` bounds what `tensor_minorant` does if ``shared`` pairs share a stage.

    For each number of stages there is a point: the fewest pairs that share a stage, and the number to be bounded. The lines
    are those of the lower convex hull of these m points.
    """
    points = [(fewest_pairs(m, stages), stages - 1.0 + (sent and stages > 1)) for stages in range(m, 0, -1)]
    hull: list[tuple[float, float]] = []
    for x, y in points:  # x ascends, y falls
        while len(hull) > 1:
            (x0, y0), (x1, y1) = hull[-2:]
            if (y1 - y0) * (x - x0) < (y - y0) * (x1 - x0):
                break
            hull.pop()
        hull.append((x, y))
    lines = []
    for (x0, y0), (x1, y1) in pairwise(hull):
        slope = (y0 - y1) / (x1 - x0)
        lines.append((y0 + slope * x0, slope))
    return tuple(lines)


def stage_costs(problem: PartitionProblem, near: Floats) -> Minorant:
    """Bound the cost of the stage of each node, tightly near ``near``: Lemma 2, with overflow of parameters.

    O(nodes edges).
    """
    n = problem.size
    every = np.arange(n)
    matrix = np.tile(problem.work, (n, 1))
    constant = np.zeros(n)
    for tensor in problem.tensors:
        nodes = members(tensor)
        if tensor.transfer == 0 or len(nodes) == 0:
            continue
        entries = near[:, nodes]
        matrix[every, nodes[entries.argmax(axis=1)]] += tensor.transfer
        if tensor.producer >= 0 and not tensor.leaves:
            matrix[every, nodes[entries.argmin(axis=1)]] -= tensor.transfer
    if np.isfinite(problem.memory) and problem.overflow_time > 0:
        over = near @ problem.parameters > problem.memory
        matrix[over] += problem.overflow_time * problem.parameters
        constant[over] -= problem.overflow_time * problem.memory
    constant += matrix[every, every]
    matrix[every, every] = 0
    return Minorant(constant, matrix)
