"""Local search over the rules of list scheduling: which group of devices runs which part of the model."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random

from tvm_sched_runtime.problem import Scenario

from ..common.events import Array
from ..common.greedy import priorities
from ..common.search import PlacementChoice, Searches
from .list_rules import Rule, device_groups

HISTORY = 20
"""A change is accepted if it is no worse than the schedule of this many tries before."""

LONGEST = (1, 2, 4, 8, 16, 32)
"""Largest numbers of operators by which a block's end moves, or in a new block; each is equally likely."""


@dataclass
class RuleSchedule:
    """A list schedule and its rule."""

    latency_ns: int
    sequence: Array
    rule: Rule


class BlockSearch:
    """Late acceptance over the choice of each operator, in blocks of operators that follow each other by rank.

    If parts of the model move between distant groups of devices, no single event of a good schedule can change alone. Each
    try makes a new list schedule, so dependent events follow the change.

    Parameters
    ----------
    scenario : Scenario
    searches : Searches
    start : RuleSchedule
    memory_scale : float
        Share of each device's memory that may be used.
    seed : int
    """

    def __init__(
        self, scenario: Scenario, searches: Searches, start: RuleSchedule, memory_scale: float = 1.0, seed: int = 0
    ) -> None:
        self.best = self._now = start
        self._searches, self._scale, self._random = searches, memory_scale, Random(seed)
        rank = priorities(scenario)
        self._order = sorted(range(len(rank)), key=lambda o: (-rank[o], o))
        choices, everywhere = list(start.rule.choices), range(len(scenario.topology.devices))
        known = {(c.devices, c.direct) for c in choices}
        for devices in (*device_groups(scenario), everywhere):
            if (frozenset(devices), False) not in known:
                choices.append(PlacementChoice(devices, direct=False))
        self._choices = choices
        self._history = [start.latency_ns] * HISTORY
        self._tries = 0

    def step(self) -> bool:
        """Try one change; return whether its schedule is the best so far."""
        now = self._now.rule
        rule = Rule(self._choices, self._changed(list(now.choice)), now.home, now.turn)
        late, self._tries = self._tries % HISTORY, self._tries + 1
        listed = rule.schedule(self._searches, self._scale)
        better = False
        if listed is not None:
            sequence, latency = listed
            if latency <= max(self._now.latency_ns, self._history[late]):
                self._now = RuleSchedule(latency, sequence, rule)
            if latency < self.best.latency_ns:
                self.best, better = self._now, True
        self._history[late] = min(self._history[late], self._now.latency_ns)
        return better

    def _changed(self, choice: list[int]) -> list[int]:
        """Move the end of a block, or give a block another choice."""
        random, order, count = self._random, self._order, len(self._order)
        length = random.randint(1, random.choice(LONGEST))
        ends = [i for i in range(1, count) if choice[order[i]] != choice[order[i - 1]]]
        if ends and random.random() < 0.6:
            at = random.choice(ends)
            forward = random.random() < 0.5
            other = choice[order[at - 1 if forward else at]]
            block = range(at, min(count, at + length)) if forward else range(max(0, at - length), at)
        else:
            at, other = random.randrange(count), random.randrange(len(self._choices))
            block = range(at, min(count, at + length))
        for i in block:
            choice[order[i]] = other
        return choice
