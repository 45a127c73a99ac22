"""Least time through a region over all placements, for the rule ``placement`` (``docs/proofs/regions.md``, Lemma 2).

Or least weighted time and price, over all devices and modes, for the rule ``bus`` (``docs/proofs/path_and_bus.md``).
"""

from __future__ import annotations

from math import inf
from typing import Any, NamedTuple

from .document import Problem, Refused

NODES = 1_000_000
"""Largest number of placements, complete or partial, that the search visits for all lemmas together."""
DECIDED = 100
"""Largest number of operators whose placements are tried in one lemma."""

Table = list[list[Any]]


class Operator(NamedTuple):
    """An operator of a region: its least times by device; whether its options are tried; its predecessors; its options.

    An option is a device with the time and the price of the operator there. ``before`` has the position of each predecessor
    and the table of the least times of copies from it, by source and target device.
    """

    times: list[Any]
    decided: bool
    before: list[tuple[int, Table]]
    options: list[tuple[int, Any, Any]]


class Placements:
    """Branch and bound over the devices of operators; equal regions are searched once."""

    def __init__(self, problem: Problem, best: list[list[Any]]) -> None:
        self.problem, self.best, self.nodes = problem, best, NODES
        self.copies: dict[int, Table] = {}
        self.known: dict[str, bool] = {}

    def least(self, first: int, between: list[int], decided: set[int], ns: int) -> int:
        """Return ``ns`` if no placement of the ``decided`` operators takes less, else 0.

        ``between`` are all operators of the region in topological order, the last one included.
        """
        if between[-1] not in decided or len(decided) > DECIDED:
            raise Refused(
                f"a lemma of rule 'placement' leaves out its last operator, or names more than at most {DECIDED}"
            )
        options = {o: [(d, ns, 0) for d, ns in enumerate(self.best[o])] for o in between}
        return 0 if self._costs_less(first, options, decided, 1, ns) else ns

    def costs_less(self, first: int, options: dict[int, list[tuple[int, Any, Any]]], weight: int, cost: int) -> bool:
        """Return whether some options of the operators behind ``first`` have a weighted time and prices below ``cost``."""
        if len(options) > DECIDED:
            raise Refused(f"a region with prices has {len(options)} operators; at most {DECIDED} are allowed")
        return self._costs_less(first, options, {*options}, weight, cost)

    def _costs_less(
        self, first: int, options: dict[int, list[tuple[int, Any, Any]]], decided: set[int], weight: int, cost: int
    ) -> bool:
        place = {o: i for i, o in enumerate([first, *options])}
        devices = range(len(self.problem.devices))
        region = [Operator([0] * len(devices), True, [], [(d, 0, 0) for d in devices])]
        for o, own in options.items():
            before = [(place[b], self._copy(size)) for b, size in self.problem.before[o].items() if b in place]
            least = [min((ns for e, ns, _ in own if e == d), default=inf) for d in devices]
            region.append(Operator(least, o in decided, before, own))
        if (key := str((weight, cost, region))) not in self.known:
            self.known[key] = _Search(self, weight, cost, region).costs_less(0, [], 0, 0)
        return self.known[key]

    def _copy(self, size: int) -> Table:
        """Return the least times of copies of ``size`` bytes between devices, through other devices if that is faster."""
        if size not in self.copies:
            routes, devices = self.problem.routes, range(len(self.problem.devices))
            to = [
                [0 if a == b else routes[a, b].ns(size) if (a, b) in routes else inf for b in devices] for a in devices
            ]
            for middle in devices:
                to = [[min(row[b], row[middle] + to[middle][b]) for b in devices] for row in to]
            self.copies[size] = to
        return self.copies[size]


class _Search:
    """The search of one region. Its first operator ends at time 0; the others follow in topological order."""

    def __init__(self, known: Placements, weight: int, cost: int, region: list[Operator]) -> None:
        self.known, self.weight, self.cost, self.region = known, weight, cost, region
        self.devices = range(len(region[0].times))
        least = [min((price for *_, price in each.options), default=0) if each.decided else 0 for each in region]
        self.to_pay = [sum(least[i:]) for i in range(len(region) + 1)]  # at least, from an operator on
        self.tail: Table = [
            [0] * len(self.devices) for _ in region
        ]  # least time from an operator's end to that of the last
        for i, operator in reversed(list(enumerate(region))):
            follows = [ns + tail for ns, tail in zip(operator.times, self.tail[i], strict=True)]
            for b, copy in operator.before:
                self.tail[b] = [
                    max(self.tail[b][d], min(a + b for a, b in zip(copy[d], follows, strict=True)))
                    for d in self.devices
                ]
        self.twin = [min(a for a in self.devices if self._are_twins(a, b)) for b in self.devices]
        self.end: list[dict[int, Any]] = [{} for _ in region]  # of each operator, by the devices where it may run

    def _are_twins(self, a: int, b: int) -> bool:
        """Return whether exchanging two devices changes no number of the region."""
        names = list(self.devices)
        names[a], names[b] = b, a
        tables = [copy for operator in self.region for _, copy in operator.before]
        same = all(t[x][y] == t[names[x]][names[y]] for t in tables for x in self.devices for y in self.devices)
        own = [[[rest for e, *rest in operator.options if e == d] for d in (a, b)] for operator in self.region]
        return same and all(of_a == of_b for of_a, of_b in own)

    def costs_less(self, i: int, here: list[tuple[int, Any, Any, Any]], longest: Any, paid: Any) -> bool:
        """Return whether some options of the operators from position ``i`` on cost less, by weighted time and prices.

        ``here`` has device, start, time and tail of each operator already placed, ``longest`` the end of the region that
        they force, ``paid`` their prices. An operator that is not ``decided`` runs on its best device for each path and
        occupies no device.
        """
        while i < len(self.region) and not self.region[i].decided:
            self.end[i] = {d: self._ready(i, d) + self.region[i].times[d] for d in self.devices}
            i += 1
        if i == len(self.region):
            return True
        used = {d for d, *_ in here}
        for d, time, price in self.region[i].options:
            if d not in used and any(e not in used and self.twin[e] == self.twin[d] for e in range(d)):
                continue  # the same as an unused one before
            self.known.nodes -= 1
            if self.known.nodes < 0:
                raise Refused(f"more than {NODES} placements to look at")
            if time == inf:
                continue
            start = self._ready(i, d)
            self.end[i] = {d: start + time}
            now = [*here, (d, start, time, self.tail[i][d])]
            forced = max(longest, in_turn([placed for e, *placed in now if e == d]))
            least = self.weight * forced + paid + price + self.to_pay[i + 1]
            if least < self.cost and self.costs_less(i + 1, now, forced, paid + price):
                return True
        return False

    def _ready(self, i: int, d: int) -> Any:
        """Return the time at which everything that an operator reads has arrived on a device."""
        came = (min(end + copy[e][d] for e, end in self.end[b].items()) for b, copy in self.region[i].before)
        return max(came, default=0)


def in_turn(placed: list[list[Any]]) -> Any:
    """Return the least end of a region that the operators of one device force, since they run one after another.

    ``placed`` has start, time and tail of each. The operators with at least some start and some tail take together that
    start, the sum of their times and that tail. The result is the largest such sum.
    """
    longest: Any = 0
    for _, _, least in placed:
        work = 0
        for start, time, tail in sorted(placed, reverse=True):
            work += time if tail >= least else 0
            longest = max(longest, start + work + least) if tail >= least else longest
    return longest
