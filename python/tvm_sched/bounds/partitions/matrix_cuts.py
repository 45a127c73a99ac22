"""Cuts: inequalities of every partition matrix (``docs/proofs/partition_semidefinite.md``, Lemma 4)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy import sparse

from tvm_sched_runtime.problem.graph import neighbours
from tvm_sched_runtime.problem.partition_problem import Floats, Integers, PartitionProblem

_LEAST_VIOLATION = 0.02


@dataclass(frozen=True)
class Cuts:
    """Inequalities ``(signs * X.ravel()[places]).sum(axis=1) <= limits`` for a symmetric matrix X."""

    places: Integers
    """Entries of the matrix above the diagonal, row by row."""
    signs: Floats
    """1, -1, or 0 where an inequality has two entries only."""
    limits: Floats

    @staticmethod
    def none() -> Cuts:
        """Return cuts without an inequality."""
        return Cuts(np.zeros((0, 3), dtype=np.int64), np.zeros((0, 3)), np.zeros(0))

    def __len__(self) -> int:
        return len(self.limits)

    def violations(self, matrix: Floats) -> Floats:
        """Return by how much ``matrix`` violates each inequality; negative if it is slack."""
        return np.asarray((self.signs * matrix.ravel()[self.places]).sum(axis=1) - self.limits)

    def take(self, chosen: npt.NDArray[Any]) -> Cuts:
        """Return the chosen inequalities."""
        return Cuts(self.places[chosen], self.signs[chosen], self.limits[chosen])

    def join(self, other: Cuts) -> Cuts:
        """Return these inequalities, followed by those of ``other`` that are not among them."""
        new = other.take(~np.isin(other._keys(), self._keys()))
        return Cuts(
            np.concatenate([self.places, new.places]),
            np.concatenate([self.signs, new.signs]),
            np.concatenate([self.limits, new.limits]),
        )

    def operator(self, n: int) -> Any:
        """Return the left-hand sides as a sparse matrix, a row for each cut and a column for each of the n² entries of X.

        Each coefficient is divided evenly between an entry and its mirror image.
        """
        rows = np.repeat(np.arange(len(self)), 3)
        places, signs = self.places.ravel(), self.signs.ravel() / 2
        mirrored = places % n * n + places // n
        return sparse.csr_matrix(
            (np.concatenate([signs, signs]), (np.concatenate([rows, rows]), np.concatenate([places, mirrored]))),
            shape=(len(self), n * n),
        )

    def _keys(self) -> Integers:
        """Return distinct numbers for distinct cuts: two entries and the sign of the second identify a cut."""
        return (self.places[:, 0] << 31 | self.places[:, 1]) * np.where(self.signs[:, 1] > 0, 1, -1)


def separate(matrix: Floats, before: npt.NDArray[np.bool_], most: int) -> Cuts:
    """Return the triangle and convexity inequalities that a matrix violates most. O(nodes³).

    Parameters
    ----------
    before : array of bool, shape (nodes, nodes)
        ``[u, v]``: whether a path leads from u to v.
    """
    n = len(matrix)
    violated: list[Integers] = []  # kind, three nodes
    amounts: list[Floats] = []

    def keep(violation: Floats, kind: int, first: Integers, middle: Integers, last: Integers) -> None:
        worst = np.argpartition(-violation, most)[:most] if len(violation) > most else np.arange(len(violation))
        triples = np.stack([np.full_like(first, kind), first, middle, last], axis=1)
        violated.append(triples[worst])
        amounts.append(violation[worst])

    for b in range(n):
        over = np.triu(matrix[:, b, None] + matrix[b] - matrix - 1, 1)
        first, last = np.nonzero(over > _LEAST_VIOLATION)
        keep(over[first, last], 0, first, np.full_like(first, b), last)
        between = np.flatnonzero(before[b])
        for kind, shared in ((1, matrix[b, between, None]), (2, matrix[between])):
            over = (matrix[b] - shared) * before[between]
            middle, last = np.nonzero(over > _LEAST_VIOLATION)
            keep(over[middle, last], kind, np.full_like(middle, b), between[middle], last)
    amount, triples = np.concatenate(amounts), np.concatenate(violated)
    worst = triples[np.argsort(-amount, kind="stable")[:most]]
    return _cuts(worst, n)


def _cuts(triples: Integers, n: int) -> Cuts:
    kind, a, b, c = triples.T

    def place(first: Integers, second: Integers) -> Integers:
        return np.minimum(first, second) * n + np.maximum(first, second)

    triangle = kind == 0
    places = np.stack(
        [
            np.where(triangle, place(a, b), place(a, c)),
            np.where(kind == 1, place(a, b), place(b, c)),
            place(a, c),
        ],
        axis=1,
    )
    signs = np.where(triangle[:, None], [1.0, 1.0, -1.0], [1.0, -1.0, 0.0])
    return Cuts(places, signs, triangle.astype(np.float64))


def paths(problem: PartitionProblem) -> npt.NDArray[np.bool_]:
    """Return an array (nodes, nodes): at ``[u, v]``, whether a path leads from node u to another node v."""
    n = problem.size
    before = np.zeros((n, n), dtype=bool)
    readers = neighbours(n, problem.edges)
    for u in reversed(problem.kahn(np.zeros(n))):
        for v in readers[u]:
            before[u] |= before[v]
            before[u, v] = True
    return before
