"""Improve a finished schedule by small changes: another device or mode, another order, another way for a tensor."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from random import Random

from ..problem import FORBIDDEN, HOST
from .greedy import tails
from .partial import Event, Move, PartialSchedule, Run
from .registry import report_progress
from .replay import critical_events, replay

HISTORY = 100
"""A change is taken when it is no worse than what held so many tries ago."""

PATIENCE = 15
"""Tries for each event without a better schedule, after which the search goes back to the best one and is less choosy."""

GIVE_UP = 5
"""How often it goes back without having found a better one before it stops."""

HEAT = 0.05
"""How much worse they may be then, as a share of the best latency."""

REFRESH = 20
"""Tries after which the critical events of the present schedule are looked up again."""


@dataclass(frozen=True)
class Effort:
    """When to stop.

    Attributes
    ----------
    events : int
        Events to replay in all: a limit that does not depend on the machine.
    deadline : float
        `time.monotonic` after which no try begins.
    seed : int
    goal : int
        Latency that is known to be least, in nanoseconds: what reaches it is not improved further.
    """

    events: int
    deadline: float
    seed: int
    goal: int = 0


def improve(empty: PartialSchedule, start: PartialSchedule, effort: Effort) -> PartialSchedule:
    """The best schedule that late-acceptance hill climbing finds from ``start``; never a worse one.

    Each try changes one thing in the sequence of events, most often one that the latency waits for, and replays it with
    repairs. After Burke and Bykov, *The late acceptance hill-climbing heuristic* (EJOR 258, 2017), which needs no
    temperatures: it stops well wherever the limit strikes. A search that finds nothing more starts again from the best.

    Parameters
    ----------
    empty : PartialSchedule
        Without events.
    start : PartialSchedule
        With all operators.
    effort : Effort
    """
    if not start.events:
        return start
    search = _Search(empty, start, Random(effort.seed))
    left = effort.events
    tries = 0
    total = max(effort.events, 1)
    while (
        left > 0 and search.best.latency > effort.goal and search.vain < GIVE_UP and time.monotonic() < effort.deadline
    ):
        search.step(tries)
        left -= len(search.now.events)
        tries += 1
        if tries % 1000 == 0:
            report_progress("improvement", min(total - left, total), total)
    report_progress("improvement", total, total)
    return search.best


class _Search:
    def __init__(self, empty: PartialSchedule, start: PartialSchedule, random: Random) -> None:
        self.empty, self.now, self.best, self.random = empty, start, start, random
        self.history = [start.latency] * HISTORY
        self.lowest, self.vain = start.latency, 0
        self.patience = self.all_patience = PATIENCE * len(start.events)
        self.critical: list[int] = []
        self.tail = tails(empty.problem)
        self.changes: tuple[Callable[[int], list[Event] | None], ...] = (
            self._place_elsewhere,
            self._place_elsewhere,
            self._place_together,
            self._shift,
            self._shift,
            self._other_way,
        )

    def step(self, tries: int) -> None:
        """Try one change."""
        if tries % REFRESH == 0:  # between, positions may be a little off where events came or went
            self.critical = critical_events(self.now)
        pick = self.random.random() < 0.6
        position = self.random.choice(self.critical) if pick else self.random.randrange(len(self.now.events))
        sequence = self.random.choice(self.changes)(min(position, len(self.now.events) - 1))
        limit = max(self.now.latency, self.history[tries % HISTORY])
        after = replay(self.empty, sequence, self.tail, limit) if sequence else None
        if after is not None:
            self.now = after
            if after.latency < self.best.latency:
                self.best, self.vain = after, 0
        if self.now.latency < self.history[tries % HISTORY]:
            self.history[tries % HISTORY] = self.now.latency
        self._reheat()

    def _reheat(self) -> None:
        """Leave a valley in which nothing better was found for long."""
        self.patience -= 1
        if self.now.latency < self.lowest:
            self.lowest, self.patience = self.now.latency, self.all_patience
        if self.patience == 0:
            self.now = self.best
            self.lowest = int(self.best.latency * (1 + HEAT))
            self.history, self.patience = [self.lowest] * HISTORY, self.all_patience
            self.vain += 1

    def _modes(self, o: int) -> list[Run]:
        costs, devices = self.now.problem.costs, range(len(self.now.device_free))
        modes = ((False, costs.operator_ns), (True, costs.direct_ns))
        return [Run(o, d, direct) for d in devices for direct, ns in modes if ns[o, d] != FORBIDDEN]

    def _reader_of(self, position: int) -> int:
        """Position of the event itself where it is a run, else of the first run after it that reads its tensor there."""
        event = self.now.events[position]
        if isinstance(event, Run):
            return position
        tensors = self.now.problem.graph.index.inputs
        for i in range(position + 1, len(self.now.events)):
            reader = self.now.events[i]
            if isinstance(reader, Run) and event.tensor in tensors[reader.operator]:
                return i
        return -1

    def _place_elsewhere(self, position: int) -> list[Event] | None:
        """One operator on another device or in another mode."""
        i = self._reader_of(position)
        run = self.now.events[i]
        if i < 0 or not isinstance(run, Run):
            return None
        choices = [other for other in self._modes(run.operator) if other != run]
        if not choices:
            return None
        return [*self.now.events[:i], self.random.choice(choices), *self.now.events[i + 1 :]]

    def _place_together(self, position: int) -> list[Event] | None:
        """An operator and some that follow it, as far as they run on the same device, go to another one."""
        i = self._reader_of(position)
        run = self.now.events[i]
        if i < 0 or not isinstance(run, Run):
            return None
        successors, placed = self.now.problem.graph.index.successors, self.now.placed
        group, last = {run.operator}, run.operator
        for _ in range(self.random.randint(1, 5)):
            ahead = [s for s in successors[last] if placed[s] == run.device]
            if not ahead:
                break
            last = self.random.choice(ahead)
            group.add(last)
        device = self.random.randrange(len(self.now.device_free))
        sequence = list(self.now.events)
        for k, event in enumerate(sequence):
            if isinstance(event, Run) and event.operator in group:
                modes = [other for other in self._modes(event.operator) if other.device == device]
                if not modes:
                    return None
                same = [mode for mode in modes if mode.direct == event.direct]
                sequence[k] = (same or modes)[0]
        return sequence

    def _shift(self, position: int) -> list[Event] | None:
        """An event goes to another place in the sequence; a run stays between its predecessors and successors."""
        events, index = self.now.events, self.now.problem.graph.index
        event = events[position]
        reach = self.random.choice((3, 10, len(events)))
        low, high = max(0, position - reach), min(len(events) - 1, position + reach)
        if isinstance(event, Run):
            before, after = index.predecessors[event.operator], index.successors[event.operator]
            for i in range(position - 1, low - 1, -1):
                other = events[i]
                if isinstance(other, Run) and other.operator in before:
                    low = i + 1
                    break
            for i in range(position + 1, high + 1):
                other = events[i]
                if isinstance(other, Run) and other.operator in after:
                    high = i - 1
                    break
        target = self.random.randint(low, high)
        if target == position:
            return None
        rest = [*events[:position], *events[position + 1 :]]
        return [*rest[:target], event, *rest[target:]]

    def _other_way(self, position: int) -> list[Event] | None:
        """A tensor comes to a device from elsewhere: another holder, host memory, or through a neighbour."""
        move = self.now.events[position]
        if not isinstance(move, Move):
            return None
        t, _, d = move
        topology, host = self.now.problem.topology, self.now.problem.graph.index.producer[t] < 0
        ways: list[list[Event]] = [[]]
        if host and topology.route(HOST, d) is not None:
            ways.append([Move(t, HOST, d)])
        ways += [[Move(t, s, d)] for s in self.now.sources(t) if s != d and topology.route(s, d) is not None]
        if host:
            ways += [[Move(t, HOST, s), Move(t, s, d)] for s in self.now.transits[d]]
        ways = [way for way in ways if way != [move]]
        return [*self.now.events[:position], *self.random.choice(ways), *self.now.events[position + 1 :]]
