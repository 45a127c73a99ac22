"""A lower bound for all placements, in runs or not: a linear program in which units may be cut into fractions."""

from __future__ import annotations

import numpy as np

from .chain import Chain

NAME = "linear program over units and places"
_ROUNDING = 1e-6
"""Part of the program's value that is given up to the solver's tolerances."""


def lower_bound(chain: Chain, micro_batches: int = 1) -> int:
    """No placement that fits takes less: nanoseconds.

    Let x(u, p) be the part of unit u at place p. The parts of a unit add up to 1; what a place holds of weights and cache is
    at most its memory, less the least activations of any unit. Units run one after another, so that the time is at least the
    sum of t(u, p) x(u, p); and with several micro-batches at least as many times the time at any place. Copies count for
    nothing, and parameters that two units share for one of them, so that a placement's true values satisfy the program.

    Returns
    -------
    int
        0 where no fractions fit either, so that nothing does.
    """
    from scipy.optimize import linprog
    from scipy.sparse import coo_array, vstack

    # Units that are alike are one row with a number, so that eighty layers are as easy as one.
    alike, number = np.unique(
        np.column_stack([chain.time_ns, chain.weight + chain.cache]), axis=0, return_counts=True
    )
    time_ns, held = alike[:, :-1], alike[:, -1].astype(np.float64)
    units, places = time_ns.shape
    scale = max(float(time_ns.max()), 1.0)
    time = time_ns / scale
    room = np.array(chain.room, dtype=np.float64) - float(chain.peak.min())
    size = max(float(held @ number), 1.0)
    variable = np.arange(units * places).reshape(units, places)
    whole = coo_array(
        (np.ones(units * places), (np.repeat(np.arange(units), places), variable.ravel())), (units, units * places + 1)
    )
    column = np.tile(np.arange(places), units)
    memory = coo_array((np.repeat(held, places) / size, (column, variable.ravel())), (places, units * places + 1))
    longest = coo_array(
        (
            np.concatenate([micro_batches * time.ravel(), -np.ones(places)]),
            (np.concatenate([column, np.arange(places)]), np.append(variable.ravel(), [units * places] * places)),
        ),
        (places, units * places + 1),
    )
    total = coo_array(
        (np.append(time.ravel(), -1.0), (np.zeros(units * places + 1, dtype=int), np.arange(units * places + 1))),
        (1, units * places + 1),
    )
    rows = [memory, total, *([longest] if micro_batches > 1 else [])]
    limits = [room / size, [0.0], *([np.zeros(places)] if micro_batches > 1 else [])]
    goal = np.zeros(units * places + 1)
    goal[-1] = 1.0
    solved = linprog(
        goal, A_ub=vstack(rows).tocsr(), b_ub=np.concatenate(limits), A_eq=whole.tocsr(), b_eq=number, method="highs"
    )
    if solved.status != 0:
        return 0
    return max(int(solved.fun * scale * (1 - _ROUNDING)), 0)
