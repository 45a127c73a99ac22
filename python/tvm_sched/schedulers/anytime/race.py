"""Successive halving over choices: all get a short search, the better half a longer one, the best the remaining work."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from tvm_sched_runtime.problem import Request, Scenario
from tvm_sched_runtime.schedule import ScheduleIndex
from tvm_sched_runtime.search_budget import Budget, Status, Turn, improve

from ..common.variant_search import AlternativeChoice
from .joined_loads import Joined, Sets, join_at_first, join_loads, may_join
from .search_state import ScheduleState
from .starts import QuickAnswer

RACE = 0.4
"""Fraction of the work for the race; then the best continues alone."""

LEAST_WORK = 0.02
"""Least seconds of work of a choice in the first round; with less work, fewer choices take part."""


@dataclass
class Racer:
    """A choice, and the state of the search on it."""

    choice: AlternativeChoice
    state: ScheduleState
    whole: Scenario | None = None
    """The run on the state's machine with this choice; the state's own may have joined parameters."""
    sets: Sets = ()
    """Joined parameters."""
    interrupted: bool = False
    """Whether Ctrl-C came while parameters were joined at first."""

    @staticmethod
    def of(
        choice: AlternativeChoice,
        whole: Scenario,
        seed: int,
        mix: Sequence[Request],
        answers: Sequence[QuickAnswer] = (),
    ) -> Racer:
        """Return the state of a search that begins with quick answers of this choice.

        Parameters are joined for the fastest of them, and for those of quick methods, where that is allowed.
        """
        racer, known = Racer(choice, ScheduleState(whole, seed, mix), whole), []
        for answer in answers:
            if answer.choice == choice:
                known.append(ScheduleIndex(whole, answer.at.placements, answer.at.transfers))
                racer.state.tried[answer.method] = racer.state.offer_index(known[-1])
        joined, racer.interrupted = join_at_first(whole, mix, known)
        if joined is not None:
            racer.join(joined)
        return racer

    def join_anew(self) -> None:
        """Join parameters for the best schedule, if that makes it faster; then its search begins again from there."""
        state = self.state
        if self.whole is not None and may_join(self.whole) and state.best is not None:
            joined = join_loads(self.whole, state.best, self.sets, state.mix)
            if joined.sets != self.sets:
                self.join(joined)

    def join(self, joined: Joined) -> None:
        """Replace the state by one of the problem with joined parameters that has this schedule, if it is better."""
        before, index = self.state, joined.at
        after = ScheduleState(index.scenario, before.seed, before.mix)
        after.offer_index(index)
        if after.cost < before.cost or before.best is None:
            after.tried.update(before.tried)
            after.raise_bound(before.bound, before.bound_name)
            self.sets, self.state = joined.sets, after

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
