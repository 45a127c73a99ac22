"""The bound ``assignment``: paths, devices and buses weighed together, with the transfers that each device's operators need.

Proof: Theorem 1 of ``docs/proofs/assignment.md``. The weights are the dual solution of a linear program over shares of
operators on devices.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import combinations
from types import MappingProxyType
from typing import NamedTuple

import numpy as np

from tvm_sched_runtime.problem import FORBIDDEN, HOST, Problem, Route

from .linear_program import row_prices
from .path_and_bus import SCALE, Step, integer_steps
from .priced_regions import SAFETY, PricedRegion, RegionPrices
from .relaxation import Relaxation

LARGEST = 1600
"""Largest product of operators and devices; the linear programs of many more have too many entries for `row_prices`."""

LEVELS = 48
"""Largest number of rows of a bus, each for transfers that at least some time follows."""

LEAST_PRICE, ROUNDED = 1e-12, 1e-9
"""Prices up to the first are the solver's rounding; times are lowered by a part, as the second says, for that of sums."""


class BusRow(NamedTuple):
    """The transfers of a bus, or of the storage, that at least ``least`` ns follow, with their weight."""

    channel: int
    least: int
    weight: int


class Copy(NamedTuple):
    """What the reader of an activation pays for a copy, by place, if the maker runs elsewhere."""

    tensor: int
    reader: int
    prices: dict[int, int]


class _Share(NamedTuple):
    """An option of an operator, and the variable that says how much of the operator takes it."""

    variable: int
    device: int
    direct: bool
    ns: int


class _Traffic(NamedTuple):
    """A transfer, or a direct read: the least time behind it, the variable of which it is a part, and its time."""

    follows: float
    variable: int
    ns: int


class WeighedAssignment(NamedTuple):
    """A bound in nanoseconds, and the weights that prove it."""

    ns: float
    steps: dict[Step, int]
    devices: list[int]
    buses: list[BusRow]
    copies: list[Copy]
    place: list[int]
    """By device, the first device of its place."""
    regions: Sequence[PricedRegion] = ()


def assignment_bound(relaxation: Relaxation) -> WeighedAssignment | None:
    """Return the bound; None for large problems, and for equal devices of one place, where the other bounds are stronger."""
    program = AssignmentProgram(relaxation)
    topology, options = relaxation.problem.topology, len(relaxation.shortest) * len(relaxation.problem.topology.devices)
    if not relaxation.of_schedules or topology.maps_storage or not program.load_channels or options > LARGEST:
        return None
    if len(set(program.place)) == 1 and (relaxation.best == relaxation.best[:, :1]).all():
        return None
    return program.solved()


