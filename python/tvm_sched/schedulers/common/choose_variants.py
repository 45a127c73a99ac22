"""Choose among the variants of a problem by any function that prices a choice."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from random import Random

from ...errors import InfeasibleError
from ...problem import Scenario
from ...schedule import Schedule, ScheduleIndex, with_choice

Choice = dict[str, str]
Price = Callable[[Choice], float]
"""What a choice costs; infinite where nothing was found."""


class ChoiceSearch:
    """Local search over choices: each step prices one; the best so far is kept.

    First all groups as in the graph; then each way for all groups that have it, the last named first, and for the others
    one of as many pieces; then class after class of groups that are alike (the same kind of operator and the same ways),
    each way for all of a class at once, kept if it is better; then, for ever, some groups of a class that follow each other
    get another way.

    Parameters
    ----------
    scenario : Scenario
        With variants.
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
        self._ways: dict[str, tuple[str, ...]] = {
            group.name: group.alternative_names for group in scenario.variants.groups
        }
        for group in sorted(scenario.variants.groups, key=lambda g: place[index.operator_id[g.operators[0]]]):
            kind = operators[index.operator_id[group.operators[0]]].kind
            classes.setdefault((kind, *group.alternative_names), []).append(group.name)
        self._classes = list(classes.values())
        self.best: Choice = {}
        self.cost = price(self.best)
        self._systematic = self._by_class()

    def step(self) -> bool:
        """Price the next choice of the systematic part; False when that is over."""
        return next(self._systematic, False)

    def vary(self) -> bool:
        """Try another way for some successive groups of a class; whether that was better."""
        names = self._random.choice(self._classes)
        begin = self._random.randrange(len(names))
        length = self._random.choice((1, 2, 4, len(names)))
        way = self._random.choice(self._ways[names[0]])
        return self._try(dict.fromkeys(names[begin : begin + length], way))

    def _by_class(self) -> Iterator[bool]:
        shared = dict.fromkeys(way for ways in self._ways.values() for way in reversed(ways[1:]))
        for way in shared if len(self._classes) > 1 else ():
            alike = {name: _matching_way(way, ways) for name, ways in self._ways.items()}
            self._try({name: found for name, found in alike.items() if found})
            yield True
        for names in self._classes:
            for way in self._ways[names[0]][1:]:
                self._try(dict.fromkeys(names, way))
                yield True

    def _try(self, change: Choice) -> bool:
        choice = {**self.best, **change}
        choice = {name: way for name, way in choice.items() if way != self._ways[name][0]}
        if choice == self.best:
            return False
        cost = self._price(choice)
        if cost < self.cost:
            self.best, self.cost = choice, cost
            return True
        return False


def _matching_way(way: str, ways: tuple[str, ...]) -> str:
    """A way among those of a group, or another one of as many pieces (``columns/4`` for ``tensor/4``); "" where none is."""
    if way in ways:
        return way
    pieces = way.partition("/")[2]
    return next((other for other in ways[1:] if pieces and other.partition("/")[2] == pieces), "")


def over_variants(scenario: Scenario, method: Callable[[Scenario], Schedule]) -> Schedule:
    """The schedule of a quick method with the fastest ways, found class by class of similar groups.

    Raises
    ------
    InfeasibleError
        As the method, where it finds nothing for any of the choices that were tried.
    """
    if scenario.variants is None:
        return method(scenario)
    found: list[tuple[int, Schedule]] = []
    refusals: list[InfeasibleError] = []

    def price(choice: Choice) -> float:
        resolved = scenario.resolve(choice)
        try:
            schedule = method(resolved)
        except InfeasibleError as error:
            refusals.append(error)
            return math.inf
        latency = ScheduleIndex.of(resolved, schedule).objective_ns
        if not found or latency < found[-1][0]:
            found.append((latency, with_choice(scenario.problem, schedule, choice)))
        return latency

    search = ChoiceSearch(scenario, price)
    while search.step():
        pass
    if not found:
        raise refusals[0]
    return found[-1][1]
