"""A lower bound of the eigenvalues of symmetric integer matrices (Lemma 9 of ``docs/proofs/partition_semidefinite.md``)."""

from __future__ import annotations

from fractions import Fraction
from math import sqrt
from operator import mul

DIGITS = 60
"""Least number of bits of the Cholesky factor's entries: a few more than double precision has."""


def negative_part(matrix: list[list[int]]) -> Fraction:
    """Return a number ``x`` such that no eigenvalue of a symmetric integer matrix is below ``-x`` (Lemma 9)."""
    n, largest = len(matrix), max((abs(x) for row in matrix for x in row), default=0)
    half = largest.bit_length() // 2 + 1
    fine = max(0, DIGITS - half)  # more binary digits for the factor than half of the matrix's, where these are few
    rows, lower = list[list[float]](), list[list[int]]()
    for i, row in enumerate(matrix):
        entries = list[float]()
        for j in range(i):
            remainder = row[j] / (1 << 2 * half) - sum(map(mul, entries, rows[j]))
            entries.append(remainder / rows[j][j] if rows[j][j] else 0.0)
        left = row[i] / (1 << 2 * half) - sum(map(mul, entries, entries))
        entries.append(sqrt(left) if left > 0 else 0.0)
        rows.append(entries)
        lower.append([round(x * (1 << half + fine)) for x in entries])
    missing = [0] * n  # sums of absolute values of the difference, by row
    for i, row in enumerate(matrix):
        for j in range(i + 1):
            difference = abs((row[j] << 2 * fine) - sum(map(mul, lower[i], lower[j])))
            missing[i] += difference
            missing[j] += difference if j < i else 0
    return Fraction(max(missing, default=0), 1 << 2 * fine)