@dataclass(frozen=True)
class AssignmentProgram:
    """Devices with their buses, options of operators, and the linear program over them."""

    relaxation: Relaxation

    @cached_property
    def problem(self) -> Problem:
        """The relaxed problem."""
        return self.relaxation.problem

    @cached_property
    def loads(self) -> list[Route | None]:
        """By device, the route of a load; None if it shares host memory."""
        return [self.problem.topology.route(HOST, d) for d in range(len(self.problem.topology.devices))]

    @cached_property
    def load_channels(self) -> list[int]:
        """The channels that are weighed: the buses downwards, or the storage where loads take turns on it."""
        return sorted({route.channels[0] for route in self.loads if route is not None})

    @cached_property
    def place(self) -> list[int]:
        """By device, the first device of its place: devices between which copies occupy no weighed channel either way."""
        place, route = list(range(len(self.loads))), self.problem.topology.route
        for a, b in combinations(range(len(place)), 2):
            ways = route(a, b), route(b, a)
            if all(way is not None and not set(way.channels) & {*self.load_channels} for way in ways):
                kept, gone = sorted((place[a], place[b]))
                place = [kept if each == gone else each for each in place]
        return place

    @cached_property
    def entries(self) -> dict[tuple[bool, int], list[Route]]:
        """Routes into each place from outside of it, by whether they carry a host tensor; one of each kind and speed.

        None into a place where host tensors are from the start.
        """
        found: dict[tuple[bool, int], dict[object, Route]] = defaultdict(dict)
        devices = range(len(self.place))
        for d in devices:
            outside, topology = [s for s in devices if self.place[s] != self.place[d]], self.problem.topology
            copies = [topology.route(s, d) for s in outside]
            for host, routes in ((True, [topology.host_route(s, d) for s in (HOST, *outside)]), (False, copies)):
                for route in routes:
                    if route is not None:
                        channels = tuple(c for c in route.channels if c in self.load_channels)
                        found[host, self.place[d]][channels, route.bandwidth, route.latency] = route
        for d, route in enumerate(self.loads):
            if route is None:
                found.pop((True, self.place[d]), None)
        return {key: list(routes.values()) for key, routes in found.items()}

    @cached_property
    def before_end(self) -> tuple[list[float], list[float]]:
        """Least times from the last byte of host tensors, and from the arrival of activations, to the end of the run."""
        relaxation = self.relaxation
        return (relaxation.host.residual + relaxation.after).tolist(), (relaxation.shortest + relaxation.after).tolist()

    @cached_property
    def reader_of(self) -> dict[int, int]:
        """The reader to which each host tensor is assigned: one that cannot read directly, else that reads most of it."""
        index, direct = self.problem.graph.index, self.relaxation.host.direct
        best: dict[int, tuple[float, float, int]] = {}
        for o, (tensors, sizes) in enumerate(zip(index.host_inputs, index.host_bytes, strict=True)):
            for t, size in zip(tensors, sizes, strict=True):
                key = float(size) if direct[o] else np.inf, self.before_end[0][o], -o
                best[t] = max(best.get(t, key), key)
        return {t: -negative for t, (*_, negative) in best.items()}

    def options(self, o: int) -> list[tuple[int, bool, int]]:
        """Return device, whether it reads directly, and time of each way to run an operator."""
        costs = self.problem.costs
        return [
            (d, direct, int(ns))
            for direct, row in ((False, costs.operator_ns[o]), (True, costs.direct_ns[o]))
            for d, ns in enumerate(row)
            if ns != FORBIDDEN
        ]

    def solved(self) -> WeighedAssignment | None:
        """Solve the linear program, round its dual solution to integers, and compute what they prove."""
        index, unit = self.problem.graph.index, max(float(self.relaxation.shortest.sum()), 1.0)
        model = _Model(unit)
        latency, shares = model.variable(), self._add_shares(model)
        traffic, entries = self._add_entries(model, shares)
        steps = self._add_steps(model, latency, shares)
        work = self._add_devices(model, latency, shares)
        rows = self._add_buses(model, latency, traffic)
        prices = model.dual(latency)
        if prices is None:
            return None
        kept = {step: prices[row] for step, row in steps.items() if prices[row] > LEAST_PRICE}
        devices = [int(SCALE * prices[work[d]]) if d in work else 0 for d in range(len(self.place))]
        buses = [BusRow(*key, int(SCALE * prices[row])) for key, row in rows.items() if prices[row] > LEAST_PRICE]
        weighed = {row.channel for row in buses if row.weight}
        buses += [BusRow(channel, 0, 1) for channel in self.load_channels if channel not in weighed]  # else places join
        copies = self.useful_copies({key: prices[row] * unit for key, row in entries.items()}, buses)
        plain = self.value(integer_steps(index.order, kept), devices, buses, copies)
        both = [each for each in (plain, self._with_regions(devices, buses, copies)) if each is not None]
        return max(both, key=lambda each: each.ns, default=None)

    def _add_shares(self, model: _Model) -> list[list[_Share]]:
        """Add the share of each option of each operator; they add up to 1."""
        shares = [
            [_Share(model.variable(), *option) for option in self.options(o)]
            for o in range(len(self.relaxation.shortest))
        ]
        for own in shares:
            model.chosen([share.variable for share in own])
        return shares

    def _add_entries(
        self, model: _Model, shares: list[list[_Share]]
    ) -> tuple[dict[int, list[_Traffic]], dict[tuple[int, int, int], int]]:
        """Add the entries of tensors into places: at least the share of a reader there, less that of an activation's maker.

        Returns the traffic of each channel, with the direct reads, and the rows by tensor, reader and place.
        """
        index, rows = self.problem.graph.index, dict[tuple[int, int, int], int]()
        traffic: dict[int, list[_Traffic]] = defaultdict(list)
        for o, own in enumerate(shares):
            for share in own:
                if share.direct and (route := self.loads[share.device]) is not None:
                    read = int(self.problem.host_reads_ns[o, share.device])
                    traffic[route.channels[0]].append(_Traffic(self.before_end[0][o], share.variable, read))
        for t, consumers in enumerate(index.consumers):
            host = index.producer[t] < 0
            readers = [self.reader_of[t]] if host and consumers else consumers
            follows = min((self.before_end[0 if host else 1][b] for b in readers), default=0.0)
            for place in sorted(set(self.place)):
                routes = self.entries.get((host, place), ()) if readers else ()
                entered = [(model.variable(), -1.0) for _ in routes]
                for (variable, _), route in zip(entered, routes, strict=True):
                    for channel in {*route.channels} & {*self.load_channels}:
                        traffic[channel].append(_Traffic(follows, variable, route.nanoseconds(index.size[t])))
                made = [] if host else self._there(shares[index.producer[t]], place)
                for b in readers if routes else ():
                    there = self._there([share for share in shares[b] if not (host and share.direct)], place)
                    if there:
                        row = [*((share, 1.0) for share in there), *((share, -1.0) for share in made), *entered]
                        rows[t, b, place] = model.at_most(row, 0.0)
        return traffic, rows

    def _there(self, shares: Sequence[_Share], place: int) -> list[int]:
        return [share.variable for share in shares if self.place[share.device] == place]

    def _add_steps(self, model: _Model, latency: int, shares: list[list[_Share]]) -> dict[Step, int]:
        """Add the rows of steps, along edges and over delays."""
        index, steps = self.problem.graph.index, dict[Step, int]()
        ends = [model.variable() for _ in shares]
        for o, before in enumerate(index.predecessors):
            taken = [*((share.variable, share.ns / model.unit) for share in shares[o]), (ends[o], -1.0)]
            for p in before or [-1]:
                steps[p, o] = model.at_most([*taken, *([(ends[p], 1.0)] if p >= 0 else [])], 0.0)
            if not index.successors[o]:
                model.at_most([(ends[o], 1.0), (latency, -1.0)], 0.0)
        for (first, last), ns in self.delays.items():
            steps[first, last] = model.at_most([(ends[first], 1.0), (ends[last], -1.0)], -ns / model.unit)
        return steps

    @cached_property
    def delays(self) -> dict[Step, int]:
        """The longest delays between operators that no edge joins, rounded down."""
        before, longest = self.problem.graph.index.predecessors, dict[Step, int]()
        for delay in self.relaxation.delays:
            if delay.first not in before[delay.last]:
                step = delay.first, delay.last
                longest[step] = max(int(delay.ns), longest.get(step, 0))
        return longest

    def _add_devices(self, model: _Model, latency: int, shares: list[list[_Share]]) -> dict[int, int]:
        """Add a row for the work of each device that runs one operator at a time."""
        work: dict[int, list[tuple[int, float]]] = defaultdict(list)
        for own in shares if self.relaxation.work.exclusive else ():
            for share in own:
                work[share.device].append((share.variable, share.ns / model.unit))
        return {d: model.at_most([*row, (latency, -1.0)], 0.0) for d, row in work.items()}

    def _add_buses(self, model: _Model, latency: int, traffic: dict[int, list[_Traffic]]) -> dict[tuple[int, int], int]:
        """Add rows by channel and least time: what at least that time follows takes no longer than the run less the time."""
        rows: dict[tuple[int, int], int] = {}
        for channel in self.load_channels:
            left, later = sorted(traffic[channel], reverse=True), list[tuple[int, float]]()
            for level in _levels([each.follows for each in left]):
                counted = [each for each in left if each.follows >= level]
                left = left[len(counted) :]
                total = model.variable()
                carried = [(each.variable, each.ns / model.unit) for each in counted]
                model.at_most([*carried, *later, (total, -1.0)], 0.0)
                least = int(level * (1 - ROUNDED))
                rows[channel, least] = model.at_most([(total, 1.0), (latency, -1.0)], -least / model.unit)
                later = [(total, 1.0)]
        return rows

    def _weight(self, route: Route, follows: float, buses: Sequence[BusRow]) -> int:
        return sum(row.weight for row in buses if row.channel in route.channels and row.least <= follows)

    def _entry(self, t: int, place: int, follows: float, buses: Sequence[BusRow]) -> int:
        """Return the least price of bringing a tensor to a place."""
        index = self.problem.graph.index
        routes = self.entries.get((index.producer[t] < 0, place), ())
        prices = [route.nanoseconds(index.size[t]) * self._weight(route, follows, buses) for route in routes]
        return min(prices, default=0)

    def useful_copies(self, prices: dict[tuple[int, int, int], float], buses: Sequence[BusRow]) -> list[Copy]:
        """Round prices of copies, in ns; together the readers of a tensor claim no more than a copy costs."""
        claims: dict[tuple[int, int], dict[int, int]] = defaultdict(dict)
        for (t, b, place), price in prices.items():
            if self.problem.graph.index.producer[t] >= 0 and (claim := int(SCALE * price)) > 0:
                claims[t, place][b] = claim
        found: dict[tuple[int, int], dict[int, int]] = defaultdict(dict)
        for (t, place), by_reader in claims.items():
            entry = self._entry(t, place, min(self.before_end[1][b] for b in by_reader), buses)
            total = sum(by_reader.values())
            for b, claim in by_reader.items():
                found[t, b][place] = claim if total <= entry else claim * entry // total
        return [Copy(t, b, claimed) for (t, b), claimed in found.items()]

    def value(
        self,
        steps: Mapping[Step, int],
        devices: list[int],
        buses: list[BusRow],
        copies: list[Copy],
        regions: Mapping[PricedRegion, Sequence[int]] = MappingProxyType({}),
    ) -> WeighedAssignment | None:
        """Return the bound that weights prove, with the members of regions; None if all weights are 0."""
        along, started, total = [0] * len(self.relaxation.shortest), 0, 0
        for (first, last), weight in steps.items():
            started += weight if first < 0 else 0
            if (first, last) in self.delays:
                total += weight * self.delays[first, last]
            else:
                along[last] += weight
        inside = {o for members in regions.values() for o in members}
        for o, costs in enumerate(self._costs(devices, buses, copies)):
            if o not in inside:
                total += min(along[o] * ns + cost for *_, ns, cost in costs)
        total += sum(region.cost for region in regions) + sum(row.least * row.weight for row in buses)
        weights = started + sum(devices) + sum(row.weight for row in buses)
        if not weights:
            return None
        return WeighedAssignment(total / weights, dict(steps), devices, buses, copies, self.place, tuple(regions))

    def _costs(
        self, devices: list[int], buses: list[BusRow], copies: list[Copy]
    ) -> list[list[tuple[int, bool, int, int]]]:
        """Return the options of each operator, as in `options`, with the cost of each but for the weight of steps."""
        index = self.problem.graph.index
        shares: dict[tuple[int, int], int] = defaultdict(int)  # by operator and place
        for t, b, prices in copies:
            for place, price in prices.items():
                shares[b, place] += price
                shares[index.producer[t], place] -= price
        assigned: dict[int, list[int]] = defaultdict(list)
        for t, o in self.reader_of.items():
            assigned[o].append(t)
        costs = []
        for o in range(len(index.inputs)):
            follows, own = self.before_end[0][o], []
            for d, direct, ns in self.options(o):
                cost, route = devices[d] * ns + shares[o, self.place[d]], self.loads[d]
                if not direct:
                    cost += sum(self._entry(t, self.place[d], follows, buses) for t in assigned[o])
                elif route is not None:
                    cost += int(self.problem.host_reads_ns[o, d]) * self._weight(route, follows, buses)
                own.append((d, direct, ns, cost))
            costs.append(own)
        return costs

    def _with_regions(self, devices: list[int], buses: list[BusRow], copies: list[Copy]) -> WeighedAssignment | None:
        """Return the bound with regions priced as wholes in place of the steps; None if there are none."""
        rest, count = sum(devices) + sum(row.weight for row in buses), len(self.place)
        if rest < SCALE >> 10 or not self.relaxation.work.exclusive:
            return None  # of smaller weights, rounding would be more than `SAFETY`
        time, price = np.full((2, len(self.relaxation.shortest), 2 * count), np.inf)
        for o, costs in enumerate(self._costs(devices, buses, copies)):
            for d, direct, ns, cost in costs:
                time[o, d + count * direct], price[o, d + count * direct] = ns, cost / rest
        least = sum(row.least * row.weight for row in buses) / rest
        prices = RegionPrices(self.problem, time, price, self.relaxation.shortest, least)
        if not prices.regions:
            return None
        paths = prices.best_weight()
        weight, scale = int(rest * paths / (1 - paths)), rest / (1 - paths) * (1 - SAFETY)
        regions = {
            PricedRegion(*step, weight, int(cost * scale)): prices.regions[step][0]
            for step, cost in prices.costs(paths).items()
        }
        if min(region.cost for region in regions) < 0:
            return None
        return self.value(dict.fromkeys(prices.path, weight), devices, buses, copies, regions)


