"""Lower bounds on the time of operators with given heads and tails (least times before and after them)."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float64]

THRESHOLDS = 256
"""Starts, at most, from which on `between_ends` looks at operators."""

MOST_WORK = 30_000_000
"""Starts times operators times devices that `between_ends` looks at; the starts are fewer where this needs it."""

ROUNDING = 1e-12
"""Part by which a bound must exceed the largest start and tail counted, so that with weights in integers it does so, too."""


class Side(NamedTuple):
    """Least times between one end of the run and each operator, in nanoseconds.

    Parameters
    ----------
    anywhere : array, (operators,)
        On whatever device an operator runs.
    elsewhere : array, (operators,)
        On a device that runs no seed; infinite where it cannot run there, as for the seeds themselves. Never below
        ``anywhere``.
    seeds : int
        Seeds; no more devices than these run one.
    """

    anywhere: Array
    elsewhere: Array
    seeds: int

    @classmethod
    def level(cls, anywhere: Array) -> Side:
        """The same times on all devices."""
        return cls(anywhere, anywhere, 0)


class DeviceTime(NamedTuple):
    """A time that devices need, and the operators (positions in the given arrays) that need it."""

    ns: float
    operators: npt.NDArray[np.int64]


_NOBODY = DeviceTime(0.0, np.zeros(0, np.int64))


def between_ends(work: Array, start: Side, after: Side, weights: Array) -> DeviceTime:
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
    best = _NOBODY
    for s in _sample_values(starts, most):
        late = order[start.elsewhere[order] >= s]
        before_first, latest = _least_sum(start, late, weights)
        after_last, longest = _least_sum(after, late, weights)
        bound = before_first + np.cumsum(work[late]) + after_last
        counted = np.where(bound > (latest + longest) * (1 + ROUNDING), bound, 0.0)
        last = int(counted.argmax())
        if counted[last] > best.ns:
            best = DeviceTime(float(counted[last]), late[: last + 1])
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


def several_in_turn(busy: Array, start: Array, after: Array, devices: int) -> DeviceTime:
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
    best = _NOBODY
    if len(busy) <= devices:
        return best
    for s in _sample_values(start, WINDOWS):
        for a in _sample_values(after, WINDOWS):
            inside = np.flatnonzero((start >= s) & (after >= a))
            longest = inside[np.argsort(-busy[inside], kind="stable")]
            rounds = np.arange(1, (len(longest) - 1) // devices + 1)
            if len(rounds):
                total = np.concatenate([[0.0], np.cumsum(busy[longest])])
                in_turn = total[rounds * devices + 1] - total[rounds * devices - rounds]
                most = int(in_turn.argmax())
                if s + a + in_turn[most] > best.ns:
                    best = DeviceTime(float(s + a + in_turn[most]), longest[: rounds[most] * devices + 1])
    return best


def _sample_values(values: Array, most: int) -> Array:
    """The different values, or as many of them, from the least to the greatest."""
    distinct = np.unique(values)
    return distinct[np.unique(np.linspace(0, len(distinct) - 1, most).astype(np.int64))]
