"""Work that devices must do between what precedes and what follows it."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from .relaxation import Relaxation

Array = npt.NDArray[np.float64]


def device_work_bound(relaxation: Relaxation) -> float:
    """Operators that start late and must be followed by much fill the devices between these two."""
    best = 0.0
    for busy in relaxation.busy:
        weights = device_weights(busy)
        work = np.where(np.isfinite(busy), busy * weights, np.inf).min(axis=1)
        best = max(best, between_ends(work, relaxation.start, relaxation.after))
    if relaxation.problem.costs.concurrency is not None:  # then an operator need not be busy all the time until its end
        return best
    # An operator that ends at ``end`` or later is busy for its shortest time after ``end - shortest``, even where a slow
    # device or mode lets it start before; then no more than its shortest time may be counted.
    late = relaxation.end - relaxation.shortest
    least = np.where(np.isfinite(relaxation.best), weights, np.inf).min(axis=1) * relaxation.shortest
    return max(best, between_ends(least, late, relaxation.after))


THRESHOLDS = 256
"""Starts, at most, from which on `between_ends` looks at operators."""


def between_ends(work: Array, start: Array, after: Array) -> float:
    """Largest of ``s + work of the operators that start at s or later and are followed by at least a + a``, over s and a.

    For the starts there are, or as many of them as `THRESHOLDS`, and all ``a``; O(THRESHOLDS x operators).
    """
    order = np.argsort(-after, kind="stable")
    start, work, after = start[order], work[order], after[order]
    starts = np.unique(start)
    starts = starts[np.unique(np.linspace(0, len(starts) - 1, THRESHOLDS).astype(np.int64))]
    best = 0.0
    for s in starts:
        late = start >= s
        best = max(best, float(s + (np.cumsum(work[late]) + after[late]).max()))
    return best


def device_weights(best: Array, rounds: int = 60) -> Array:
    """Multipliers of the devices that make the sum over operators of ``min_d weight_d * time_od`` large.

    They are non-negative and add up to one; any such weights give a valid bound, so subgradient steps that stop early do
    no harm. On equal devices they are equal.
    """
    devices = best.shape[1]
    finite = np.where(np.isfinite(best), best, 0.0)
    speed = np.divide(1.0, finite.mean(axis=0), out=np.ones(devices), where=finite.mean(axis=0) > 0)
    equal = np.full(devices, 1 / devices)
    best_value, best_weights = -1.0, equal
    for weights in (equal, speed / speed.sum()):
        for step in range(rounds):
            weighted = np.where(np.isfinite(best), best * weights, np.inf)
            chosen = weighted.argmin(axis=1)
            value = float(weighted.min(axis=1).sum())
            if value > best_value:
                best_value, best_weights = value, weights
            load = np.bincount(chosen, weights=best[np.arange(len(best)), chosen], minlength=devices)
            if load.sum() <= 0:
                break
            pushed = weights * np.exp(0.5 / (1 + step) ** 0.5 * (load / load.mean() - 1).clip(-3, 3))
            weights = pushed / pushed.sum()
    return best_weights
