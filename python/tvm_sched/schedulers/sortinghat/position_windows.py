"""Tighten the times at which a submodel's devices and buses are free, without changing its program's solutions.

A bus or device that is free long before its first use constrains nothing. With later times the program's clock is finer, and
more submodels have equal programs.
"""

from __future__ import annotations

from dataclasses import replace
from math import inf

from .submodel import Submodel


def tightened(s: Submodel) -> Submodel:
    """Return the submodel with its devices and buses free as late as possible without changing any assignment's total.

    No operator starts before the earlier results that it or its predecessors read (equations 15, 17 and 19), so no device
    is needed before the first operator can start. A bus is not needed before the latest time from which all of its loads,
    one after another, end by then (12 to 14).
    """
    first = _first_start(s)
    device_end = [max(end, first) for end in s.device_end]
    transfers_end = [
        max(end, first - _all_loads(s, devices)) for end, devices in zip(s.transfers_end, s.buses, strict=True)
    ]
    return replace(s, device_end=device_end, transfers_end=transfers_end)


def _first_start(s: Submodel) -> float:
    """Return the moment before which no operator starts."""
    start: list[float] = []
    for v in range(s.operators):
        after = [start[u] for u in s.read[v] if u < s.operators]
        after += [s.device_end[s.fixed[u]] for u in s.read[v] if s.operators <= u < s.operators + s.placeholders]
        start.append(max(after, default=min(s.device_end)))
    return min(start, default=min(s.device_end))


def _all_loads(s: Submodel, devices: list[int]) -> float:
    """Bound the time that a bus is busy from above: each parameter is loaded into the bus's slowest device for it."""
    coming = (w for w in s.parameter_nodes if w not in s.fixed)
    return sum(max((s.load[w][d] for d in devices if s.load[w][d] < inf), default=0.0) for w in coming)
