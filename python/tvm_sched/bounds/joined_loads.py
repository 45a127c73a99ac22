"""The bound ``joined loads``: host tensors cross the buses in sets, each with a latency, and operators wait for whole sets.

Proof: Theorem 3 of ``docs/proofs/joined.md``.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from .bus import bus_traffic, readers_by_tail
from .relaxation import Relaxation

SLACK = 1e-9
"""Part of a latency by which sets may arrive later than they should, for rounding of sums."""


class JoinedLoads(NamedTuple):
    """A bound in nanoseconds, and the operators that it counts, those first which the longest time follows."""

    ns: float
    readers: list[int]


def joined_loads_bound(relaxation: Relaxation) -> JoinedLoads | None:
    """Return the least latency for which some division into sets fits; None if no set takes a latency.

    Operators are divided in the order of the time that follows them, longest first. For a given latency each set takes all
    that may arrive in time. O(sets · log(readers)) for each of about 40 latencies that bisection looks at.
    """
    host, (follows, order) = relaxation.host, readers_by_tail(relaxation)
    if not host.set_latency or not order:
        return None
    carried = np.minimum(bus_traffic(relaxation, order).loads, host.least_read)[order].cumsum()
    behind, sets_at_once = follows[order], len(set(host.bus_of))

    def fits(latency: int) -> bool:
        done = number = 0
        while done < len(order):
            later = max(number + 1 - sets_at_once, 0) * host.further_latency
            arrived = latency * (1 + SLACK) - behind[done] - host.set_latency - later
            reached = int(np.searchsorted(carried, arrived, side="right"))
            if reached <= done:
                return False
            done, number = reached, number + 1
        return True

    low, high = 0, int(np.ceil(host.set_latency + carried[-1] + behind[0]))  # one set for all fits
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if fits(middle) else (middle + 1, high)
    return JoinedLoads(float(low), order)
