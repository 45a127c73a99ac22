"""Least time between an operator and its neighbours, which either share its device or pay for copies."""

from __future__ import annotations

from typing import NamedTuple


class Neighbour(NamedTuple):
    """A neighbour of an operator, seen from that operator: times count towards it, whichever way it lies.

    ``head`` is before the neighbour's work at least, ``work`` is that work, ``apart`` is when the operator can go on if the
    two are on different devices.
    """

    head: float
    work: float
    apart: float


def together_or_apart(neighbours: list[Neighbour]) -> float:
    """Least time at which an operator can go on for the sake of all its neighbours on one side.

    Whatever the set of those on its own device, it waits for the slowest of the others, and the set holds all that are
    slower apart. These run on one device, each after its head: no less than the least head of some of them and the work of
    these. The least over all sets is over as many as there are neighbours.
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
