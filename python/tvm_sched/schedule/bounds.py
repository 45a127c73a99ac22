"""Lower bounds: latencies below which no schedule of a problem can get, whatever scheduler makes it.

Every bound is a relaxation of the rules in ``docs/model.md``, so it holds for all feasible schedules. Peer copies are
taken as free, but for those next to an operator and between branches of one region, and a bus may carry any part of a
tensor at any moment.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from ..problem import FORBIDDEN, HOST, Problem, Route
from .regions import Span, spans
from .shared_regions import fastest_copies, shared_spans

Array = npt.NDArray[np.float64]

MARGIN = 1e-9
"""Relative slack for floating-point sums, so that rounding never lifts a bound above the truth."""


class Bound(NamedTuple):
    """A lower bound in nanoseconds and the argument that gave it."""

    ns: int
    name: str

    @property
    def seconds(self) -> float:
        """The bound in seconds."""
        return self.ns / 1e9


def lower_bound(problem: Problem) -> Bound:
    """The best of all bounds.

    Parameters
    ----------
    problem : Problem

    Returns
    -------
    Bound
        ``name`` is ``"critical path"``, ``"device work"`` or ``"bus"``.

    Notes
    -----
    *Critical path*: each operator on its best device, its parameters over the fastest bus, copies free; in addition an
    operator ends no earlier than all buses together can carry the parameters of its ancestors; the predecessors of an
    operator, its successors, and branches between it and one that it dominates (`tvm_sched.schedule.regions`, and
    `shared_regions` where operators may run together) share a device or pay for copies. The times of such regions add up
    along the model, and what follows the last byte of a prefix of the parameters is counted by them too.
    *Device work*: the operators that must be followed by at least ``t`` and preceded by at least ``r`` of other work fill
    the devices in between; unequal devices are weighted by multipliers (Lagrangian dual of the fractional assignment).
    Where operators may run together, each counts for the part of a resource that it needs (`Concurrency`), for each
    resource in turn.
    *Bus*: the parameters whose readers must be followed by at least ``t`` of work cross the buses first; bytes read by
    direct host access cross them too.
    """
    if not problem.graph.operators:
        return Bound(0, "critical path")
    relaxation = _Relaxation(problem)
    return max(all_bounds(relaxation), key=lambda bound: bound.ns)


def all_bounds(relaxation: _Relaxation | Problem) -> list[Bound]:
    """Each bound, in order of `lower_bound`'s notes."""
    if isinstance(relaxation, Problem):
        relaxation = _Relaxation(relaxation)
    return [
        Bound(_floor(_critical_path(relaxation)), "critical path"),
        Bound(_floor(_device_work(relaxation)), "device work"),
        Bound(_floor(_bus(relaxation)), "bus"),
    ]


def _floor(value: float) -> int:
    return int(np.floor(value * (1 - MARGIN)))


