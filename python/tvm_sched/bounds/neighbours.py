"""Least time between an operator and its neighbours, which either share its device or pay for copies."""

from __future__ import annotations

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

    O(neighbours² log neighbours). Proof: Lemma 3 of ``docs/proofs/heads_and_tails.md``.
    """
    by_apart = sorted(neighbours, key=lambda n: -n.apart)
    together: list[Neighbour] = []
    best, longest = by_apart[0].apart, 0.0
    for i, neighbour in enumerate(by_apart):
        together.append(neighbour)
        total, longest = 0.0, 0.0
        for other in sorted(together, key=lambda n: -n.head):
            total += other.work
            longest = max(longest, other.head + total)
        best = min(best, max(longest, by_apart[i + 1].apart if i + 1 < len(by_apart) else 0.0))
        if longest >= best:
            break  # more on the device take no less
    return best
