"""A lower bound from paths, devices and buses together: direct reads spare the bus but make an operator slower.

The bound
---------
No path through the graph, no device and no bus is busy for longer than the run, so nor is any weighted mean of their times,
the weights being from 0 and of sum one. In this mean an operator counts by what it did: its time on its device, in its mode,
by the weights of the paths that it is on and of that device, and what it made the buses carry, by theirs. So no schedule is
shorter than the sum over operators of the least that each can count for, whatever device and mode. A bound on the path alone
lets every operator run at its normal speed, as if its parameters were loaded, and one on the buses alone lets it spare them.

*Paths* are steps: of an operator after the one that it reads from, no sooner than that has ended, for its own time; or by a
delay (`regions`, `region_work`), from the end of one operator to that of another, whatever runs between. Steps have weights,
and what arrives at an operator is no less than what goes on from there. With the times ``e`` at which operators end, each
step says that ``e[last] - e[first]`` is at least its time. Summed up by weights, what arrives at operators and goes on
cancels out, and what ends there is no later than the run: so the sum of the steps' times is at most the weight of the steps
from the start of the run, times the latency.

*Devices* run one operator at a time if the costs have no concurrency; else they have no weight.

*Buses* carry one transfer at a time: direct reads, and loads of host tensors. Only operators count that a certain time must
follow, after the last byte of their host tensors has crossed: all transfers counted end so long before the run does. Each of
their tensors counts for one of them (`bus.BusTraffic`): where that runs on a device with a bus without direct host access,
the tensor was loaded once at least, over whatever bus, and copied from there perhaps, which is free here.

The weights are the multipliers of a linear program, the least latency if operators may be divided among their ways. They
come from a solver, but any give a bound, and what they give is summed up here.

It holds beside all that the model knows: streams and stages take no operator less time than alone, nor buses; memory,
evictions and copies only cost more; of variants and resident parameters it is the relaxed problem's (`lower_bound`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from ..problem import FORBIDDEN
from .bus import Crossing, bus_bound, bus_traffic, readers_by_tail
from .heads_and_tails import device_weights
from .relaxation import Relaxation

Array = npt.NDArray[np.float64]
Step = tuple[int, int]
"""From the end of an operator, or the start of the run (-1), to the end of another."""

SCALE = 1 << 60
"""Weights are integers whose sum is about this: what is stored as evidence is what was summed up."""

LOST = 1e-6
"""Part of the weights that may get lost by the solver's tolerance, so that few steps are added for what is lost."""

LARGEST = 4000
"""Operators of a problem at most; the linear program of more takes seconds."""


class Weights(NamedTuple):
    """Multipliers: of each step, of all devices and of all buses (both divided among them as their other bounds do)."""

    steps: Mapping[Step, int]
    devices: int
    buses: int


class WeightedBound(NamedTuple):
    """A bound in nanoseconds, its weights, and the operators whose host tensors it counts, followed by ``least``.

    ``devices`` are the multipliers of the devices among each other.
    """

    ns: float
    weights: Weights
    devices: Array
    least: float
    readers: list[int]


def path_and_bus_bound(relaxation: Relaxation) -> WeightedBound | None:
    """The bound; None where those of path or buses alone are as strong, or there are more operators than `LARGEST`."""
    crossing = bus_bound(relaxation)
    if not any(relaxation.host.direct[o] for o in crossing.readers) or len(relaxation.shortest) > LARGEST:
        return None
    known = max(crossing.ns, float((relaxation.end + relaxation.after).max()))
    follows, order = readers_by_tail(relaxation)
    everything = Crossing(0.0, float(follows[order[-1]]), order)
    found = []
    for each in (crossing, everything)[: 1 + (crossing.readers != everything.readers)]:
        dual = _Dual(relaxation, each)
        weights = dual.solved() if dual.at_most > known else None
        if weights is not None:
            found.append(WeightedBound(dual.value(weights), weights, dual.devices, each.least, each.readers))
    return max(found, key=lambda weighed: weighed.ns, default=None)


