"""Search for stage order and devices together, for unequal devices or links, or for a limit of latency."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations, pairwise

import numpy as np

from tvm_sched_runtime.errors import ProblemError
from tvm_sched_runtime.pipeline.pipeline_plan import Priced, Stage
from tvm_sched_runtime.pipeline.stage_pricing import Assignment, price
from tvm_sched_runtime.problem import FORBIDDEN, Problem
from tvm_sched_runtime.problem.partition_problem import Floats, Integers, PartitionProblem

from .device_annealing import DeviceAnnealing
from .segments import Cut, least_bottleneck, least_sum

_STEPS = 30
"""Halvings in the search for a bottleneck that meets a latency ceiling."""


@dataclass(frozen=True)
class Candidate(Priced):
    """A plan's stages, priced."""

    stages: list[Stage]


@dataclass(frozen=True)
class Goal:
    """Objective of a plan; without a ceiling it is the throughput."""

    latency_ceiling_ns: int | None = None
    """Best throughput among plans with at most this latency."""
    cost_ceiling_ns: int | None = None
    """Least latency among plans with at most this bottleneck."""

    def key(self, candidate: Candidate) -> tuple[int, int, int]:
        """Return a key, smaller for better candidates: the excess over a limit comes first."""
        over = 0
        if self.latency_ceiling_ns is not None:
            over = max(candidate.latency_ns - self.latency_ceiling_ns, 0)
        if self.cost_ceiling_ns is not None:
            over = max(over, candidate.cost_ns - self.cost_ceiling_ns)
            return over, candidate.latency_ns, candidate.cost_ns
        return over, candidate.cost_ns, candidate.latency_ns

    def cut(self, costs: Sequence[Floats]) -> Cut:
        """Return the best cut of a chain with these costs of segments."""
        if self.cost_ceiling_ns is not None:
            cheapest = least_sum(costs, self.cost_ceiling_ns)
            return cheapest if cheapest.ends else least_bottleneck(costs)
        best = least_bottleneck(costs)
        if self.latency_ceiling_ns is None or not best.ends:
            return best
        low, chosen = best.value, least_sum(costs, float("inf"))
        high = max(float(cost[a, b]) for cost, (a, b) in zip(costs, pairwise((0, *chosen.ends)), strict=True))
        for _ in range(_STEPS):  # bisection for the least bottleneck whose cut meets the ceiling
            middle = (low + high) / 2
            cut = least_sum(costs, middle)
            if cut.ends and cut.value <= self.latency_ceiling_ns:
                high, chosen = middle, cut
            else:
                low = middle
        return chosen


