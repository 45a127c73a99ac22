"""Find the best cut of a chain into runs of units, each at its own place, exactly over all orders of the places.

Places with equal device, memory and routes to all others are one kind, so eight equal GPUs are nine states and not 256.
Where the runtime keeps the last unit with the first one, because they share weights, the last unit follows the last run.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product

import msgspec
import numpy as np

from tvm_sched_runtime.errors import InputError

from .unit_chain import Chain, Floats, Placement, segments

MOST_STATES = 20_000
"""Largest number of states (used places of each kind) for which all orders are tried."""


@dataclass(frozen=True)
class StageLimits:
    """Constraints on a cut besides memory."""

    stages: int = 0
    """Exact number of runs; 0: any number."""
    longest_ns: float = float("inf")
    """Longest time of a run."""
    tied: bool = False
    """Whether the last unit is at the place of the first one."""


def kinds_of(chain: Chain) -> list[list[int]]:
    """Return the groups of identical places, in the order of the first of each."""
    machine = chain.machine
    count = len(machine.places)
    routes = {(p, q): machine.route(p, q) for p in range(count) for q in range(count) if p != q}

    def like(p: int, q: int) -> bool:
        a, b = machine.places[p], machine.places[q]
        if (a.first, a.load, a.all_reduce, a.links) != (b.first, b.load, b.all_reduce, b.links):
            return False
        if msgspec.structs.replace(a.device, name="x", bus="") != msgspec.structs.replace(b.device, name="x", bus=""):
            return False
        if not np.array_equal(chain.time_ns[:, p], chain.time_ns[:, q]) or _bandwidth_and_latency(
            routes[p, q]
        ) != _bandwidth_and_latency(routes[q, p]):
            return False
        others = [r for r in range(count) if r not in (p, q)]
        return all(
            _bandwidth_and_latency(routes[p, r]) == _bandwidth_and_latency(routes[q, r])
            and _bandwidth_and_latency(routes[r, p]) == _bandwidth_and_latency(routes[r, q])
            for r in others
        )

    kinds: list[list[int]] = []
    for p in range(count):
        same = next((kind for kind in kinds if all(like(p, q) for q in kind)), None)
        if same is None:
            kinds.append([p])
        else:
            same.append(p)
    return kinds


def _bandwidth_and_latency(route: object) -> tuple[float, float]:
    return route.bandwidth, route.latency  # type: ignore[attr-defined]


class Cutter:
    """Dynamic program over the number of used places of each kind, the kind of the last one, and the units done.

    Takes O(states x kinds^2 x units^2).

    Raises
    ------
    InputError
        More combinations of places than `MOST_STATES`.
    """

    def __init__(self, chain: Chain) -> None:
        self.chain = chain
        self.kinds = kinds_of(chain)
        self.counts = [len(kind) for kind in self.kinds]
        states = int(np.prod([count + 1 for count in self.counts]))
        if states > MOST_STATES:
            raise InputError(
                f"the machine has {len(chain.machine.places)} places of {len(self.kinds)} kinds, too many to try all "
                "their orders; give a topology with fewer devices, or with equal ones"
            )
        self.first = [kind[0] for kind in self.kinds]
        times, _ = chain.sums
        units = len(chain.model.units)
        there = np.tri(units + 1, k=-1, dtype=bool).T
        self.cost: list[Floats] = []
        for p in self.first:
            place = chain.machine.places[p]
            cost = np.where(there, (times[None, :, p] - times[:, None, p]).astype(np.float64), np.inf)
            size = chain.segment_bytes if place.load is None else chain.segment_weights
            cost[size > place.device.memory] = np.inf
            if place.first:
                cost[1:] = np.inf
            if place.most_units is not None:
                cost[np.arange(units + 1)[None, :] - np.arange(units + 1)[:, None] > place.most_units] = np.inf
            self.cost.append(cost)
        starts = [k for k, p in enumerate(self.first) if chain.machine.places[p].first]
        for k in range(len(self.kinds)):
            if starts and k not in starts:
                self.cost[k][0] = np.inf

    def best(self, limits: StageLimits | None = None) -> tuple[float, Placement] | None:
        """Return the least sum of times and copies in nanoseconds and its placement; None if nothing fits."""
        limits = limits or StageLimits()
        if limits.tied:
            return self._best_tied()
        units = len(self.chain.model.units)
        cost = self.cost
        if limits.longest_ns < np.inf:
            cost = [np.where(each <= limits.longest_ns, each, np.inf) for each in cost]
        return self._cheapest(cost, units, np.zeros(len(self.kinds)), limits.stages)

    def _cheapest(
        self, cost: list[Floats], units: int, back: Floats, stages: int = 0
    ) -> tuple[float, Placement] | None:
        """Return the least sum for the first ``units``; with several places ``back`` is added, by the kind of the last."""
        done: dict[tuple[tuple[int, ...], int], Floats] = {}
        came: dict[tuple[tuple[int, ...], int], tuple[list[int], list[int]]] = {}
        best: tuple[float, tuple[tuple[int, ...], int]] | None = None
        for state in self._states():
            used = sum(state)
            if used == 0 or (stages and used > stages):
                continue
            for k, number in enumerate(state):
                if number == 0:
                    continue
                values, at, last = self._reach(state, k, cost, done)
                if not np.isfinite(values).any():
                    continue
                done[state, k], came[state, k] = values, (at, last)
                total = values[units] + (back[k] if used > 1 else 0.0)
                if stages in (0, used) and np.isfinite(total) and (best is None or total < best[0]):
                    best = float(total), (state, k)
        return None if best is None else (best[0], self._placement(best[1], came, units))

    def _best_tied(self) -> tuple[float, Placement] | None:
        """Return the best cut in which the last unit is at the place of the first one, and no other unit returns there."""
        chain, last = self.chain, len(self.chain.model.units) - 1
        if last < 1:
            return self.best()
        times, held = chain.sums
        every = range(len(self.kinds))
        best: tuple[float, Placement] | None = None
        for first in every:
            p = self.first[first]
            place = chain.machine.places[p]
            # The first run has the last unit, too; weights that the two share are in its memory once.
            size = held[: last + 1] + held[last + 1] - held[last]
            peak = np.maximum(np.maximum.accumulate(np.append(0, chain.peak[:last])), chain.peak[last])
            if place.load is not None:
                size, peak = np.append(0, np.cumsum(chain.weight[:last])) + chain.weight[last], np.zeros_like(peak)
            head = np.where(size + peak <= place.device.memory, self.cost[first][0, : last + 1], np.inf)
            if place.most_units is not None:
                head[place.most_units :] = np.inf  # the last unit is one of them
            cost = [each[: last + 1, : last + 1].copy() for each in self.cost]
            for k in every:
                cost[k][0] = head if k == first else np.inf
            back = chain.hop_ns[last, self.first, p].copy()
            if len(self.kinds[first]) > 1:
                back[first] = chain.hop_ns[last, self.kinds[first][1], p]
            found = self._cheapest(cost, last, back)
            if found is not None and (best is None or found[0] + times[-1, p] - times[last, p] < best[0]):
                best = float(found[0] + times[-1, p] - times[last, p]), (*found[1], found[1][0])
        return best

    def _states(self) -> Iterator[tuple[int, ...]]:
        return iter(sorted(product(*(range(count + 1) for count in self.counts)), key=sum))

    def _reach(
        self,
        state: tuple[int, ...],
        k: int,
        cost: list[Floats],
        done: dict[tuple[tuple[int, ...], int], Floats],
    ) -> tuple[Floats, list[int], list[int]]:
        """Return the least time until units are done with kind ``k`` last, the start of its run, and the kind before."""
        units = len(cost[k]) - 1
        before = tuple(n - (kind == k) for kind, n in enumerate(state))
        if sum(before) == 0:
            return cost[k][0].copy(), [0] * (units + 1), [-1] * (units + 1)
        values = np.full(units + 1, np.inf)
        at, last = np.zeros(units + 1, dtype=np.int64), np.full(units + 1, -1)
        for other, number in enumerate(before):
            if number == 0 or (before, other) not in done:
                continue
            start = done[before, other] + self._hop(other, k)[: units + 1]
            total = start[:, None] + cost[k]
            origin = np.argmin(total, axis=0)
            times = total[origin, np.arange(units + 1)]
            better = times < values
            values[better], at[better], last[better] = times[better], origin[better], other
        return values, at.tolist(), last.tolist()

    def _hop(self, other: int, k: int) -> Floats:
        p = self.first[other]
        q = self.first[k] if k != other else self.kinds[k][1]
        return self.chain.hop_ns[:, p, q]

    def _placement(
        self,
        end: tuple[tuple[int, ...], int],
        came: dict[tuple[tuple[int, ...], int], tuple[list[int], list[int]]],
        at: int,
    ) -> Placement:
        state, k = end
        runs: list[tuple[int, int]] = []
        while True:
            origins, lasts = came[state, k]
            runs.append((k, at - origins[at]))
            other, at = lasts[at], origins[at]
            state = tuple(n - (kind == k) for kind, n in enumerate(state))
            if other < 0:
                break
            k = other
        spare = [list(kind) for kind in self.kinds]
        return tuple(place for kind, count in reversed(runs) for place in [spare[kind].pop(0)] * count)


def stage_times(chain: Chain, placement: Placement) -> list[int]:
    """Return the nanoseconds of each run of units."""
    times, _ = chain.sums
    return [int(times[b, p] - times[a, p]) for p, a, b in segments(placement)]


def best_latency(chain: Chain, stages: int = 0, tied: bool = False) -> Placement | None:
    """Return the cut with the least time from the first unit to the last one.

    ``tied``: the last unit is at the place of the first one.
    """
    cheapest = Cutter(chain).best(StageLimits(stages, tied=tied))
    return None if cheapest is None else cheapest[1]


def best_period(chain: Chain, stages: int, micro_batches: int) -> Placement | None:
    """Return the cut with the least time for all micro-batches, ``max(sum of stages, micro_batches x longest stage)``.

    With a limit for the longest stage the least sum falls and the limit rises, so the best limit is where they cross.
    """
    cutter = Cutter(chain)
    cheapest = cutter.best(StageLimits(stages))
    if cheapest is None or micro_batches <= 1:
        return None if cheapest is None else cheapest[1]
    every = np.unique(np.concatenate([cost[np.isfinite(cost)] for cost in cutter.cost]))
    low, high = 0, len(every) - 1
    best = _period(chain, cheapest, micro_batches), cheapest[1]
    while low <= high:
        middle = (low + high) // 2
        cheapest = cutter.best(StageLimits(stages, float(every[middle])))
        if cheapest is None:
            low = middle + 1
            continue
        best = min(best, (_period(chain, cheapest, micro_batches), cheapest[1]))
        if cheapest[0] > micro_batches * every[middle]:
            low = middle + 1
        else:
            high = middle - 1
    return best[1]


def _period(chain: Chain, cut: tuple[float, Placement], micro_batches: int) -> float:
    return max(cut[0], micro_batches * float(max(stage_times(chain, cut[1]))))
