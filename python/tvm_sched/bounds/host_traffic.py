"""Least arrival times of host tensors and least times for which they occupy the buses."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

from tvm_sched_runtime.problem import FORBIDDEN, HOST, Problem, Route

Array = npt.NDArray[np.float64]


@dataclass(frozen=True)
class HostTraffic:
    """Least times to bring parameters and graph inputs to the devices, in nanoseconds."""

    problem: Problem
    best: Array
    """The faster of both modes; infinite where an operator cannot run."""

    @cached_property
    def shortest(self) -> Array:
        """(operators,): least time, on the best device and in the faster mode."""
        return self.best.min(axis=1)

    @cached_property
    def arrival(self) -> list[float]:
        """(tensors,): least time of a load over any bus; infinite without a bus, 0 if a link leads past one (`bypass`)."""
        if self.bypass:
            return [0.0] * len(self.problem.graph.index.size)
        sizes, latencies = self.problem.graph.index.size, self.problem.topology.set_latencies
        if not latencies:
            return least_times(self._host_routes, sizes).tolist()
        routes = ((self.problem.topology.route(HOST, d), latency) for d, latency in latencies.items())
        return np.min([route.nanoseconds_of(sizes) + latency for route, latency in routes if route], axis=0).tolist()

    @cached_property
    def set_latency(self) -> float:
        """Least nanoseconds of latency of a set of joined parameters; 0 if parameters are not joinable.

        It is also 0 where several operators may share a direct read. Proof: Lemma 2 of ``docs/proofs/joined.md``.
        """
        latencies = self.problem.topology.set_latencies
        if not latencies or not self._owns_reads:
            return 0.0
        return float(min(latencies.values()))

    @cached_property
    def further_latency(self) -> float:
        """The least weighted latency of a set on a bus, with the weights `bus_share`."""
        return min(
            (self.bus_share[d] * latency for d, latency in self.problem.topology.set_latencies.items()), default=0.0
        )

    @property
    def _owns_reads(self) -> bool:
        """Whether each direct read belongs to one operator; not so in relaxed problems of variants."""
        return self.problem.costs.host_read_ns is not None or not any(self.direct)

    @cached_property
    def bypass(self) -> bool:
        """Whether a link from a device that shares host memory leads to a device with a bus, past that bus."""
        devices, route = range(len(self.problem.topology.devices)), self.problem.topology.route
        sharing = [d for d in devices if self.problem.reads_host_in_place(d)]
        return any(
            (path := route(a, b)) is not None
            and (down := route(HOST, b)) is not None
            and path.channels != down.channels
            for a in sharing
            for b in devices
        )

    @cached_property
    def must_cross(self) -> list[bool]:
        """Whether each operator is bound to the bus: no device that can run it shares host memory."""
        if self.bypass:
            return [False] * len(self.shortest)
        shares = np.array([self.problem.reads_host_in_place(d) for d in range(len(self.problem.topology.devices))])
        return [bool(not (np.isfinite(row) & shares).any()) for row in self.best]

    @cached_property
    def crossing(self) -> Array:
        """(tensors,): bus time of each host tensor if all buses carry it together: bytes over the sum of bandwidths."""
        if not self._bandwidth:
            return np.zeros(len(self.problem.graph.index.size))
        if self.problem.topology.set_latencies:
            return self.loading
        return np.array(self.problem.graph.index.size, dtype=np.float64) * 1e9 / self._bandwidth

    @cached_property
    def direct(self) -> list[bool]:
        """Whether each operator may read its host tensors directly on some device."""
        return [bool(allowed) for allowed in (self.problem.costs.direct_ns != FORBIDDEN).any(axis=1)]

    def carried(self, o: int) -> list[float]:
        """Return the least bus time, as in `crossing`, of each of an operator's host tensors.

        A direct read carries only the bytes that the operator reads; a load carries the whole tensor.
        """
        index = self.problem.graph.index
        if not self.direct[o]:
            return [float(self.crossing[t]) for t in index.host_inputs[o]]
        return [
            float(self.crossing[t]) * (read / index.size[t] if index.size[t] else 0.0)
            for t, read in zip(index.host_inputs[o], index.host_bytes[o], strict=True)
        ]

    @cached_property
    def least_carried(self) -> Array:
        """(tensors,): the least of `carried` over the readers bound to the bus."""
        least = self.crossing.copy()
        for o, read in enumerate(self.problem.graph.index.host_inputs):
            if self.must_cross[o]:
                least[list(read)] = np.minimum(least[list(read)], self.carried(o))
        return least

    @cached_property
    def transfer_latency(self) -> float:
        """Least nanoseconds that the latency of one transfer adds to the weighted mean of the buses' busy times."""
        return min((self._share(route) * max(route.latency, 0.0) * 1e9 for route in self._host_routes), default=0.0)

    @cached_property
    def turns(self) -> Array:
        """(tensors,): `transfer_latency` for the tensors of Lemma 6 of ``docs/proofs/heads_and_tails.md``, else 0."""
        index = self.problem.graph.index
        turns, charged = np.zeros(len(index.size)), set()
        for t, readers in enumerate(index.consumers):
            crossing = [o for o in readers if self.must_cross[o]]
            if index.producer[t] >= 0 or not crossing:
                continue
            if not any(self.direct[o] for o in crossing):
                turns[t] = self.transfer_latency
            elif len(crossing) == 1 and crossing[0] not in charged:
                turns[t] = self.transfer_latency
                charged.add(crossing[0])
        return turns

    @cached_property
    def bus_share(self) -> Array:
        """(devices,): weight of each device's bus, its part of all bandwidth; 0 without a bus, 1 behind storage."""
        topology = self.problem.topology
        routes = [topology.route(HOST, d) for d in range(len(topology.devices))]
        return np.array([self._share(route) if route else 0.0 for route in routes])

    @cached_property
    def loading(self) -> Array:
        """(tensors,): least weighted bus time of a load, with the weights `bus_share`."""
        topology, sizes = self.problem.topology, self.problem.graph.index.size
        least = np.full(len(sizes), np.inf)
        for d, share in enumerate(self.bus_share.tolist()):
            if (route := topology.route(HOST, d)) is not None:
                least = np.minimum(least, share * route.nanoseconds_of(sizes))
        return least

    @cached_property
    def reading(self) -> Array:
        """(operators, devices): weighted bus time of the direct read of each operator; infinite where it is not allowed.

        Without the latency, if `set_latency` counts.
        """
        allowed, reads = self.problem.costs.direct_ns != FORBIDDEN, self.problem.host_reads_ns
        if self.set_latency:
            latencies = self.problem.topology.set_latencies
            reads = np.maximum(reads - [latencies.get(d, 0) for d in range(reads.shape[1])], 0)
        return np.where(allowed, self.bus_share * reads, np.inf)

    @cached_property
    def least_read(self) -> Array:
        """(operators,): the least of `reading` over the devices."""
        return self.reading.min(axis=1)

    @property
    def bus_of(self) -> list[int]:
        """The bus of each route from host memory, or the storage through which all loads go."""
        return [route.channels[0] for route in self._host_routes]

    def _share(self, route: Route) -> float:
        return self._fastest[route.channels[0]] / self._bandwidth

    @cached_property
    def _bandwidth(self) -> float:
        return sum(self._fastest.values())

    @cached_property
    def _fastest(self) -> dict[int, float]:
        """Bandwidth of each bus, or of the storage through which all loads go: that of the fastest of its routes."""
        fastest: dict[int, float] = {}
        for route in self._host_routes:
            fastest[route.channels[0]] = max(route.bandwidth, fastest.get(route.channels[0], 0.0))
        return fastest

    @cached_property
    def _host_routes(self) -> list[Route]:
        topology = self.problem.topology
        return [route for d in range(len(topology.devices)) if (route := topology.route(HOST, d))]

    @cached_property
    def residual(self) -> Array:
        """(operators,): least time between the last byte of an operator's host tensors and its end."""
        costs = self.problem.costs
        loaded = np.where(costs.operator_ns == FORBIDDEN, np.inf, costs.operator_ns.astype(np.float64))
        after_read = np.where(costs.direct_ns == FORBIDDEN, np.inf, costs.direct_ns - self.problem.host_reads_ns)
        return np.minimum(loaded, after_read).min(axis=1)

    @cached_property
    def ancestors_on_bus(self) -> Array:
        """(operators,): least end after the buses have carried what it and its ancestors read.

        Proof: Lemma 5 of ``docs/proofs/heads_and_tails.md``.
        """
        index = self.problem.graph.index
        hosts = sorted({t for o, read in enumerate(index.host_inputs) if self.must_cross[o] for t in read})
        if not hosts:
            return np.zeros(len(index.inputs))
        column = {t: i for i, t in enumerate(hosts)}
        weights = (self.least_carried + self.turns)[hosts]
        needed: list[int] = [0] * len(index.inputs)
        for o in index.order:
            bits = 0
            if self.must_cross[o]:
                for t in index.host_inputs[o]:
                    bits |= 1 << column[t]
            for p in index.predecessors[o]:
                bits |= needed[p]
            needed[o] = bits
        carried = _weigh(needed, weights)
        result = np.zeros(len(needed))
        for o, bits in enumerate(needed):
            if bits:
                own = self.must_cross[o] and index.host_inputs[o]
                remaining = min(self.residual[o], self.shortest[o]) if own else self.shortest[o]
                result[o] = self.set_latency + carried[o] + remaining
        return result


def least_times(routes: Iterable[Route], sizes: Sequence[int]) -> Array:
    """Return (sizes,): time of a transfer of each size over the fastest of some routes; infinite without a route."""
    distinct = {(route.bandwidth, route.latency): route for route in routes}
    least = np.full(len(sizes), np.inf)
    for route in distinct.values():
        least = np.minimum(least, route.nanoseconds_of(sizes))
    return least


def _weigh(sets: list[int], weights: Array) -> Array:
    """Return the sum of weights of each set of bits; 256 rows at a time, which takes few megabytes."""
    width, rows = (len(weights) + 7) // 8, 256
    padded = np.zeros(8 * width)
    padded[: len(weights)] = weights
    sums = []
    for first in range(0, len(sets), rows):
        packed = b"".join(bits.to_bytes(width, "little") for bits in sets[first : first + rows])
        table = np.unpackbits(np.frombuffer(packed, dtype=np.uint8).reshape(-1, width), axis=1, bitorder="little")
        sums.append(table.astype(np.float64) @ padded)
    return np.concatenate(sums)
