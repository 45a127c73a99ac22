"""Dual values of the rows of a linear program, computed within a limited number of iterations."""

from __future__ import annotations

from typing import Any

import numpy as np

from tvm_sched_runtime.search_budget import check_time, seconds_left

SIMPLEX_STEPS = 20_000_000
"""Largest product of rows and iterations of the simplex method, about half a second."""

CROSSOVER_STEPS = 10_000
"""Largest number of iterations of the interior-point method, and of its crossover; it seldom needs 100."""

LARGEST = 120_000
"""Largest number of nonzero entries for the interior-point method, about two seconds."""


def row_prices(minimised: int, rows: Any, limits: list[float], sums: Any) -> list[float] | None:
    """Return the dual values of the inequality rows, none below 0; None if the solver fails or takes too many iterations.

    The simplex method solves most programs quickly. If it reaches its limit, the interior-point method is tried.

    Parameters
    ----------
    minimised : int
        The variable to minimise. All variables are at least 0.
    rows : sparse matrix
        Inequality rows, each at most its entry of ``limits``.
    sums : sparse matrix
        Equality rows, each equal to 1.
    """
    from scipy.optimize import linprog  # half a second, which problems without these bounds need not wait for

    goal = np.zeros(rows.shape[1])
    goal[minimised] = 1.0
    methods = [("highs-ds", SIMPLEX_STEPS // rows.shape[0])]
    if rows.nnz + sums.nnz <= LARGEST:
        methods.append(("highs-ipm", CROSSOVER_STEPS))
    for method, steps in methods:
        check_time()
        ones, options = np.ones(sums.shape[0]), {"maxiter": steps}
        if (seconds := seconds_left()) < np.inf:
            options["time_limit"] = seconds
        result = linprog(goal, rows, limits, sums, ones, method=method, options=options)
        check_time()  # an end by the clock looks like one by steps
        if result.status == 0:
            return np.maximum(-result.ineqlin.marginals, 0.0).tolist()
        if result.status != 1:  # not for want of steps
            return None
    return None
