"""Choose an alternative for each group of a problem, with any function that prices a choice."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from random import Random

from tvm_sched_runtime.errors import InfeasibleError
from tvm_sched_runtime.problem import Scenario
from tvm_sched_runtime.schedule import Schedule, ScheduleIndex, with_choice

AlternativeChoice = dict[str, str]
Price = Callable[[AlternativeChoice], float]
"""Cost of a choice; infinite if there is no schedule."""


class ChoiceSearch:
    """Local search over choices; a step prices one and keeps it if it is better.

    1. All groups as in the graph.
    2. Each alternative, from the last to the first, in all groups that have it; other groups get one with as many pieces.
    3. For each class of groups (same kind of operator, same alternatives): each alternative in the whole class.
    4. Without end (`vary`): another alternative in some successive groups of a class.

    Parameters
    ----------
    scenario : Scenario
        A problem with variants.
    price : callable
    seed : int
    """

    def __init__(self, scenario: Scenario, price: Price, seed: int = 0) -> None:
        assert scenario.variants is not None
        self._price = price
        self._random = Random(seed)
        operators, index = scenario.graph.operators, scenario.graph.index
        place = {o: k for k, o in enumerate(index.order)}
        classes: dict[tuple[str, ...], list[str]] = {}
        self._names = {group.name: group.alternative_names for group in scenario.variants.groups}
        for group in sorted(scenario.variants.groups, key=lambda g: place[index.operator_id[g.operators[0]]]):
            kind = operators[index.operator_id[group.operators[0]]].kind
            classes.setdefault((kind, *group.alternative_names), []).append(group.name)
        self._classes = list(classes.values())
        self.best: AlternativeChoice = {}
        self.cost = price(self.best)
        self._systematic = self._by_class()

    def step(self) -> bool:
        """Price the next choice of parts 2 and 3; return False after the last."""
        return next(self._systematic, False)

    def vary(self) -> bool:
        """Try another alternative in some successive groups of a class; return whether it is better."""
        groups = self._random.choice(self._classes)
        begin = self._random.randrange(len(groups))
        length = self._random.choice((1, 2, 4, len(groups)))
        alternative = self._random.choice(self._names[groups[0]])
        return self._try(dict.fromkeys(groups[begin : begin + length], alternative))

    def _by_class(self) -> Iterator[bool]:
        shared = dict.fromkeys(alternative for names in self._names.values() for alternative in reversed(names[1:]))
        for alternative in shared if len(self._classes) > 1 else ():
            matches = {group: _matching_alternative(alternative, names) for group, names in self._names.items()}
            self._try({group: match for group, match in matches.items() if match})
            yield True
        for groups in self._classes:
            for alternative in self._names[groups[0]][1:]:
                self._try(dict.fromkeys(groups, alternative))
                yield True

    def _try(self, change: AlternativeChoice) -> bool:
        choice = {**self.best, **change}
        choice = {group: name for group, name in choice.items() if name != self._names[group][0]}
        if choice == self.best:
            return False
        cost = self._price(choice)
        if cost < self.cost:
            self.best, self.cost = choice, cost
            return True
        return False


def _matching_alternative(wanted: str, names: tuple[str, ...]) -> str:
    """Return ``wanted`` or an alternative with as many pieces (``columns/4`` for ``tensor/4``); "" if there is none."""
    if wanted in names:
        return wanted
    pieces = wanted.partition("/")[2]
    return next((name for name in names[1:] if pieces and name.partition("/")[2] == pieces), "")


def over_variants(scenario: Scenario, method: Callable[[Scenario], Schedule]) -> Schedule:
    """Return the best schedule of a quick method over the choices of `ChoiceSearch.step`.

    Raises
    ------
    InfeasibleError
        The method finds no schedule for any choice.
    """
    if scenario.variants is None:
        return method(scenario)
    best: tuple[int, Schedule] | None = None
    refusals: list[InfeasibleError] = []

    def price(choice: AlternativeChoice) -> float:
        nonlocal best
        resolved = scenario.resolve(choice)
        try:
            schedule = method(resolved)
        except InfeasibleError as error:
            refusals.append(error)
            return math.inf
        latency = ScheduleIndex.of(resolved, schedule).objective_ns
        if best is None or latency < best[0]:
            best = latency, with_choice(scenario.problem, schedule, choice)
        return latency

    search = ChoiceSearch(scenario, price)
    while search.step():
        pass
    if best is None:
        raise refusals[0]
    return best[1]