@dataclass(frozen=True)
class _Relaxation:
    """What the bounds have in common, in nanoseconds."""

    problem: Problem

    @cached_property
    def best(self) -> Array:
        """(operators, devices): the faster of both modes; infinite where an operator cannot run."""
        fastest = np.minimum(self.problem.costs.operator_ns, self.problem.costs.direct_ns)
        return np.where(fastest == FORBIDDEN, np.inf, fastest.astype(np.float64))

    @cached_property
    def shortest(self) -> Array:
        """(operators,): on the best device."""
        return self.best.min(axis=1)

    @cached_property
    def busy(self) -> list[Array]:
        """(operators, devices) for each resource: for how long at least an operator occupies a device, alone or with others.

        Operators that run together occupy it for no less than the sum of theirs, since a set takes at least
        ``serial_share * sum(t) + (1 - serial_share) * sum(t * u)``, times the least ratio that was measured of a pair.
        """
        concurrency = self.problem.costs.concurrency
        if concurrency is None:
            return [self.best]
        serial, ratio = concurrency.serial_share, self._least_pair_ratio
        parts = [ratio * (serial + (1 - serial) * u) for u in np.moveaxis(concurrency.utilisation, 2, 0)]
        return [np.where(np.isfinite(self.best), self.best, 1.0) * part + self._never for part in parts]

    @property
    def _never(self) -> Array:
        """(operators, devices): 0, infinite where an operator cannot run."""
        return np.where(np.isfinite(self.best), 0.0, np.inf)

    @property
    def _least_pair_ratio(self) -> float:
        concurrency = self.problem.costs.concurrency
        assert concurrency is not None
        serial, used, alone = concurrency.serial_share, concurrency.utilisation, self.problem.costs.operator_ns
        ratio = 1.0
        for d, a, b, ns in concurrency.pairs:
            times = np.array([alone[a, d], alone[b, d]], dtype=np.float64)
            longest = max(times.max(), (times[:, None] * used[[a, b], d]).sum(axis=0).max())
            ratio = min(ratio, ns / (serial * times.sum() + (1 - serial) * longest))
        return ratio

    @cached_property
    def after(self) -> Array:
        """(operators,): least time between the end of an operator and the end of the run."""
        spans: dict[int, list[Span]] = defaultdict(list)
        for span in self.spans:
            spans[span.first].append(span)
        after = np.zeros(len(self.shortest))
        index = self.problem.graph.index
        for o in reversed(index.order):
            for s in index.successors[o]:
                after[o] = max(after[o], self.shortest[s] + after[s])
            if (
                len(index.successors[o]) > 1
            ):  # those that run where ``o`` did share its device, the others pay for copies
                after[o] = max(
                    after[o],
                    _together_or_apart(
                        [
                            _Beside(after[s], self.share[s], self.shortest[s] + after[s] + self.copies[o, s])
                            for s in index.successors[o]
                        ]
                    ),
                )
            for span in spans[o]:
                after[o] = max(after[o], span.ns + after[span.last])
        return after

    @cached_property
    def spans(self) -> list[Span]:
        """Pairs of operators between which lies at least some time."""
        index = self.problem.graph.index
        rank = np.zeros(len(self.shortest))
        for o in reversed(index.order):
            rank[o] = self.shortest[o] + max((rank[s] for s in index.successors[o]), default=0.0)
        source = int(rank.argmax())
        if self.problem.costs.concurrency is None:
            return spans(self.problem, self.best, source)
        return shared_spans(self.problem, self.shortest, self.share, source)

    @cached_property
    def arrival(self) -> list[float]:
        """Least time in which each host tensor gets into a device that has a bus; infinite where there is none."""
        if self.bypass:
            return [0.0] * len(self.problem.graph.index.size)
        return [
            min((route.nanoseconds(size) for route in self._host_routes), default=np.inf)
            for size in self.problem.graph.index.size
        ]

    @cached_property
    def end(self) -> Array:
        """(operators,): least time at which each operator can end."""
        index, costs = self.problem.graph.index, self.problem.costs
        in_place = [self.problem.reads_host_in_place(d) for d in range(len(self.problem.topology.devices))]
        floor = self.ancestors_on_bus
        spans = {span.last: span for span in self.spans}
        end = np.zeros(len(index.inputs))
        for o in index.order:
            ready = self._ready(o, end)
            arrived = max((self.arrival[t] for t in index.host_inputs[o]), default=0.0)
            ends = np.inf
            for d, shares in enumerate(in_place):
                if costs.operator_ns[o, d] != FORBIDDEN:
                    ends = min(ends, (ready if shares else max(ready, arrived)) + costs.operator_ns[o, d])
                if costs.direct_ns[o, d] != FORBIDDEN:
                    ends = min(ends, ready + costs.direct_ns[o, d])
            end[o] = max(ends, floor[o])
            if o in spans:
                end[o] = max(end[o], end[spans[o].first] + spans[o].ns)
        return end

    def _ready(self, o: int, end: Array) -> float:
        """Least time at which an operator can start for the sake of its predecessors, given their ends."""
        before = self.problem.graph.index.predecessors[o]
        ready = max((float(end[p]) for p in before), default=0.0)
        if len(before) > 1:  # those that run where ``o`` will share its device, the others pay for copies
            heads = [self.ready_at[p] for p in before]
            beside = [_Beside(h, self.share[p], end[p] + self.copies[p, o]) for p, h in zip(before, heads, strict=True)]
            ready = max(ready, _together_or_apart(beside))
        self.ready_at[o] = ready
        return ready

    @cached_property
    def ready_at(self) -> dict[int, float]:
        """What `_ready` found; filled in topological order by `end`."""
        return {}

    @cached_property
    def share(self) -> Array:
        """(operators,): for how long at least each occupies whatever device it runs on."""
        return max(self.busy, key=lambda work: float(work.min(axis=1).sum())).min(axis=1)

    @cached_property
    def copies(self) -> dict[tuple[int, int], float]:
        """Least time of the copies between two operators on different devices; infinite where nothing joins any."""
        index = self.problem.graph.index
        copy = fastest_copies(self.problem)
        found: dict[tuple[int, int], float] = {}
        for o, read in enumerate(index.inputs):
            for t in read:
                p = index.producer[t]
                if p >= 0:
                    found[p, o] = max(found.get((p, o), 0.0), copy[t])
        return found

    @cached_property
    def start(self) -> Array:
        """(operators,): least time at which each operator can start, in whatever mode."""
        index, costs = self.problem.graph.index, self.problem.costs
        shares = np.array([self.problem.reads_host_in_place(d) for d in range(len(self.problem.topology.devices))])
        early = (costs.direct_ns != FORBIDDEN).any(axis=1) | ((costs.operator_ns != FORBIDDEN) & shares).any(axis=1)
        start = np.zeros(len(index.inputs))
        for o in index.order:
            start[o] = self._ready(o, self.end)
            if not early[o]:
                start[o] = max(start[o], max((self.arrival[t] for t in index.host_inputs[o]), default=0.0))
        return start

    @cached_property
    def bypass(self) -> bool:
        """Whether host tensors can reach a device otherwise than over its bus: a link to one that shares host memory."""
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
        """Whether the host tensors of an operator must cross a bus for it: no device that can run it shares host memory."""
        if self.bypass:
            return [False] * len(self.shortest)
        shares = np.array([self.problem.reads_host_in_place(d) for d in range(len(self.problem.topology.devices))])
        return [bool(not (np.isfinite(row) & shares).any()) for row in self.best]

    @cached_property
    def crossing(self) -> Array:
        """(tensors,): share of the run for which a host tensor keeps the buses busy, all buses taken as one.

        With multipliers proportional to the bandwidths, the Lagrangian bound is bytes over the sum of bandwidths.
        """
        down = {route.channels: route.bandwidth for route in self._host_routes}
        total = sum(down.values())
        if not total:
            return np.zeros(len(self.problem.graph.index.size))
        return np.array(self.problem.graph.index.size, dtype=np.float64) * 1e9 / total

    @property
    def transfer_latency(self) -> float:
        """Share of the run, at least, for which the latency of one transfer keeps the buses busy, taken as in `crossing`."""
        total = sum({route.channels: route.bandwidth for route in self._host_routes}.values())
        return min((route.bandwidth / total * route.latency * 1e9 for route in self._host_routes), default=0.0)

    @cached_property
    def turns(self) -> Array:
        """(tensors,): `transfer_latency` for each host tensor whose readers cannot share a transfer with others.

        One whose readers all must load it travels alone. One that a single operator reads travels alone or in that
        operator's direct read; then one of the operator's tensors is charged.
        """
        index = self.problem.graph.index
        direct = (self.problem.costs.direct_ns != FORBIDDEN).any(axis=1)
        turns, charged = np.zeros(len(index.size)), set()
        for t, readers in enumerate(index.consumers):
            crossing = [o for o in readers if self.must_cross[o]]
            if index.producer[t] >= 0 or not crossing:
                continue
            if not direct[crossing].any():
                turns[t] = self.transfer_latency
            elif len(crossing) == 1 and crossing[0] not in charged:
                turns[t] = self.transfer_latency
                charged.add(crossing[0])
        return turns

    @property
    def _host_routes(self) -> list[Route]:
        topology = self.problem.topology
        return [route for d in range(len(topology.devices)) if (route := topology.route(HOST, d))]

    @cached_property
    def residual(self) -> Array:
        """(operators,): least time between the last byte of an operator's host tensors and its end."""
        costs = self.problem.costs
        rest = np.full(len(self.shortest), np.inf)
        for d in range(len(self.problem.topology.devices)):
            loaded = np.where(costs.operator_ns[:, d] == FORBIDDEN, np.inf, costs.operator_ns[:, d].astype(np.float64))
            rest = np.minimum(rest, loaded)
            for o in np.flatnonzero(costs.direct_ns[:, d] != FORBIDDEN):
                rest[o] = min(rest[o], int(costs.direct_ns[o, d]) - self.problem.host_read_ns(int(o), d))
        return rest

    @cached_property
    def ancestors_on_bus(self) -> Array:
        """(operators,): an operator cannot end before the buses have carried all that its ancestors and it read."""
        index = self.problem.graph.index
        hosts = sorted({t for o, read in enumerate(index.host_inputs) if self.must_cross[o] for t in read})
        if not hosts:
            return np.zeros(len(index.inputs))
        column = {t: i for i, t in enumerate(hosts)}
        weights = (self.crossing + self.turns)[hosts]
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
                # The last byte may be an ancestor's: then at least the shortest time of ``o`` follows. If it is ``o``'s own,
                # what follows is what a kernel still does after its last byte.
                own = self.must_cross[o] and index.host_inputs[o]
                rest = min(self.residual[o], self.shortest[o]) if own else self.shortest[o]
                result[o] = carried[o] + rest
        return result


