"""Linear lower bounds of transfers in the partition matrix, whose entries say which nodes share a stage.

All are tight at the matrix they are made for where they can be, and hold for the matrix of every partition.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import numpy as np

from .partition_problem import Floats, Integers, PartitionProblem, StageTensor


@dataclass(frozen=True)
class Linear:
    """``constant + <matrix, X>`` for a partition matrix X; the matrix is symmetric with a diagonal of zeros."""

    constant: float
    matrix: Floats

    def mix(self, other: Linear, share: float) -> Linear:
        """A convex combination of two bounds is a bound."""
        return Linear(
            (1 - share) * self.constant + share * other.constant,
            (1 - share) * self.matrix + share * other.matrix,
        )


@dataclass(frozen=True)
class Rows:
    """For each node v, ``constant[v] + matrix[v] @ X[v]``; the diagonal of the matrix is in the constants."""

    constant: Floats
    matrix: Floats

    def mix(self, other: Rows, share: float) -> Rows:
        """A convex combination of two bounds is a bound."""
        return Rows(
            (1 - share) * self.constant + share * other.constant,
            (1 - share) * self.matrix + share * other.matrix,
        )


def members(tensor: StageTensor) -> Integers:
    """The nodes whose stages may pay for a tensor: its producer, where it has one, then its readers."""
    producer = [tensor.producer] if tensor.producer >= 0 else []
    return np.array([*producer, *tensor.readers], dtype=np.int64)


def total_transfers(problem: PartitionProblem, near: Floats) -> Linear:
    """What all stages together pay for transfers, at least, for partition matrices near ``near``.

    A tensor whose producer and readers are in λ stages costs λ transfers where it comes from outside or leaves the
    model, since each of these stages pays; else λ where λ > 1, and nothing where all are in one stage. O(edges degree).
    """
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
        pairs, weights = _spread(near[np.ix_(nodes, nodes)], not always)
        constant += tensor.transfer * weights.offset
        np.add.at(matrix, (nodes[pairs[:, 0]], nodes[pairs[:, 1]]), -0.5 * tensor.transfer * weights.pairs)
    return Linear(constant, matrix + matrix.T)


@dataclass(frozen=True)
class _Weights:
    """``offset`` less ``pairs`` times the entries of the pairs."""

    offset: float
    pairs: Floats


def _spread(near: Floats, sent: bool) -> tuple[Integers, _Weights]:
    """A linear lower bound of λ - 1, plus 1 for λ > 1 where ``sent``: pairs of members and their weights.

    The better of two at ``near``: the same weight for all pairs (`_uniform`); or that for the two or three members that
    are furthest apart, and then one member after the other, which is in a stage of its own unless it shares one of
    those before: at least 1 less the entries with all of these.
    """
    m = len(near)
    rows, columns = np.triu_indices(m, 1)
    weight = _uniform(m, sent)
    everyone = weight * float((1 - near[rows, columns]).sum())
    base, value = _furthest(near, sent)
    chain = list(base)
    added: list[tuple[int, int]] = []  # member, how many stand before it
    shared = near[:, chain].sum(axis=1)
    shared[chain] = np.inf
    while len(chain) < m and (nearest := float(shared.min())) < 1:
        member = int(shared.argmin())
        value += 1 - nearest
        added.append((member, len(chain)))
        chain.append(member)
        shared += near[:, member]
        shared[member] = np.inf
    if everyone >= value:
        pairs = np.stack([rows, columns], axis=1)
        return pairs, _Weights(weight * len(pairs), np.full(len(pairs), weight))
    among = [(base[i], base[j]) for j in range(len(base)) for i in range(j)]
    to_base = _uniform(len(base), sent)
    others = [(chain[i], member) for member, before in added for i in range(before)]
    weights = np.array([to_base] * len(among) + [1.0] * len(others))
    return np.array(among + others, dtype=np.int64), _Weights(to_base * len(among) + len(added), weights)


def _furthest(near: Floats, sent: bool) -> tuple[list[int], float]:
    """Two or three members that are far apart, and the bound that they alone give."""
    m = len(near)
    apart = 1 - near
    first, second = divmod(int((apart - 2 * np.eye(m)).argmax()), m)
    pair = _uniform(2, sent) * float(apart[first, second])
    if m == 2:
        return [first, second], pair
    to_both = apart[first] + apart[second]
    to_both[[first, second]] = -np.inf
    third = int(to_both.argmax())
    triple = _uniform(3, sent) * float(apart[first, second] + to_both[third])
    extended = pair + max(1 - float(near[third, first] + near[third, second]), 0.0)
    return ([first, second, third], triple) if triple >= extended else ([first, second], pair)


@cache
def _uniform(m: int, sent: bool) -> float:
    """The largest c so that c times the pairs of m members in different stages is a lower bound.

    Where members are in λ stages, most pairs are apart when the stages are as even as can be.
    """

    def ratio(stages: int) -> float:
        large = m % stages
        sizes = [m // stages + 1] * large + [m // stages] * (stages - large)
        return (stages - (0 if sent else 1)) / ((m * m - sum(size * size for size in sizes)) / 2)

    return min(ratio(stages) for stages in range(2, m + 1))


def stage_costs(problem: PartitionProblem, near: Floats) -> Rows:
    """What the stage of each node costs, at least, for partition matrices near ``near``.

    Row v of a partition matrix says which nodes are in v's stage, so the stage does the work of these. A tensor from
    outside, or that leaves the model, is paid for if any member is in the stage, else if one member is and another is
    not. Parameters overflow without peak memory. O(nodes edges).
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
    return Rows(constant, matrix)
