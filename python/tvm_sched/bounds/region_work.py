"""Delays by work: least times through a region, from the work of all its operators."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from tvm_sched_runtime.problem import Problem

from .dominated_regions import regions_between
from .heads_and_tails import DeviceTime, Side, between_ends, device_weights, several_in_turn
from .region_placement import Delay

Array = npt.NDArray[np.float64]

WIDEST = 2048
"""Largest number of operators of a region."""

EFFORT = 6_400_000
"""Largest total, over all regions, of operators times the square of the number of devices."""


WORK, WORK_BEFORE_ENDS, WORK_ON_RAMPS, TURNS = "work", "work before ends", "work on ramps", "turns"
"""Kinds of `Argument`. `WORK_ON_RAMPS` (Lemma 4 of ``docs/proofs/device_work.md``) is for whole runs only."""


class Argument(NamedTuple):
    """A lower bound of a region or a run by work: the kind, the bound with its operators, and the weights of the devices."""

    rule: str
    held: DeviceTime
    weights: Array


@dataclass(frozen=True)
class Work:
    """Least times of operators, and whether a device runs them one at a time."""

    shortest: Array
    """Least time of each, alone or with others."""
    busy: list[Array]
    """Least occupancy times, for each resource of a device."""
    exclusive: bool
    """Whether operators of a device run one at a time."""


def work_delays(
    problem: Problem, work: Work, source: int, known: Iterable[Delay], extra: Iterable[Delay] = ()
) -> list[Delay]:
    """Return the ``extra`` delays, then for each region the longer of the ``known`` delay and the one by work.

    Parameters
    ----------
    source : int
        Dominators are those of paths from this operator.
    known : iterable of Delay
        Delays by other arguments, from operators to those that they dominate; the last one between two operators counts.
    extra : iterable of Delay
        Between any operators.

    Notes
    -----
    Proof: Lemma 4 of ``docs/proofs/regions.md``. Heads and tails within a region count the delays of the regions inside.
    """
    best = {(delay.first, delay.last): delay.ns for delay in known}
    delays = Delays()
    for delay in extra:
        delays.add(delay)
    times: dict[bytes, float] = {}
    for u, v, members in regions_between(problem, source, WIDEST, EFFORT // len(problem.topology.devices) ** 2):
        ns = best.get((u, v), 0.0)
        if members:
            region = WorkRegion(problem, u, members, work, delays)
            if region.key not in times:
                times[region.key] = region.least_time()
            ns = max(ns, times[region.key])
        if ns > 0:
            delays.add(Delay(u, v, ns))
    return delays.all


class Delays:
    """Delays, indexed by either end."""

    def __init__(self) -> None:
        self.all: list[Delay] = []
        self.to: dict[int, list[Delay]] = defaultdict(list)
        self.of: dict[int, list[Delay]] = defaultdict(list)

    def add(self, delay: Delay) -> None:
        """Add a delay, which later regions use."""
        self.all.append(delay)
        self.to[delay.last].append(delay)
        self.of[delay.first].append(delay)


class WorkRegion:
    """Operators between two others, the last included, in topological order.

    Attributes
    ----------
    start, end : array, (members,)
        Least time from the end of the operator before the region to each one's start and end.
    after : array, (members,)
        Least time from each one's end to the end of the last.
    """

    def __init__(self, problem: Problem, first: int, members: list[int], work: Work, delays: Delays) -> None:
        index, place = problem.graph.index, {o: i for i, o in enumerate(members)}
        self.work, self.members = work, members
        self.start, self.end, self.after = (np.zeros(len(members)) for _ in range(3))
        shortest = work.shortest
        for i, o in enumerate(members):
            self.start[i] = max((self.end[place[p]] for p in index.predecessors[o] if p in place), default=0.0)
            self.end[i] = self.start[i] + shortest[o]
            for delay in delays.to.get(o, ()):
                if delay.first == first:
                    self.end[i] = max(self.end[i], delay.ns)
                elif delay.first in place:
                    self.end[i] = max(self.end[i], self.end[place[delay.first]] + delay.ns)
        for i, o in reversed(list(enumerate(members))):
            follows = [shortest[s] + self.after[place[s]] for s in index.successors[o] if s in place]
            follows += [
                delay.ns + self.after[place[delay.last]] for delay in delays.of.get(o, ()) if delay.last in place
            ]
            self.after[i] = max(follows, default=0.0)

    @property
    def key(self) -> bytes:
        """A key that is equal for two regions if their times are."""
        parts = (self.start, self.end, self.after, *(busy[self.members] for busy in self.work.busy))
        return b"|".join(part.tobytes() for part in parts)

    def least_time(self) -> float:
        """Return the least time from the end of the operator before the region to the end of its last one."""
        return max(float((self.end + self.after).max()), *(argument.held.ns for argument in self.arguments()))

    def arguments(self) -> Iterator[Argument]:
        """Yield the arguments of Lemma 4 of ``docs/proofs/regions.md``, for each resource."""
        shortest = self.work.shortest[self.members]
        for every in self.work.busy:
            busy = every[self.members]
            weights = device_weights(busy)
            weighed = np.where(np.isfinite(busy), busy * weights, np.inf).min(axis=1)
            start, after = Side.level(self.start), Side.level(self.after)
            yield Argument(WORK, between_ends(weighed, start, after, weights), weights)
            yield Argument(TURNS, several_in_turn(busy.min(axis=1), self.start, self.after, busy.shape[1]), weights)
            if self.work.exclusive:
                lightest = np.where(np.isfinite(busy), weights, np.inf).min(axis=1) * shortest
                late = Side.level(self.end - shortest)
                yield Argument(WORK_BEFORE_ENDS, between_ends(lightest, late, after, weights), weights)
