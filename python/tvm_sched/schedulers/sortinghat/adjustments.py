"""Latencies for the program: those of the problem, adjusted for contention (SortingHat, Section 3.4)."""

from __future__ import annotations

from dataclasses import dataclass
from math import inf

from tvm_sched_runtime.problem import FORBIDDEN, HOST, Scenario

LINK_FACTOR = 1.5
"""Factor by which opposite copies slow a link; seldom the full 2."""


@dataclass(frozen=True)
class Adjustments:
    """Switches of the paper's adjustments and ablations."""

    direct_contention: bool = True
    """Multiply latencies with direct host access by twice the number of devices on the bus."""
    link_contention: bool = True
    """Multiply copies over a link or switch by 1.5."""
    path_contention: bool = True
    """Multiply copies over buses by the number of devices."""
    contention: bool = True
    """False: each device has a separate bus (first ablation of Section 4.4)."""
    topology_aware: bool = True
    """False: all speeds of transfers and devices are their averages (second ablation)."""


class Latencies:
    """Times of the program in nanoseconds.

    Attributes
    ----------
    kernel, direct : list of list of float
        Time by operator and device; infinite if it cannot run in that mode. An operator that reads nothing from host
        memory takes the same time in both modes.
    buses : list of list of int
        Devices that share a bus; one without a bus is alone.
    """

    def __init__(self, scenario: Scenario, adjustments: Adjustments) -> None:
        self.scenario, self.adjustments = scenario, adjustments
        self.buses = self._buses()
        self.kernel = [[_time(ns) for ns in row] for row in scenario.costs.operator_ns.tolist()]
        self.direct = [[_time(ns) for ns in row] for row in scenario.costs.direct_ns.tolist()]
        self._slow_direct()
        if not adjustments.topology_aware:
            self.kernel = [_averages(row) for row in self.kernel]
            self.direct = [_averages(row) for row in self.direct]
        self._loads: dict[int, float] = {}
        self._copies: dict[int, float] = {}

    def reads_directly(self, o: int, d: int) -> bool:
        """Return whether an operator in a subgraph with direct host access reads anything over the bus."""
        return bool(self.scenario.costs.direct_ns[o, d] != FORBIDDEN)

    def load(self, t: int, d: int) -> float:
        """Return the time of loading a host tensor; 0 if it is resident or the device shares host memory."""
        if self.scenario.reads_host_in_place(d) or self.scenario.is_resident(t):
            return 0.0
        if self.adjustments.topology_aware:
            return self._load(t, d)
        if t not in self._loads:
            on_bus = [e for e in self._devices if not self.scenario.reads_host_in_place(e)]
            self._loads[t] = sum(self._load(t, e) for e in on_bus) / len(on_bus)
        return self._loads[t]

    def copy(self, t: int, source: int, target: int) -> float:
        """Return the time of a copy between two devices; infinite if nothing joins them."""
        time = self._copy(t, source, target)
        if self.adjustments.topology_aware or time == inf:
            return time
        if t not in self._copies:
            times = [self._copy(t, a, b) for a in self._devices for b in self._devices if a != b]
            finite = [time for time in times if time < inf]
            self._copies[t] = sum(finite) / len(finite)
        return self._copies[t]

    @property
    def _devices(self) -> range:
        return range(len(self.scenario.topology.devices))

    def _load(self, t: int, d: int) -> float:
        route = self.scenario.topology.route(HOST, d)
        return float(route.nanoseconds(self.scenario.graph.index.size[t])) if route else inf

    def _copy(self, t: int, source: int, target: int) -> float:
        route = self.scenario.topology.route(source, target)
        if route is None:
            return inf
        if self.scenario.is_resident(t):
            return 0.0
        time = float(route.nanoseconds(self.scenario.graph.index.size[t]))
        if self._over_bus(route.channels):
            return time * len(self._devices) if self.adjustments.path_contention else time
        return time * LINK_FACTOR if self.adjustments.link_contention else time

    def _over_bus(self, channels: tuple[int, ...]) -> bool:
        """Return whether a route shares a channel with transfers between the host and some device."""
        topology = self.scenario.topology
        ends = [(HOST, d) for d in self._devices] + [(d, HOST) for d in self._devices]
        on_bus = {c for a, b in ends if (route := topology.route(a, b)) for c in route.channels}
        return bool(on_bus & set(channels))

    def _buses(self) -> list[list[int]]:
        groups: dict[object, list[int]] = {}
        for d in self._devices:
            route = self.scenario.topology.route(HOST, d)
            key = route.channels[0] if route is not None and self.adjustments.contention else ("own", d)
            groups.setdefault(key, []).append(d)
        return list(groups.values())

    def _slow_direct(self) -> None:
        """Slow direct host access to the worst case: all devices of the bus read directly and load at the same time."""
        sharing: dict[object, int] = {}
        routes = [self.scenario.topology.route(HOST, d) for d in self._devices]
        for route in routes:
            if route is not None:
                sharing[route.channels[0]] = sharing.get(route.channels[0], 0) + 1
        for o, row in enumerate(self.direct):
            for d, route in enumerate(routes):
                if not self.scenario.graph.index.host_inputs[o]:
                    row[d] = self.kernel[o][d]
                elif route is not None and self.adjustments.direct_contention:
                    row[d] *= 2 * sharing[route.channels[0]]


def _time(ns: int) -> float:
    return inf if ns == FORBIDDEN else float(ns)


def _averages(row: list[float]) -> list[float]:
    finite = [time for time in row if time < inf]
    return [sum(finite) / len(finite) if time < inf else inf for time in row]