def _levels(follows: Sequence[float]) -> list[float]:
    """Return the distinct values, largest first, or `LEVELS` of them, evenly spread; the least is among them."""
    distinct = np.unique(follows)[::-1]
    return (
        distinct[np.unique(np.linspace(0, len(distinct) - 1, LEVELS).astype(np.int64))].tolist()
        if len(distinct)
        else []
    )


class _Model:
    """A linear program in which all variables are at least 0."""

    def __init__(self, unit: float) -> None:
        self.unit = unit  # nanoseconds
        self._count = 0
        self._rows: list[list[tuple[int, float]]] = []
        self._limits: list[float] = []
        self._chosen: list[list[int]] = []

    def variable(self) -> int:
        """Add a variable."""
        self._count += 1
        return self._count - 1

    def at_most(self, row: list[tuple[int, float]], limit: float) -> int:
        """Add a row that is at most a limit; return its number."""
        self._rows.append(row)
        self._limits.append(limit)
        return len(self._rows) - 1

    def chosen(self, shares: list[int]) -> None:
        """Require that shares add up to 1."""
        self._chosen.append(shares)

    def dual(self, minimised: int) -> list[float] | None:
        """Minimise a variable; return the price of each row, at least 0; None if the solver fails or takes too long."""
        from scipy.sparse import coo_array  # slow, and problems without this bound need not wait for it

        rows, columns, values = zip(*((r, c, v) for r, row in enumerate(self._rows) for c, v in row), strict=True)
        limits = coo_array((values, (rows, columns)), shape=(len(self._rows), self._count))
        pairs = [(r, c) for r, shares in enumerate(self._chosen) for c in shares]
        chosen = coo_array(
            (np.ones(len(pairs)), tuple(zip(*pairs, strict=True))), shape=(len(self._chosen), self._count)
        )
        return row_prices(minimised, limits.tocsr(), self._limits, chosen.tocsr())