@dataclass(frozen=True)
class _Dual:
    """The linear program for transfers of some readers, and what weights are worth."""

    relaxation: Relaxation
    crossing: Crossing

    @cached_property
    def ways(self) -> tuple[Array, Array, Array]:
        """(operators, ways) each: time; the same by the devices' multipliers; share of the run of the buses.

        Ways are devices, normal and direct, but for those that are alike. Infinite where an operator has no such way.
        """
        problem, host, operators = self.relaxation.problem, self.relaxation.host, self.crossing.readers
        modes = [problem.costs.operator_ns, problem.costs.direct_ns]
        time = [np.where(ns == FORBIDDEN, np.inf, ns.astype(np.float64)) for ns in modes]
        busy = [np.where(ns == FORBIDDEN, np.inf, ns * self.devices) for ns in modes]
        carried = [np.where(np.isfinite(ns), 0.0, np.inf) for ns in time]
        carried[0][operators] += bus_traffic(self.relaxation, operators).loads[operators, None]
        carried[1][operators] = host.reading[operators]
        all_ways = np.stack([np.concatenate(each, axis=1) for each in (time, busy, carried)])
        _, distinct = np.unique(all_ways, axis=2, return_index=True)
        kept = all_ways[:, :, distinct]
        return kept[0], kept[1], kept[2]

    @cached_property
    def devices(self) -> Array:
        """Multipliers of the devices among each other, of sum one; 0 where they run operators together."""
        best = self.relaxation.best
        return device_weights(best) if self.relaxation.work.exclusive else np.zeros(best.shape[1])

    def value(self, weights: Weights) -> float:
        """What weights prove, in nanoseconds; nothing where all are 0."""
        time, busy, carried = self.ways
        along, proved, start = np.zeros(len(time)), 0.0, 0
        for (first, last), weight in weights.steps.items():
            start += weight if first < 0 else 0
            if (delay := self._delay_ns.get((first, last))) is None:
                along[last] += weight
            else:
                proved += weight * delay
        known = np.isfinite(time)
        costs = [
            w * np.where(known, each, 0.0)
            for w, each in ((along[:, None], time), (weights.devices, busy), (weights.buses, carried))
        ]
        least = np.where(known, sum(costs), np.inf).min(axis=1)
        total = start + weights.buses + (weights.devices if self.relaxation.work.exclusive else 0)
        return float(least.sum() + proved + weights.buses * self.crossing.least) / total if total else 0.0

    @cached_property
    def _delay_ns(self) -> dict[Step, float]:
        """Delays that are no edges."""
        before = self.relaxation.problem.graph.index.predecessors
        found: dict[Step, float] = {}
        for first, last, ns in self.relaxation.delays:
            if first not in before[last]:
                found[first, last] = max(ns, found.get((first, last), 0.0))
        return found

    @property
    def at_most(self) -> float:
        """What the bound can be at most, since each operator may have the way that takes the buses least."""
        time, _, carried = self.ways
        chosen = np.lexsort((time, carried), axis=1)[:, :1]
        took, worked, crossed = (np.take_along_axis(each, chosen, axis=1)[:, 0] for each in self.ways)
        end, index = np.zeros(len(time)), self.relaxation.problem.graph.index
        delays: dict[int, list[tuple[int, float]]] = {}
        for (first, last), ns in self._delay_ns.items():
            delays.setdefault(last, []).append((first, ns))
        for o in index.order:
            end[o] = took[o] + max((end[p] for p in index.predecessors[o]), default=0.0)
            end[o] = max([end[o], *(end[first] + ns for first, ns in delays.get(o, ()))])
        return max(float(end.max()), float(worked.sum()), float(crossed.sum()) + self.crossing.least)

    def solved(self) -> Weights | None:
        """The multipliers of the linear program."""
        program = _Program(self)
        flow = program.multipliers()
        return None if flow is None else self._integers(*flow)

    def _integers(self, flow: Mapping[Step, float], devices: float, buses: float) -> Weights:
        """Integer weights with no more outflow than inflow at each operator.

        To the solver an operator that takes 1e-8 of the run takes nothing, so that nothing need arrive there; then what goes
        on from it starts with it.
        """
        index = self.relaxation.problem.graph.index
        given = {step: weight for step, weight in flow.items() if weight > 0}
        arriving, going = ([0.0] * (len(index.inputs) + 1) for _ in range(2))  # the last is the start of the run, -1
        for (first, last), weight in given.items():
            going[first] += weight
            arriving[last] += weight
        for o in index.order:
            if (missing := going[o] - arriving[o]) > LOST * going[o]:
                given[-1, o] = given.get((-1, o), 0.0) + missing
                arriving[o] = going[o]
                going[-1] += missing
        leaving: dict[int, list[tuple[int, float]]] = {}
        for (first, last), weight in given.items():
            leaving.setdefault(first, []).append((last, weight))
        steps: dict[Step, int] = {}
        arrived = [*[0] * len(index.inputs), int(SCALE * going[-1])]
        for o in (-1, *index.order):
            left = arrived[o]
            for last, weight in leaving.get(o, ()):
                goes = min(left, int(arrived[o] * (weight / max(arriving[o], going[o]))))
                if goes > 0:
                    steps[o, last] = goes
                    arrived[last] += goes
                    left -= goes
        return Weights(steps, int(SCALE * devices), int(SCALE * buses))