class _Beside(NamedTuple):
    """A neighbour of an operator, seen from that operator: times count towards it, whichever way it lies.

    ``head`` is before the neighbour's work at least, ``work`` is that work, ``apart`` is when the operator can go on if the
    two are on different devices.
    """

    head: float
    work: float
    apart: float


def _together_or_apart(neighbours: list[_Beside]) -> float:
    """Least time at which an operator can go on for the sake of all its neighbours on one side.

    Whatever the set of those on its own device, it waits for the slowest of the others, and the set holds all that are
    slower apart. These run on one device, each after its head: no less than the least head of some of them and the work of
    these. The least over all sets is over as many as there are neighbours.
    """
    by_apart = sorted(neighbours, key=lambda n: -n.apart)
    together: list[_Beside] = []
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


def _weigh(sets: list[int], weights: Array) -> Array:
    """Sum of weights over each set of bits; some rows at a time, so that 10,000 sets of 10,000 bits take few megabytes."""
    width, rows = (len(weights) + 7) // 8, 256
    padded = np.zeros(8 * width)
    padded[: len(weights)] = weights
    sums = []
    for first in range(0, len(sets), rows):
        packed = b"".join(bits.to_bytes(width, "little") for bits in sets[first : first + rows])
        table = np.unpackbits(np.frombuffer(packed, dtype=np.uint8).reshape(-1, width), axis=1, bitorder="little")
        sums.append(table.astype(np.float64) @ padded)
    return np.concatenate(sums)


