"""Loads where all devices are on one bus, or behind a storage that carries one load at a time."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from tvm_sched_runtime.problem import HOST, Route, Topology


@dataclass(frozen=True)
class OneBus:
    """The bus that carries all loads, one after another."""

    routes: tuple[Route, ...]
    """One route to a device for each speed."""

    @classmethod
    def of(cls, topology: Topology) -> OneBus | None:
        """Return the bus of a topology; None if a device shares host memory, or if there are several buses."""
        routes = [topology.route(HOST, d) for d in range(len(topology.devices))]
        known = {(r.bandwidth, r.latency): r for r in routes if r is not None}
        if None in routes or len({r.channels[0] for r in routes if r is not None}) > 1:
            return None
        return cls(tuple(known.values()))

    def load_ns(self, size: int) -> int:
        """Return the nanoseconds of a load of ``size`` bytes into the device where it takes least."""
        return min(route.nanoseconds(size) for route in self.routes)

    def loaded_in(self, ns: int) -> int:
        """Return the size of the largest tensor whose load takes at most ``ns``; -1 if a load without bytes takes longer."""
        most = int(ns * max(route.bandwidth for route in self.routes) / 1e9) + 1
        return largest_fitting(most, lambda size: self.load_ns(size) <= ns)


def largest_fitting(most: int, fits: Callable[[int], bool]) -> int:
    """Return the largest number from 0 to ``most`` that fits, by bisection; -1 if 0 does not fit."""
    if not fits(0):
        return -1
    low, high = 0, max(most, 0)
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if fits(middle) else (low, middle - 1)
    return low
