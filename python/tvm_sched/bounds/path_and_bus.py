"""The bound ``path and bus``: paths, devices and buses weighed together, for operators that may read host memory directly.

Proof: Theorem 1 of ``docs/proofs/path_and_bus.md``. The weights are the dual solution of a linear program.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from tvm_sched_runtime.problem import FORBIDDEN

from .bus import Crossing, bus_bound, bus_traffic, readers_by_tail
from .heads_and_tails import device_weights
from .linear_program import row_prices
from .priced_regions import SAFETY, PricedRegion, RegionPrices
from .relaxation import Relaxation

Array = npt.NDArray[np.float64]
Step = tuple[int, int]
"""From the end of an operator, or the start of the run (-1), to the end of another."""

SCALE = 1 << 60
"""Weights are integers with about this sum, so evidence stores exactly the weights of the bound."""

LOST = 1e-6
"""Part of a weight that may be dropped because of the solver's tolerance; more is added as a step from the start."""

LARGEST = 4000
"""Largest number of operators; the linear program of more takes seconds."""


class Weights(NamedTuple):
    """Weights of each step, of all devices and of all buses; the last two are divided as in the other bounds."""

    steps: Mapping[Step, int]
    devices: int
    buses: int


class WeightedBound(NamedTuple):
    """A bound in nanoseconds, its weights, and the operators whose host tensors it counts, followed by ``least``.

    ``devices`` are the weights of the devices relative to each other.
    """

    ns: float
    weights: Weights
    devices: Array
    least: float
    readers: list[int]
    regions: Sequence[PricedRegion] = ()


def path_and_bus_bound(relaxation: Relaxation) -> WeightedBound | None:
    """Return the bound; None if path or bus alone must be as strong, or if there are more than `LARGEST` operators."""
    crossing = bus_bound(relaxation)
    if not any(relaxation.host.direct[o] for o in crossing.readers) or len(relaxation.shortest) > LARGEST:
        return None
    known = max(crossing.ns, float((relaxation.end + relaxation.after).max()))
    follows, order = readers_by_tail(relaxation)
    everything = Crossing(0.0, float(follows[order[-1]]), order)
    candidates = []
    for each in (crossing, everything)[: 1 + (crossing.readers != everything.readers)]:
        dual = PathDual(relaxation, each)
        weights = dual.solved() if dual.at_most > known else None
        if weights is not None:
            candidates.append(WeightedBound(dual.value(weights), weights, dual.devices, each.least, each.readers))
        candidates += dual.by_regions()
    return max(candidates, key=lambda weighed: weighed.ns, default=None)


@dataclass(frozen=True)
class PathDual:
    """The linear program for transfers of some readers, and the bound that weights prove."""

    relaxation: Relaxation
    crossing: Crossing

    @property
    def idle(self) -> float:
        """Nanoseconds of the run in which the buses carry no bytes for the readers: a latency, and what follows them."""
        return self.relaxation.host.set_latency + self.crossing.least

    @cached_property
    def all_options(self) -> tuple[Array, Array, Array]:
        """Three arrays (operators, options): time; time weighted by the device; weighted bus time.

        Options are pairs of a mode and a device, the normal mode first. Infinite where an operator has no such option.
        """
        problem, host, operators = self.relaxation.problem, self.relaxation.host, self.crossing.readers
        modes = problem.costs.operator_ns, problem.costs.direct_ns
        time = [np.where(ns == FORBIDDEN, np.inf, ns.astype(np.float64)) for ns in modes]
        busy = [np.where(ns == FORBIDDEN, np.inf, ns * self.devices) for ns in modes]
        carried = [np.where(np.isfinite(ns), 0.0, np.inf) for ns in time]
        carried[0][operators] += bus_traffic(self.relaxation, operators).loads[operators, None]
        carried[1][operators] = host.reading[operators]
        all_options = np.stack([np.concatenate(each, axis=1) for each in (time, busy, carried)])
        return all_options[0], all_options[1], all_options[2]

    @cached_property
    def options(self) -> tuple[Array, Array, Array]:
        """The same with equal columns merged."""
        all_options = np.stack(self.all_options)
        _, distinct = np.unique(all_options, axis=2, return_index=True)
        kept = all_options[:, :, distinct]
        return kept[0], kept[1], kept[2]

    @cached_property
    def devices(self) -> Array:
        """Weights of the devices, of sum one; 0 if they may run operators together."""
        best = self.relaxation.best
        return device_weights(best) if self.relaxation.work.exclusive else np.zeros(best.shape[1])

    def by_regions(self) -> list[WeightedBound]:
        """Return the bound by regions with prices; none if operators may run together, or the graph has no such region."""
        relaxation = self.relaxation
        if not relaxation.work.exclusive:
            return []
        time, _, carried = self.all_options
        prices = RegionPrices(relaxation.problem, time, carried, relaxation.shortest, self.idle)
        if not prices.regions:
            return []
        paths = int(SCALE * prices.best_weight())
        costs = prices.costs(paths / SCALE)
        regions = [PricedRegion(*step, paths, int(SCALE * (1 - SAFETY) * cost)) for step, cost in costs.items()]
        weights = Weights(dict.fromkeys(prices.path, paths), 0, SCALE - paths)
        ns = prices.value(paths / SCALE) * (1 - SAFETY)
        return [WeightedBound(ns, weights, self.devices, self.crossing.least, self.crossing.readers, regions)]

    def value(self, weights: Weights) -> float:
        """Return the bound in nanoseconds that weights prove; 0 if all are 0."""
        time, busy, carried = self.options
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
        return float(least.sum() + proved + weights.buses * self.idle) / total if total else 0.0

    @cached_property
    def _delay_ns(self) -> dict[Step, float]:
        """Delays between operators that no edge joins; the longest for each pair."""
        before = self.relaxation.problem.graph.index.predecessors
        longest: dict[Step, float] = {}
        for first, last, ns in self.relaxation.delays:
            if first not in before[last]:
                longest[first, last] = max(ns, longest.get((first, last), 0.0))
        return longest

    @property
    def at_most(self) -> float:
        """Largest possible value of the bound: each operator takes the option with least bus time."""
        time, _, carried = self.options
        chosen = np.lexsort((time, carried), axis=1)[:, :1]
        took, worked, crossed = (np.take_along_axis(each, chosen, axis=1)[:, 0] for each in self.options)
        end, index = np.zeros(len(time)), self.relaxation.problem.graph.index
        delays: dict[int, list[tuple[int, float]]] = {}
        for (first, last), ns in self._delay_ns.items():
            delays.setdefault(last, []).append((first, ns))
        for o in index.order:
            end[o] = took[o] + max((end[p] for p in index.predecessors[o]), default=0.0)
            end[o] = max([end[o], *(end[first] + ns for first, ns in delays.get(o, ()))])
        return max(float(end.max()), float(worked.sum()), float(crossed.sum()) + self.idle)

    def solved(self) -> Weights | None:
        """Return the dual solution of the linear program."""
        program = _Program(self)
        flow = program.multipliers()
        return None if flow is None else self.integer_weights(*flow)

    def integer_weights(self, flow: Mapping[Step, float], devices: float, buses: float) -> Weights:
        """Round to integer weights with no more outflow than inflow at each operator."""
        steps = integer_steps(self.relaxation.problem.graph.index.order, flow)
        return Weights(steps, int(SCALE * devices), int(SCALE * buses))


