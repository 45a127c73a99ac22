"""Bound the least eigenvalue of a symmetric matrix from below, in spite of rounding."""

from __future__ import annotations

import numpy as np

from tvm_sched_runtime.problem.partition_problem import Floats

UNIT = 2.0**-53
"""Largest relative error of an operation in double precision."""

_ATTEMPTS = 8


def rounding(terms: int) -> float:
    """Return the largest relative error of a sum or product of this many terms, in any order (Higham's gamma)."""
    return terms * UNIT / (1 - terms * UNIT)


def least_eigenvalue(matrix: Floats) -> float:
    """Return a number that no eigenvalue of a symmetric matrix is below. O(n³).

    Proof: Lemma 7 of ``docs/proofs/partition_semidefinite.md``.

    Raises
    ------
    numpy.linalg.LinAlgError
        An entry is no finite number.
    """
    if not np.isfinite(matrix).all():
        raise np.linalg.LinAlgError("the matrix is not finite")
    n, diagonal = len(matrix), np.diag(matrix)
    norm = float(np.abs(matrix).sum(axis=1).max(initial=0.0)) * (1 + rounding(n))
    if norm == 0:
        return 0.0
    factor = rounding(n + 2) / (1 - rounding(n + 2))
    smallest = np.finfo(float).smallest_normal * n * n
    guess, margin = float(np.linalg.eigvalsh(matrix)[0]), 4 * n * UNIT * norm
    for _ in range(_ATTEMPTS):
        shift = guess - margin
        trace = (float(diagonal.sum()) + n * abs(shift) + n * norm * rounding(n + 2)) * (1 + rounding(4))
        # What is taken off stands for the errors of the factorisation and of making the shifted matrix.
        less = factor * max(trace, 0.0) * (1 + rounding(4)) + 4 * UNIT * (norm + abs(shift)) + smallest
        try:
            np.linalg.cholesky(matrix - (shift + less) * np.eye(n))
            return shift
        except np.linalg.LinAlgError:
            margin *= 8
    radii = np.abs(matrix).sum(axis=1) - np.abs(diagonal)
    return float((diagonal - radii).min()) - 4 * rounding(n) * norm