class DeviceSearch:
    """Search over sequences of devices; each sequence is cut along topological orders with the costs of its devices.

    With unequal links, a cut uses the fastest route's transfer times, since a stage's neighbours are not known yet. It is
    then priced with the true times, and `DeviceAnnealing` improves it with them.

    Parameters
    ----------
    problem, relaxed
        ``relaxed`` is the result of `relax` for all allowed devices.
    devices : sequence of int
    stages : int
        Largest number of stages.
    """

    def __init__(
        self, problem: Problem, relaxed: PartitionProblem, devices: Sequence[int], stages: int, goal: Goal
    ) -> None:
        self.problem, self.relaxed, self.devices, self.goal = problem, relaxed, list(devices), goal
        self.stages = min(stages, len(self.devices))
        self.best: Candidate | None = None
        self.best_assignment: Assignment | None = None

    def run(self, orders: Sequence[Integers], end: float, equal: bool = False, seed: int = 0) -> Candidate | None:
        """Return the best plan along the orders before the time ``end``; None if no plan can run.

        One sequence of ``equal`` devices is enough.
        """
        random = np.random.default_rng(seed)
        for order in orders:
            segments = self._segments(order)
            sequence = self.devices[: self.stages]
            best = self._try(order, segments, sequence)
            improved = not equal
            while improved and time.monotonic() < end:
                improved = False
                for other in _neighbours(sequence, self.devices, random):
                    key = self._try(order, segments, other)
                    if key < best:
                        best, sequence, improved = key, other, True
                        break
                    if time.monotonic() >= end:
                        break
        self._anneal(end, seed)
        return self.best

    def _anneal(self, end: float, seed: int) -> None:
        """Anneal from the best plan, or from all operators on one device."""
        start = self.best_assignment or [(self.devices[0], range(len(self.problem.graph.operators)))]
        sequence = [device for device, _ in start]
        spare = [device for device in self.devices if device not in sequence]
        places = self.stages - len(sequence)
        stage_of = [0] * len(self.problem.graph.operators)
        for s, (_, operators) in enumerate(start):
            for o in operators:
                stage_of[o] = s
        annealing = DeviceAnnealing(
            self.problem,
            [*sequence, *spare[:places]],
            spare[places:],
            stage_of,
            lambda stages: self.goal.key(Candidate(list(stages))),
        )
        for assignment in annealing.run(seed, end):
            self.offer(assignment)

    def offer(self, assignment: Sequence[tuple[int, Sequence[int]]]) -> tuple[int, int, int]:
        """Price an assignment and keep it if it is the best so far; returns its key."""
        used = [(device, operators) for device, operators in assignment if len(operators)]
        if any(self.problem.costs.operator_ns[o, d] == FORBIDDEN for d, operators in used for o in operators):
            return _NEVER
        try:
            candidate = Candidate(price(self.problem, used))
        except ProblemError:  # no route between two devices
            return _NEVER
        memory = {device.name: device.memory for device in self.problem.topology.devices}
        if any(stage.peak_bytes > memory[stage.device] for stage in candidate.stages):
            return _NEVER
        if self.best is None or self.goal.key(candidate) < self.goal.key(self.best):
            self.best, self.best_assignment = candidate, used
        return self.goal.key(candidate)

    def _try(self, order: Integers, segments: Callable[[int], Floats], sequence: list[int]) -> tuple[int, int, int]:
        cut = self.goal.cut([segments(device) for device in sequence])
        if not cut.ends:
            return _NEVER
        begins = [0, *cut.ends[:-1]]
        parts = [[int(o) for o in order[a:b]] for a, b in zip(begins, cut.ends, strict=True)]
        return self.offer(list(zip(sequence, parts, strict=True)))

    def _segments(self, order: Integers) -> Callable[[int], Floats]:
        """Return a function from a device to the costs of an order's segments on it."""
        costs = self.relaxed.segment_costs(order)
        least = _sums(self.relaxed.work[order])
        known: dict[int, Floats] = {}

        def on(device: int) -> Floats:
            if device not in known:
                work = self.problem.costs.operator_ns[order, device].astype(np.float64)
                work[work >= float(FORBIDDEN)] = np.inf
                known[device] = costs + np.nan_to_num(_sums(work) - least, nan=np.inf, posinf=np.inf)
            return known[device]

        return on


_NEVER = (1 << 62, 1 << 62, 1 << 62)


def _sums(values: Floats) -> Floats:
    """Return an array with ``[l, r]`` the sum of the values from l to r - 1; 0 for an empty range."""
    forbidden = np.concatenate([[0], np.cumsum(np.isinf(values))])
    total = np.concatenate([[0.0], np.cumsum(np.where(np.isinf(values), 0, values))])
    sums = np.where(np.tri(len(total), dtype=bool).T, total[None, :] - total[:, None], 0.0)
    return np.where(forbidden[None, :] > forbidden[:, None], np.inf, sums)


def _neighbours(sequence: list[int], devices: Sequence[int], random: np.random.Generator) -> Iterator[list[int]]:
    """Yield, in random order, the sequences with two devices swapped or one replaced by an unused device."""
    moves: list[tuple[int, int | None, int | None]] = [(i, j, None) for i, j in combinations(range(len(sequence)), 2)]
    moves += [(i, None, d) for i in range(len(sequence)) for d in devices if d not in sequence]
    for m in random.permutation(len(moves)):
        i, j, device = moves[int(m)]
        other = list(sequence)
        if j is not None:
            other[i], other[j] = other[j], other[i]
        elif device is not None:
            other[i] = device
        yield other