def _critical_path(relaxation: _Relaxation) -> float:
    return float((relaxation.end + relaxation.after).max())


def _device_work(relaxation: _Relaxation) -> float:
    """Operators that start late and must be followed by much fill the devices between these two."""
    best = 0.0
    for busy in relaxation.busy:
        weights = device_weights(busy)
        work = np.where(np.isfinite(busy), busy * weights, np.inf).min(axis=1)
        best = max(best, _between_ends(work, relaxation.start, relaxation.after))
    if relaxation.problem.costs.concurrency is not None:  # then an operator need not be busy all the time until its end
        return best
    # An operator that ends at ``end`` or later is busy for its shortest time after ``end - shortest``, even where a slow
    # device or mode lets it start before; then no more than its shortest time may be counted.
    late = relaxation.end - relaxation.shortest
    least = np.where(np.isfinite(relaxation.best), weights, np.inf).min(axis=1) * relaxation.shortest
    return max(best, _between_ends(least, late, relaxation.after))


THRESHOLDS = 256
"""Starts, at most, from which on `_between_ends` looks at operators."""


def _between_ends(work: Array, start: Array, after: Array) -> float:
    """Largest of ``s + work of the operators that start at s or later and are followed by at least a + a``, over s and a.

    For the starts there are, or as many of them as `THRESHOLDS`, and all ``a``; O(THRESHOLDS x operators).
    """
    order = np.argsort(-after, kind="stable")
    start, work, after = start[order], work[order], after[order]
    starts = np.unique(start)
    starts = starts[np.unique(np.linspace(0, len(starts) - 1, THRESHOLDS).astype(np.int64))]
    best = 0.0
    for s in starts:
        late = start >= s
        best = max(best, float(s + (np.cumsum(work[late]) + after[late]).max()))
    return best


def device_weights(best: Array, rounds: int = 60) -> Array:
    """Multipliers of the devices that make the sum over operators of ``min_d weight_d * time_od`` large.

    They are non-negative and add up to one; any such weights give a valid bound, so subgradient steps that stop early do
    no harm. On equal devices they are equal.
    """
    devices = best.shape[1]
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


def _bus(relaxation: _Relaxation) -> float:
    """Host tensors sorted by what must follow their arrival; each prefix crosses the buses before that.

    Each transfer takes the bus's latency, too. A tensor travels alone to a reader that must load it; those that one reader
    may fetch in a single direct read have one latency together.
    """
    problem, index = relaxation.problem, relaxation.problem.graph.index
    direct = (problem.costs.direct_ns != FORBIDDEN).any(axis=1)
    follows = np.full(len(index.size), -1.0)
    reader = [-1] * len(index.size)
    for o, read in enumerate(index.host_inputs):
        if relaxation.must_cross[o]:
            for t in read:
                if relaxation.residual[o] + relaxation.after[o] > follows[t]:
                    follows[t], reader[t] = relaxation.residual[o] + relaxation.after[o], o
    hosts = np.flatnonzero(follows >= 0)
    if not len(hosts):
        return 0.0
    busy = relaxation.crossing.copy()
    in_one_read: set[int] = set()
    for t in hosts.tolist():
        if not direct[reader[t]] or reader[t] not in in_one_read:
            busy[t] += relaxation.transfer_latency
            in_one_read.add(reader[t])
    order = hosts[np.argsort(-follows[hosts], kind="stable")]
    return float((np.cumsum(busy[order]) + follows[order]).max())
