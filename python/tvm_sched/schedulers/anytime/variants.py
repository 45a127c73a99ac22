"""`anytime` on problems with variants: list scheduling chooses among the ways, and the search goes on with that."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from itertools import islice

from ...anytime import Budget
from ...problem import Problem
from ...progress import report_progress
from ..common.search import Searches
from ..common.variants import Choice, ChoiceSearch
from .improvers import PLACES_PER_SECOND
from .rules import rules

SHARE = 0.2
"""Part of the work for choosing."""

MOST_FAILED = 40
"""Changes in a row that gain nothing, after which choosing ends."""

RULES = 3
"""Rules by which each choice is list-scheduled."""

OPERATORS_PER_SECOND = 40_000
"""Operators of which problems are made in a second, roughly, on one core of a server."""

RIVAL = 1.05
"""The graph's own ways are searched too where list scheduling finds them at most this factor slower than the best choice."""


@dataclass
class _Prices:
    """List schedules of choices, counted as work."""

    problem: Problem
    budget: Budget
    known: dict[tuple[tuple[str, str], ...], float] = field(default_factory=dict)

    def of(self, choice: Choice) -> float:
        """Latency in nanoseconds of the best list schedule by the first rules."""
        key = tuple(sorted(choice.items()))
        if key not in self.known:
            report_progress("variants", int(self.budget.spent * 1000), int(self.budget.work * 1000))
            problem = self.problem.resolve(choice)
            count = len(problem.graph.operators)
            places = RULES * count * len(problem.topology.devices)
            self.budget.spend(places / PLACES_PER_SECOND + count / OPERATORS_PER_SECOND)
            searches = Searches(problem)
            found = [searches.construct(rule.choices, rule.choice) for rule in islice(rules(problem), RULES)]
            self.known[key] = min((float(each[1]) for each in found if each is not None), default=math.inf)
        return self.known[key]


def choose(problem: Problem, budget: Budget, seed: int) -> tuple[list[Choice], bool]:
    """The choices to search with, and whether Ctrl-C ended the choosing.

    The most promising comes first: the best, then the graph's own where that is near.
    """
    prices = _Prices(problem, budget)
    search = ChoiceSearch(problem, prices.of, seed)
    interrupted = False
    try:
        while not budget.over and search.step():
            pass
        failed = 0
        while not budget.over and failed < MOST_FAILED:
            failed = 0 if search.vary() else failed + 1
    except KeyboardInterrupt:
        interrupted = True
    if not search.best:
        return [{}], interrupted
    near = prices.of({}) <= RIVAL * search.cost
    return [search.best, {}] if near and not interrupted else [search.best], interrupted
