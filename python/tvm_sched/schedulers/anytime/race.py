"""Successive halving over choices: all get a short search, the better half a longer one, the best the remaining work."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ...search_budget import Budget, Status, Turn, improve
from ..common.variant_search import AlternativeChoice
from .search_state import ScheduleState

RACE = 0.4
"""Fraction of the work for the race; then the best continues alone."""

LEAST_WORK = 0.02
"""Least seconds of work of a choice in the first round; with less work, fewer choices take part."""


@dataclass
class Racer:
    """A choice, and the state of the search on it."""

    choice: AlternativeChoice
    state: ScheduleState

    @property
    def cost(self) -> float:
        """Cost of the best schedule; infinite if there is none."""
        return self.state.cost


def race(
    racers: Sequence[Racer],
    budget: Budget,
    turns: Callable[[Racer, float, int], list[Turn[ScheduleState]]],
) -> tuple[Racer, Status]:
    """Return the choice with the best schedule by successive halving, the first of equal ones, and how its search ended.

    Parameters
    ----------
    racers : sequence of Racer
        The most promising first; at least one.
    turns : callable
        Returns the improvers of a racer's search with this much work in a round (from 0; -1: it continues alone).

    Raises
    ------
    KeyboardInterrupt
        Ctrl-C came before the first answer.
    """
    entries = int(RACE * budget.left / LEAST_WORK / max(1, _rounds(len(racers))))
    left = list(racers[: max(1, entries)])
    rounds = _rounds(len(left))
    each = RACE * budget.left / max(rounds, 1)
    for number in range(rounds):
        part = budget.part(each)
        for k, racer in enumerate(left):
            own = part.part(part.left / (len(left) - k))
            try:
                status = improve(racer.state, turns(racer, own.work, number), own)
            except KeyboardInterrupt:  # this one has no answer yet, but others may
                if all(each.state.best is None for each in racers):
                    raise
                status = "interrupted"
            best = min(racers, key=lambda r: r.cost)
            if status == "interrupted" or racer.state.proved:
                return best, status
            if budget.late and best.state.best is not None:
                return best, "time limit"
        left = sorted(left, key=lambda r: r.cost)[: math.ceil(len(left) / 2)]
    (leader,) = left
    return leader, improve(leader.state, turns(leader, budget.left, -1), budget)


def _rounds(racers: int) -> int:
    """Count the halvings until one is left."""
    return math.ceil(math.log2(max(racers, 1)))
