"""`Relaxation`: least times that all bounds share: ends, heads and tails of operators, and delays between them."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

from tvm_sched_runtime.problem import FORBIDDEN, Problem
from tvm_sched_runtime.schedule.native_objects import native_problem

from .host_traffic import HostTraffic
from .neighbours import Neighbour, through_port, together_or_apart
from .region_placement import MOST_DEVICES, Delay, delays
from .region_ports import port_delays
from .region_sharing import fastest_copies, shared_delays
from .region_work import Work, work_delays

Array = npt.NDArray[np.float64]

ROUNDED_OFF = 1e-3
"""Nanoseconds by which the simulator may end a stage, or an operator on a stream, before its exact time (``kSlack`` of
``cpp/simulate/concurrency.cc``, and ``kRest`` of ``streams.cc``, which is less)."""


@dataclass(frozen=True)
class Relaxation:
    """Least times of operators, and between operators, in nanoseconds (``docs/proofs/heads_and_tails.md``)."""

    problem: Problem
    """Without variants, with operators."""
    extra: tuple[Delay, ...] = ()
    """Delays between any operators, such as those of groups; they come first in `delays`."""
    starts: tuple[Delay, ...] = ()
    """Least ends of operators, as delays from the start of the run."""
    of_schedules: bool = True
    """Whether runs are schedules of the problem, with all transfers; not so for a relaxed problem, or a part of a run."""
    own_copies: bool = True
    """Whether each activation has copies of its own; not so for a relaxed problem."""

    @cached_property
    def host(self) -> HostTraffic:
        """Least costs of host tensors."""
        return HostTraffic(self.problem, self.best)

    @cached_property
    def best(self) -> Array:
        """(operators, devices): the faster of both modes; infinite where an operator cannot run."""
        fastest = np.minimum(self.problem.costs.operator_ns, self.problem.costs.direct_ns)
        return np.where(fastest == FORBIDDEN, np.inf, fastest.astype(np.float64))

    @cached_property
    def shortest(self) -> Array:
        """(operators,): least time, on the best device and in the faster mode."""
        return self.best.min(axis=1)

    @cached_property
    def busy(self) -> list[Array]:
        """(operators, devices) for each resource: least occupancy time (``docs/proofs/index.md``, Lemma 1)."""
        concurrency = self.problem.costs.concurrency
        if concurrency is None:
            return [self.best]
        serial, ratio = concurrency.serial_share, self._least_pair_ratio
        parts = [ratio * (serial + (1 - serial) * u) for u in np.moveaxis(concurrency.utilisation, 2, 0)]
        finite = np.where(np.isfinite(self.best), self.best, 1.0)
        return [np.maximum(finite * part - ROUNDED_OFF, 0.0) + self._never for part in parts]

    @property
    def _never(self) -> Array:
        """(operators, devices): 0, infinite where an operator cannot run."""
        return np.where(np.isfinite(self.best), 0.0, np.inf)

    @property
    def _least_pair_ratio(self) -> float:
        concurrency = self.problem.costs.concurrency
        assert concurrency is not None
        return min(concurrency.factor, native_problem(self.problem).least_pair_ratio())

    @cached_property
    def after(self) -> Array:
        """(operators,): tail, by Lemmas 1, 3 and 4."""
        delays: dict[int, list[Delay]] = defaultdict(list)
        for delay in self.delays:
            delays[delay.first].append(delay)
        after = np.zeros(len(self.shortest))
        index = self.problem.graph.index
        for o in reversed(index.order):
            for s in index.successors[o]:
                after[o] = max(after[o], self.shortest[s] + after[s])
            if len(index.successors[o]) > 1:
                beside = [
                    Neighbour(after[s], self.share[s], self.shortest[s] + after[s] + self.copies[o, s])
                    for s in index.successors[o]
                ]
                after[o] = max(after[o], together_or_apart(beside))
            for delay in delays[o]:
                after[o] = max(after[o], delay.ns + after[delay.last])
        return after

    @cached_property
    def source(self) -> int:
        """The operator with the longest time after it; `delays` are of regions behind it."""
        index = self.problem.graph.index
        rank = np.zeros(len(self.shortest))
        for o in reversed(index.order):
            rank[o] = self.shortest[o] + max((rank[s] for s in index.successors[o]), default=0.0)
        return int(rank.argmax())

    @cached_property
    def delays(self) -> list[Delay]:
        """All known delays."""
        regions = sorted([*self.region_delays, *self.port_delays], key=lambda delay: delay.ns)
        return work_delays(self.problem, self.work, self.source, regions, self.extra)

    @cached_property
    def region_delays(self) -> list[Delay]:
        """Delays by placement or sharing, without those by work."""
        if self.work.exclusive and len(self.problem.topology.devices) <= MOST_DEVICES:
            return delays(self.problem, self.best, self.source)
        return shared_delays(self.problem, self.shortest, self.share, self.source)

    @cached_property
    def port_delays(self) -> list[Delay]:
        """Delays by ports."""
        if self.of_schedules and self.work.exclusive and len(self.problem.topology.devices) <= MOST_DEVICES:
            return port_delays(self.problem, self.best, self.source)
        return []

    @property
    def work(self) -> Work:
        """The least times of operators, in the form that bounds of regions take."""
        return Work(self.shortest, self.busy, self.problem.costs.concurrency is None)

    @cached_property
    def _by_arrival(self) -> tuple[Array, Array]:
        """(operators,): least time in modes that wait for no load, and in modes that do; infinite without such a mode."""
        costs = self.problem.costs
        normal = np.where(costs.operator_ns == FORBIDDEN, np.inf, costs.operator_ns.astype(np.float64))
        direct = np.where(costs.direct_ns == FORBIDDEN, np.inf, costs.direct_ns.astype(np.float64))
        shares = np.array([self.problem.reads_host_in_place(d) for d in range(len(self.problem.topology.devices))])
        at_once = np.minimum(np.where(shares, normal, np.inf), direct).min(axis=1)
        return at_once, np.where(shares, np.inf, normal).min(axis=1)

    @cached_property
    def end(self) -> Array:
        """(operators,): least end, by Lemmas 1 to 5."""
        index = self.problem.graph.index
        at_once, loaded = (times.tolist() for times in self._by_arrival)
        floor = self.host.ancestors_on_bus
        delays: dict[int, list[Delay]] = defaultdict(list)
        for delay in self.delays:
            delays[delay.last].append(delay)
        floor = floor.copy()
        for delay in self.starts:
            floor[delay.last] = max(floor[delay.last], delay.ns)
        end = np.zeros(len(index.inputs))
        for o in index.order:
            ready = self._ready(o, end)
            arrived = max((self.host.arrival[t] for t in index.host_inputs[o]), default=0.0)
            end[o] = max(min(ready + at_once[o], max(ready, arrived) + loaded[o]), floor[o])
            for delay in delays[o]:
                end[o] = max(end[o], end[delay.first] + delay.ns)
        return end

    def _ready(self, o: int, end: Array) -> float:
        """Return the head of an operator that its predecessors give (Lemmas 1 and 3)."""
        before = self.problem.graph.index.predecessors[o]
        ready = max((float(end[p]) for p in before), default=0.0)
        if len(before) > 1:
            heads = [self.ready_at[p] for p in before]
            beside = [
                Neighbour(h, self.share[p], end[p] + self.copies[p, o]) for p, h in zip(before, heads, strict=True)
            ]
            ready = max(ready, together_or_apart(beside))
            if self.has_ports:
                work, copies = [self.share[p] for p in before], [self.copies[p, o] for p in before]
                ready = max(ready, through_port(min(heads), min(end[p] for p in before), work, copies))
        self.ready_at[o] = ready
        return ready

    @cached_property
    def has_ports(self) -> bool:
        """Whether all copies to a device take turns on a channel, for each device."""
        devices, route = range(len(self.problem.topology.devices)), self.problem.topology.route
        to = [[set(r.channels) for a in devices if a != d and (r := route(a, d))] for d in devices]
        return self.own_copies and all(set.intersection(*ways) for ways in to if ways)

    @cached_property
    def ready_at(self) -> dict[int, float]:
        """Results of `_ready`, filled in topological order by `end`."""
        return {}

    @cached_property
    def share(self) -> Array:
        """(operators,): least occupancy time over the devices, for the resource with the most work in all."""
        return max(self.busy, key=lambda work: float(work.min(axis=1).sum())).min(axis=1)

    @cached_property
    def copies(self) -> dict[tuple[int, int], float]:
        """Least time of the copies between two operators on different devices; infinite if no route joins two devices."""
        index = self.problem.graph.index
        copy = fastest_copies(self.problem)
        least: dict[tuple[int, int], float] = {}
        for o, read in enumerate(index.inputs):
            for t in read:
                p = index.producer[t]
                if p >= 0:
                    least[p, o] = max(least.get((p, o), 0.0), copy[t])
        return least

    @cached_property
    def start(self) -> Array:
        """(operators,): head, by Lemmas 1 to 5."""
        index = self.problem.graph.index
        early = np.isfinite(self._by_arrival[0])
        start = np.zeros(len(index.inputs))
        for o in index.order:
            start[o] = self._ready(o, self.end)
            if not early[o]:
                start[o] = max(start[o], max((self.host.arrival[t] for t in index.host_inputs[o]), default=0.0))
        return start
