"""Least time between an operator and its neighbours, which either share its device or pay for copies."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable
from itertools import accumulate
from typing import NamedTuple


class Neighbour(NamedTuple):
    """A predecessor of an operator, or a successor with time reversed.

    ``head`` is the least time before the neighbour's start, ``work`` its least occupancy time, ``apart`` the least time at
    which the operator can start if the two are on different devices.
    """

    head: float
    work: float
    apart: float


def together_or_apart(neighbours: list[Neighbour]) -> float:
    """Return the least time at which an operator can start after all its neighbours on one side.

    O(neighbours log² neighbours). Proof: Lemma 3 of ``docs/proofs/heads_and_tails.md``.
    """
    by_apart = sorted(neighbours, key=lambda n: -n.apart)

    def together(count: int) -> float:
        """Return the least start if the first ``count`` neighbours share the operator's device."""
        total = longest = 0.0
        for other in sorted(by_apart[:count], key=lambda n: -n.head):
            total += other.work
            longest = max(longest, other.head + total)
        return longest

    def apart(count: int) -> float:
        """Return the least start if neighbour ``count`` is on another device."""
        return by_apart[count].apart if count < len(by_apart) else 0.0

    # With more neighbours on the device, one of the two grows and the other falls: the least maximum is where they meet.
    meet = bisect_left(range(len(by_apart)), True, key=lambda count: together(count) >= apart(count))
    return min(together(meet), apart(meet - 1)) if meet else together(0)


def through_port(head: float, end: float, work: Iterable[float], copies: Iterable[float]) -> float:
    """Return the least time at which an operator can start if copies to its device take turns.

    ``head`` and ``end`` are the least of its predecessors' heads and ends; ``work`` and ``copies`` have the least occupancy
    time of each, and of a copy of what it hands over. Proof: Lemma 7 of ``docs/proofs/heads_and_tails.md``.
    """
    beside = [0.0, *(head + total for total in accumulate(sorted(work)))]
    copied = [0.0, *(end + total for total in accumulate(sorted(copies)))]
    return min(map(max, beside, reversed(copied)))
