"""Least time of a set of operators with heads and tails (``docs/proofs/device_work.md``)."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from tvm_sched_runtime.core_library import function

Array = npt.NDArray[np.float64]

THRESHOLDS = 256
"""Largest number of heads that `between_ends` tries as thresholds."""

MOST_WORK = 30_000_000
"""Largest product of thresholds, operators and devices in `between_ends`; it tries fewer thresholds for large problems."""

ROUNDING = 1e-12
"""Relative margin by which a bound must exceed the largest head plus tail counted, so that it does with integer weights."""


class Side(NamedTuple):
    """Least times between one end of the run and each operator, in nanoseconds."""

    anywhere: Array
    """On whatever device an operator runs."""
    elsewhere: Array
    """On a device that runs no seed; infinite for the seeds themselves. Never below ``anywhere``."""
    seeds: int
    """Seeds; no more devices than these run one."""

    @classmethod
    def level(cls, anywhere: Array) -> Side:
        """Return operators with the same times on all devices."""
        return cls(anywhere, anywhere, 0)


class DeviceTime(NamedTuple):
    """A time that devices need, and the operators (positions in the arrays) that need it."""

    ns: float
    operators: npt.NDArray[np.int64]


_NOBODY = DeviceTime(0.0, np.zeros(0, np.int64))


def between_ends(work: Array, start: Side, after: Side, weights: Array) -> DeviceTime:
    """Bound the latency by operators that start late and are followed by much.

    Proof: Lemmas 2 and 4 of ``docs/proofs/device_work.md``. The sets tried are the operators of at least some head and some
    tail: up to `THRESHOLDS` heads, and all tails. O(THRESHOLDS x operators x devices). The search is in
    ``cpp/search/work_between_ends.cc``.

    Parameters
    ----------
    work : array, (operators,)
        Least over the devices of weight times the occupancy time.
    start, after : Side
        Heads and tails.
    weights : array, (devices,)
        Non-negative, of sum one.
    """
    order = np.argsort(-after.elsewhere, kind="stable")
    starts = np.unique(start.elsewhere[np.isfinite(start.elsewhere)])
    most = min(THRESHOLDS, max(8, MOST_WORK // (len(work) * len(weights))), len(starts))
    thresholds = _sample_values(starts, most)
    strongest = function("tvm_sched.work_between_ends")(
        np.ascontiguousarray(work, dtype=np.float64),
        np.stack([start.anywhere, start.elsewhere]),
        np.stack([after.anywhere, after.elsewhere]),
        np.array([start.seeds, after.seeds], dtype=np.int64),
        np.sort(weights)[::-1].copy(),
        order,
        thresholds,
        ROUNDING,
    )
    ns, threshold, count = np.from_dlpack(strongest).tolist()
    if not ns:
        return _NOBODY
    late = order[start.elsewhere[order] >= thresholds[int(threshold)]]
    return DeviceTime(ns, late[: int(count)])


def device_weights(best: Array, rounds: int = 60) -> Array:
    """Return weights of the devices that make the sum over operators of ``min_d weight_d * time_od`` large.

    The weights are non-negative and add up to one. Any such weights are valid, so the subgradient steps may stop early.
    On equal devices they are equal.
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
"""Largest number of heads, and of tails, that `several_in_turn` tries as thresholds."""


def several_in_turn(busy: Array, start: Array, after: Array, devices: int) -> DeviceTime:
    """Bound the latency by ``k + 1`` of ``k * devices + 1`` operators on one device.

    Proof: Lemma 5 of ``docs/proofs/device_work.md``, for all ``k`` and some thresholds of head and tail.

    Parameters
    ----------
    busy : array, (operators,)
        Least occupancy times.
    start, after : array, (operators,)
        Heads and tails.
    """
    best = _NOBODY
    if len(busy) <= devices:
        return best
    order = np.argsort(-busy, kind="stable")
    tails = after[order]
    for s in _sample_values(start, WINDOWS):
        late = start[order] >= s
        for a in _sample_values(after, WINDOWS):
            longest = order[late & (tails >= a)]
            rounds = np.arange(1, (len(longest) - 1) // devices + 1)
            if len(rounds):
                total = np.concatenate([[0.0], np.cumsum(busy[longest])])
                in_turn = total[rounds * devices + 1] - total[rounds * devices - rounds]
                most = int(in_turn.argmax())
                if s + a + in_turn[most] > best.ns:
                    best = DeviceTime(float(s + a + in_turn[most]), longest[: rounds[most] * devices + 1])
    return best


def _sample_values(values: Array, most: int) -> Array:
    """Return the distinct values in ascending order, or ``most`` of them, evenly spread."""
    distinct = np.unique(values)
    return distinct[np.unique(np.linspace(0, len(distinct) - 1, most).astype(np.int64))]