@dataclass
class _Program:
    """Least latency ``L``, ends ``e`` of operators, shares ``x`` of their ways, in units of ``unit`` nanoseconds."""

    dual: _Dual
    rows: list[list[tuple[int, float]]] = field(default_factory=list)
    limits: list[float] = field(default_factory=list)
    steps: list[Step | None] = field(default_factory=list)

    def _add(self, row: list[tuple[int, float]], limit: float, step: Step | None = None) -> None:
        self.rows.append(row)
        self.limits.append(limit)
        self.steps.append(step)

    def multipliers(self) -> tuple[dict[Step, float], float, float] | None:
        """Of steps, of the devices and of the buses; None where the solver fails."""
        time, busy, carried = self.dual.ways
        unit, index = max(float(self.dual.relaxation.shortest.sum()), 1.0), self.dual.relaxation.problem.graph.index
        operators, ways = np.nonzero(np.isfinite(time))
        latency, end = len(operators) + len(time), len(operators)
        shares: list[list[int]] = [[] for _ in time]
        for i, o in enumerate(operators.tolist()):
            shares[o].append(i)
        taken = (time[operators, ways] / unit).tolist()
        for o, before in enumerate(index.predecessors):
            own = [(i, taken[i]) for i in shares[o]]
            for p in before or [-1]:
                self._add([*own, (end + o, -1.0), *([(end + p, 1.0)] if p >= 0 else [])], 0.0, (p, o))
            if not index.successors[o]:
                self._add([(end + o, 1.0), (latency, -1.0)], 0.0)
        for (first, last), ns in self.dual._delay_ns.items():
            self._add([(end + first, 1.0), (end + last, -1.0)], -ns / unit, (first, last))
        for each, limit in ((busy, 0.0), (carried, -self.dual.crossing.least / unit)):
            self._add([*enumerate((each[operators, ways] / unit).tolist()), (latency, -1.0)], limit)
        from scipy.optimize import linprog  # half a second, which problems without direct reads need not wait for
        from scipy.sparse import coo_array

        chosen = coo_array(
            (np.ones(len(operators)), (operators, np.arange(len(operators)))), shape=(len(time), latency + 1)
        )
        entries = [(r, c, v) for r, row in enumerate(self.rows) for c, v in row]
        r, c, v = (np.array(each) for each in zip(*entries, strict=True))
        bounds = coo_array((v, (r, c)), shape=(len(self.rows), latency + 1))
        goal = np.zeros(latency + 1)
        goal[latency] = 1.0
        found = linprog(goal, bounds.tocsr(), self.limits, chosen.tocsr(), np.ones(len(time)), method="highs")
        if found.status != 0:
            return None
        prices = np.maximum(-found.ineqlin.marginals, 0.0).tolist()
        flow = {step: price for step, price in zip(self.steps, prices, strict=True) if step and price > 1e-12}
        return flow, prices[-2], prices[-1]
