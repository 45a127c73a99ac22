"""Prices of the rows of a linear program, found within a limited number of the solver's steps."""

from __future__ import annotations

from typing import Any

import numpy as np

SIMPLEX_STEPS = 20_000_000
"""Largest number of iterations of the simplex method times rows; as many take about half a second."""

CROSSOVER_STEPS = 10_000
"""Largest number of iterations of the interior-point method, and of the simplex method that ends it; it seldom needs 100."""

LARGEST = 120_000
"""Largest number of entries of a program that the interior-point method is given; as many take about two seconds."""


def row_prices(minimised: int, rows: Any, limits: list[float], sums: Any) -> list[float] | None:
    """Return the dual values of rows, none below 0; None if the solver fails or takes too many steps.

    The simplex method solves most programs at once. Those that hold it up are solved by interior points.

    Parameters
    ----------
    minimised : int
        The variable to minimise. All variables are at least 0.
    rows : sparse matrix
        Rows that are at most their ``limits``.
    sums : sparse matrix
        Rows that are equal to 1.
    """
    from scipy.optimize import linprog  # half a second, which problems without these bounds need not wait for

    goal = np.zeros(rows.shape[1])
    goal[minimised] = 1.0
    methods = [("highs-ds", SIMPLEX_STEPS // rows.shape[0])]
    if rows.nnz + sums.nnz <= LARGEST:
        methods.append(("highs-ipm", CROSSOVER_STEPS))
    for method, steps in methods:
        ones = np.ones(sums.shape[0])
        result = linprog(goal, rows, limits, sums, ones, method=method, options={"maxiter": steps})
        if result.status == 0:
            return np.maximum(-result.ineqlin.marginals, 0.0).tolist()
        if result.status != 1:  # not for want of steps
            return None
    return None