def integer_steps(order: Sequence[int], flow: Mapping[Step, float]) -> dict[Step, int]:
    """Return weights of steps as integers, `SCALE` times as large, with no more outflow than inflow at each operator.

    The solver's tolerance may give an operator that takes 1e-8 of the run no inflow. The missing weight then comes
    from the start of the run.
    """
    weights = {step: weight for step, weight in flow.items() if weight > 0}
    arriving, going = ([0.0] * (len(order) + 1) for _ in range(2))  # the last is the start of the run, -1
    for (first, last), weight in weights.items():
        going[first] += weight
        arriving[last] += weight
    for o in order:
        if (missing := going[o] - arriving[o]) > LOST * going[o]:
            weights[-1, o] = weights.get((-1, o), 0.0) + missing
            arriving[o] = going[o]
            going[-1] += missing
    leaving: dict[int, list[tuple[int, float]]] = {}
    for (first, last), weight in weights.items():
        leaving.setdefault(first, []).append((last, weight))
    steps: dict[Step, int] = {}
    arrived = [*[0] * len(order), int(SCALE * going[-1])]
    for o in (-1, *order):
        left = arrived[o]
        for last, weight in leaving.get(o, ()):
            goes = min(left, int(arrived[o] * (weight / max(arriving[o], going[o]))))
            if goes > 0:
                steps[o, last] = goes
                arrived[last] += goes
                left -= goes
    return steps


@dataclass
class _Program:
    """The linear program over latency, ends of operators and shares of their options, in units of ``unit`` ns."""

    dual: PathDual
    rows: list[list[tuple[int, float]]] = field(default_factory=list)
    limits: list[float] = field(default_factory=list)
    steps: list[Step | None] = field(default_factory=list)

    def _add(self, row: list[tuple[int, float]], limit: float, step: Step | None = None) -> None:
        self.rows.append(row)
        self.limits.append(limit)
        self.steps.append(step)

    def multipliers(self) -> tuple[dict[Step, float], float, float] | None:
        """Return the weights of steps, of the devices and of the buses; None if the solver fails or takes too long."""
        time, busy, carried = self.dual.options
        unit, index = max(float(self.dual.relaxation.shortest.sum()), 1.0), self.dual.relaxation.problem.graph.index
        operators, options = np.nonzero(np.isfinite(time))
        latency, end = len(operators) + len(time), len(operators)
        shares: list[list[int]] = [[] for _ in time]
        for i, o in enumerate(operators.tolist()):
            shares[o].append(i)
        taken = (time[operators, options] / unit).tolist()
        for o, before in enumerate(index.predecessors):
            own = [(i, taken[i]) for i in shares[o]]
            for p in before or [-1]:
                self._add([*own, (end + o, -1.0), *([(end + p, 1.0)] if p >= 0 else [])], 0.0, (p, o))
            if not index.successors[o]:
                self._add([(end + o, 1.0), (latency, -1.0)], 0.0)
        for (first, last), ns in self.dual._delay_ns.items():
            self._add([(end + first, 1.0), (end + last, -1.0)], -ns / unit, (first, last))
        for each, limit in ((busy, 0.0), (carried, -self.dual.idle / unit)):
            self._add([*enumerate((each[operators, options] / unit).tolist()), (latency, -1.0)], limit)
        from scipy.sparse import coo_array  # slow, and problems without direct reads need not wait for it

        chosen = coo_array(
            (np.ones(len(operators)), (operators, np.arange(len(operators)))), shape=(len(time), latency + 1)
        )
        entries = [(r, c, v) for r, row in enumerate(self.rows) for c, v in row]
        r, c, v = (np.array(each) for each in zip(*entries, strict=True))
        bounds = coo_array((v, (r, c)), shape=(len(self.rows), latency + 1))
        prices = row_prices(latency, bounds.tocsr(), self.limits, chosen.tocsr())
        if prices is None:
            return None
        flow = {step: price for step, price in zip(self.steps, prices, strict=True) if step and price > 1e-12}
        return flow, prices[-2], prices[-1]
