"""`anytime` on problems with variants: quick schedules select the choices that are worth a search."""

from __future__ import annotations

import math
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import islice

from tvm_sched_runtime.errors import InfeasibleError
from tvm_sched_runtime.problem import Scenario
from tvm_sched_runtime.search_budget import Budget

from ...progress import report_progress
from ..common.native_methods import fit_into_memory, list_order
from ..common.search import Searches
from ..common.variant_search import AlternativeChoice, ChoiceSearch
from .improvers import PLACES_PER_SECOND
from .list_rules import rules

SHARE = 0.2
"""Fraction of the work for the selection."""

MOST_FAILED = 40
"""Successive changes without a gain, after which the selection ends."""

RULES, PRICE_SHARE = 3, 0.02
"""Least number of rules by which each choice is list-scheduled, beside HEFT and PEFT; more rules price a choice as long as
all take at most this fraction of the work. Warm, it may be a later rule that beats one device."""

OPERATORS_PER_SECOND = 40_000
"""Approximate number of operators for which problems are made in a second on one core of a server."""

MOST_CHOICES = 6
"""Largest number of selected choices."""

APART = 0.1
"""Least fraction of the groups in which two selected choices differ."""


@dataclass
class ChoicePrices:
    """Latencies of quick schedules of choices; the work counts in the budget."""

    scenario: Scenario
    budget: Budget
    known: dict[tuple[tuple[str, str], ...], float] = field(default_factory=dict)

    def of(self, choice: AlternativeChoice) -> float:
        """Return the nanoseconds of the best quick schedule: by the first list-scheduling rules, HEFT and PEFT."""
        key = tuple(sorted(choice.items()))
        if key not in self.known:
            report_progress("variants", int(self.budget.spent * 1000), int(self.budget.work * 1000))
            scenario = self.scenario.resolve(choice)
            count = len(scenario.graph.operators)
            seconds = max(count * len(scenario.topology.devices), 1) / PLACES_PER_SECOND
            searches = Searches(scenario)
            most = max(RULES, int(PRICE_SHARE * self.budget.work / seconds))
            listed = [rule.schedule(searches) for rule in islice(rules(scenario), most)]
            self.budget.spend(len(listed) * seconds + count / OPERATORS_PER_SECOND)
            latencies = [float(each[1]) for each in listed if each is not None]
            for method in ("heft", "peft"):
                with suppress(InfeasibleError):
                    latencies.append(float(fit_into_memory(list_order(scenario, method)).objective_ns))
            self.known[key] = min(latencies, default=math.inf)
        return self.known[key]

    def best(self) -> list[AlternativeChoice]:
        """Return distinct choices of least price, the graph's own among them; at least one."""
        groups = self.scenario.variants.groups if self.scenario.variants else ()
        ranked = sorted(self.known, key=lambda key: self.known[key])
        best: list[AlternativeChoice] = []
        for choice in map(dict, ranked):
            apart = not choice or all(_differing_groups(choice, other) >= APART * len(groups) for other in best)
            if apart and math.isfinite(self.of(choice)):
                best.append(choice)
        own = [choice for choice in best[MOST_CHOICES:] if not choice]
        return [*best[: MOST_CHOICES - len(own)], *own] or [{}]


def _differing_groups(one: AlternativeChoice, other: AlternativeChoice) -> int:
    """Count the groups in which two choices differ."""
    return sum(one.get(group) != other.get(group) for group in one.keys() | other.keys())


def promising_choices(scenario: Scenario, budget: Budget, seed: int) -> tuple[list[AlternativeChoice], bool]:
    """Return the choices to search with, the most promising first, and whether Ctrl-C ended the selection."""
    prices = ChoicePrices(scenario, budget)
    search = ChoiceSearch(scenario, prices.of, seed)
    interrupted = False
    try:
        while not budget.over and search.step():
            pass
        failed = 0
        while not budget.over and failed < MOST_FAILED:
            failed = 0 if search.vary() else failed + 1
    except KeyboardInterrupt:
        interrupted = True
    return prices.best(), interrupted
