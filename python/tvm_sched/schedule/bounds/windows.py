"""What fills the time between a start and an end, however it is spread over the devices."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float64]

THRESHOLDS = 256
"""Starts, at most, from which on `between_ends` looks at operators."""


def between_ends(work: Array, start: Array, after: Array) -> float:
    """Largest of ``s + work of the operators that start at s or later and are followed by at least a + a``, over s and a.

    For the starts there are, or as many of them as `THRESHOLDS`, and all ``a``; O(THRESHOLDS x operators).
    """
    order = np.argsort(-after, kind="stable")
    start, work, after = start[order], work[order], after[order]
    best = 0.0
    for s in _some(start, THRESHOLDS):
        late = start >= s
        best = max(best, float(s + (np.cumsum(work[late]) + after[late]).max()))
    return best


def device_weights(best: Array, rounds: int = 60) -> Array:
    """Multipliers of the devices that make the sum over operators of ``min_d weight_d * time_od`` large.

    They are non-negative and add up to one; any such weights give a valid bound, so subgradient steps that stop early do
    no harm. On equal devices they are equal.
    """
    devices = best.shape[1]
    if (best == best[:, :1]).all():
        return np.full(devices, 1 / devices)
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


WINDOWS = 12
"""Starts, and ends, at most that `several_in_turn` looks at."""


def several_in_turn(busy: Array, start: Array, after: Array, devices: int) -> float:
    """Largest of ``s + time of k + 1 operators on one device + a``, over k and windows from ``s`` to ``a`` before the end.

    Of any ``k * devices + 1`` operators, ``k + 1`` run on the same device, one after another: no less than the shortest
    ``k + 1`` of the longest. Where operators may run together, ``busy`` is for how long each occupies its device.

    Parameters
    ----------
    busy : array, (operators,)
        For how long at least each occupies its device.
    start, after : array, (operators,)
        Least time before the start, and after the end.
    devices : int
    """
    if len(busy) <= devices:
        return 0.0
    best = 0.0
    for s in _some(start, WINDOWS):
        for a in _some(after, WINDOWS):
            longest = np.sort(busy[(start >= s) & (after >= a)])[::-1]
            rounds = np.arange(1, (len(longest) - 1) // devices + 1)
            if len(rounds):
                total = np.concatenate([[0.0], np.cumsum(longest)])
                in_turn = total[rounds * devices + 1] - total[rounds * devices - rounds]
                best = max(best, float(s + a + in_turn.max()))
    return best


def _some(values: Array, most: int) -> Array:
    """The different values, or as many of them, from the least to the greatest."""
    distinct = np.unique(values)
    return distinct[np.unique(np.linspace(0, len(distinct) - 1, most).astype(np.int64))]
