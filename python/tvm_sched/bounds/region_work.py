"""Least time between an operator and one that it dominates, from the work of all operators in between."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from ..problem import Problem
from .dominated_regions import regions_between
from .heads_and_tails import DeviceTime, Side, between_ends, device_weights, several_in_turn
from .region_placement import Delay

Array = npt.NDArray[np.float64]

WIDEST = 2048
"""Operators of a region at most."""

EFFORT = 6_400_000
"""Operators of all regions together times the square of the devices, at most, so that many devices take no minutes: of
nested regions the inner count again in the outer."""


WORK, WORK_BEFORE_ENDS, WORK_ON_RAMPS, TURNS = "work", "work before ends", "work on ramps", "turns"
"""What an `Argument` may be; that on ramps is of whole runs alone."""


class Argument(NamedTuple):
    """Why a region takes a time: work that fills weighted devices, or operators one after another on a device."""

    rule: str
    held: DeviceTime
    weights: Array


@dataclass(frozen=True)
class Work:
    """Least times of operators, wherever they run.

    Attributes
    ----------
    shortest : array, (operators,)
        Least time of each, alone or with others.
    busy : list of array, (operators, devices)
        For each resource of a device, for how long at least an operator occupies it.
    exclusive : bool
        Operators of a device run one at a time; then each occupies its device for all of its time.
    """

    shortest: Array
    busy: list[Array]
    exclusive: bool


def work_delays(
    problem: Problem, work: Work, source: int, known: Iterable[Delay], given: Iterable[Delay] = ()
) -> list[Delay]:
    """The ``given`` delays, then ``known`` ones merged with those that follow from work, the longer for each pair.

    Parameters
    ----------
    problem : Problem
    work : Work
    source : int
        Dominators are those of paths from this operator.
    known : iterable of Delay
        What other arguments gave, from operators to those that they dominate.
    given : iterable of Delay
        Between any operators.

    Notes
    -----
    Let ``u`` dominate ``v``. All operators on paths from ``u`` to ``v`` run between the end of ``u`` and the end of ``v``,
    each after a head, the time from the end of ``u`` to its start at least, and before a tail. Those with a head of at least
    ``s`` and a tail of at least ``a`` fill the devices for the time in between (`between_ends`), and of more operators than
    devices some run on the same device (`several_in_turn`). Heads and tails count the delays of the regions inside.
    """
    best = {(delay.first, delay.last): delay.ns for delay in known}
    delays = Delays()
    for delay in given:
        delays.add(delay)
    left = EFFORT // len(problem.topology.devices) ** 2
    times: dict[bytes, float] = {}
    for u, v, members in regions_between(problem, source, WIDEST):
        left -= len(members)
        ns = best.get((u, v), 0.0)
        if members and left >= 0:
            region = Region(problem, u, members, work, delays)
            if region.key not in times:
                times[region.key] = region.least_time()
            ns = max(ns, times[region.key])
        if ns > 0:
            delays.add(Delay(u, v, ns))
    return delays.all


class Delays:
    """The delays found so far, by either end."""

    def __init__(self) -> None:
        self.all: list[Delay] = []
        self.to: dict[int, list[Delay]] = defaultdict(list)
        self.of: dict[int, list[Delay]] = defaultdict(list)

    def add(self, delay: Delay) -> None:
        """Add a delay, which later regions use."""
        self.all.append(delay)
        self.to[delay.last].append(delay)
        self.of[delay.first].append(delay)


class Region:
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
        """Equal for regions with equal times."""
        parts = (self.start, self.end, self.after, *(busy[self.members] for busy in self.work.busy))
        return b"|".join(part.tobytes() for part in parts)

    def least_time(self) -> float:
        """From the end of the operator before the region to the end of its last."""
        return max(float((self.end + self.after).max()), *(argument.held.ns for argument in self.arguments()))

    def arguments(self) -> Iterator[Argument]:
        """Arguments that may make it longer than its longest path."""
        shortest = self.work.shortest[self.members]
        for every in self.work.busy:
            busy = every[self.members]
            weights = device_weights(busy)
            weighed = np.where(np.isfinite(busy), busy * weights, np.inf).min(axis=1)
            start, after = Side.level(self.start), Side.level(self.after)
            yield Argument(WORK, between_ends(weighed, start, after, weights), weights)
            yield Argument(TURNS, several_in_turn(busy.min(axis=1), self.start, self.after, busy.shape[1]), weights)
            if self.work.exclusive:  # an operator is busy for its shortest time before its end, whenever it starts
                lightest = np.where(np.isfinite(busy), weights, np.inf).min(axis=1) * shortest
                late = Side.level(self.end - shortest)
                yield Argument(WORK_BEFORE_ENDS, between_ends(lightest, late, after, weights), weights)
