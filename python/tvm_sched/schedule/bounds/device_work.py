"""Work that devices must do between what precedes and what follows it."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from .ramp import Side, before, behind
from .relaxation import Relaxation

Array = npt.NDArray[np.float64]


def device_work_bound(relaxation: Relaxation) -> float:
    """Operators that start late and must be followed by much fill the devices between these two."""
    best, start, after = 0.0, before(relaxation), behind(relaxation)
    for busy in relaxation.busy:
        weights = device_weights(busy)
        work = np.where(np.isfinite(busy), busy * weights, np.inf).min(axis=1)
        for first, last in ((start, after), (Side.level(start.anywhere), Side.level(after.anywhere))):
            best = max(best, between_ends(work, first, last, weights))
    if relaxation.problem.costs.concurrency is not None:  # then an operator need not be busy all the time until its end
        return best
    # An operator that ends at ``end`` or later is busy for its shortest time after ``end - shortest``, even where a slow
    # device or mode lets it start before; then no more than its shortest time may be counted.
    late = Side.level(relaxation.end - relaxation.shortest)
    least = np.where(np.isfinite(relaxation.best), weights, np.inf).min(axis=1) * relaxation.shortest
    return max(best, between_ends(least, late, Side.level(after.anywhere), weights))


THRESHOLDS = 256
"""Starts, at most, from which on `between_ends` looks at operators."""

MOST_WORK = 30_000_000
"""Starts times operators times devices that `between_ends` looks at; the starts are fewer where this needs it."""


def between_ends(work: Array, start: Side, after: Side, weights: Array) -> float:
    """Time that devices need for operators that start late and are followed by much.

    A device that works on some of a set of operators does so for no longer than the latency less the start of the first of
    them and what follows the last of them. Devices have different first and last operators, and all but those with seeds
    start no operator before its `Side.elsewhere`. Summed up over the devices, by their weights, that bounds the latency.

    Parameters
    ----------
    work : array, (operators,)
        Least over the devices of weight times the time that an operator occupies it.
    start, after : Side
    weights : array, (devices,)
        Non-negative, of sum one.

    Notes
    -----
    After Carlier, *Scheduling jobs with release dates and tails on identical machines to minimize the makespan* (EJOR 29,
    1987). The sets are the operators of at least some start and tail: for the starts that there are, or as many of them as
    `THRESHOLDS`, and all tails. A set may leave devices idle; as long as the bound is no less than the largest start and
    the largest tail that were counted, idle devices would only lift it. O(THRESHOLDS x operators x devices).
    """
    order = np.argsort(-after.elsewhere, kind="stable")
    starts = np.unique(start.elsewhere[np.isfinite(start.elsewhere)])
    most = min(THRESHOLDS, max(8, MOST_WORK // (len(work) * len(weights))), len(starts))
    starts = starts[np.unique(np.linspace(0, len(starts) - 1, most).astype(np.int64))]
    best = 0.0
    for s in starts:
        late = order[start.elsewhere[order] >= s]
        before_first, latest = _least_sum(start, late, weights)
        after_last, longest = _least_sum(after, late, weights)
        bound = before_first + np.cumsum(work[late]) + after_last
        best = max(best, float(bound[bound >= latest + longest].max(initial=0.0)))
    return best


def _least_sum(side: Side, chosen: npt.NDArray[np.int64], weights: Array) -> tuple[Array, Array]:
    """For each prefix of ``chosen``: the least weighted sum of times of one operator a device, and the largest of these.

    The heaviest devices run the seeds and have the least time of all, the others different operators; where there are not
    as many, the last one's again.
    """
    weights = np.sort(weights)[::-1]
    largest = np.minimum.accumulate(side.anywhere[chosen])
    total = weights[: side.seeds].sum() * largest
    left = side.elsewhere[chosen]
    for weight in weights[side.seeds :]:
        least = np.minimum.accumulate(left)
        # The least stays, the other goes on to the next device: of the new one and of what was the least before.
        left = np.maximum(left, np.concatenate([[np.inf], least[:-1]]))
        largest = np.where(np.isfinite(least), least, largest)
        total = total + weight * largest
    return total, largest


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
