"""The rule ``enumeration``: no schedule of equal devices ends in less, since every state of one leads to none.

Proof: ``docs/proofs/enumeration.md``.
"""

from __future__ import annotations

from math import inf
from typing import Any

from .derivation import Derivation
from .document import Refused, flag

OPERATORS, STATES = 64, 1_000_000
"""Largest number of operators, and of states that are looked at for all lemmas together."""
EARLIER = -1
"""Where an operator could have started before the last start: a state of another order has these schedules."""


class Enumeration:
    """Search the states of all lemmas."""

    def __init__(self) -> None:
        self.states = STATES

    def least(self, known: Derivation, first: int | None, last: int | None, lemma: dict[str, Any]) -> int:
        """Return the ``ns`` of the lemma if no schedule takes less, else 0."""
        p, backwards = known.problem, flag(lemma["backwards"])
        routes = {
            (p.routes[a, b].bandwidth, p.routes[a, b].latency) for a in known.devices for b in known.devices if a != b
        }
        if first is not None or last is not None or not known.exclusive or len(p.o) > OPERATORS or len(routes) != 1:
            raise Refused(f"rule 'enumeration' is about a whole run of at most {OPERATORS} operators on equal devices")
        if any(len({*row}) > 1 or inf in row for row in known.best):
            raise Refused("rule 'enumeration': some operator takes longer on one device")
        route = p.routes[0, 1]
        order, before = (p.order[::-1], p.after) if backwards else (p.order, p.before)
        place = {o: i for i, o in enumerate(order)}
        delays = [{place[b]: route.ns(size) for b, size in before[o].items()} for o in order]
        search = _Search([known.shortest[o] for o in order], delays, len(known.devices), lemma["ns"] - 1, self)
        none: list[list[Any]] = [[0] * len(order) for _ in known.devices]
        return 0 if search.ends((), 0, [0] * len(known.devices), none) else int(lemma["ns"])


def _apart(times: list[int], near: list[dict[int, int]], order: list[int]) -> list[int]:
    """Return least times before each operator: of its neighbours those with the longest delays share its device."""
    head = [0] * len(times)
    for o in order:
        by_delay = sorted((-head[b] - times[b] - delay, b) for b, delay in near[o].items())
        options = []
        for k in range(len(by_delay) + 1):
            end = 0
            for b in sorted((b for _, b in by_delay[:k]), key=head.__getitem__):
                end = max(end, head[b]) + times[b]
            options.append(max(end, -by_delay[k][0] if k < len(by_delay) else 0))
        head[o] = max([min(options), *(head[b] + times[b] for b in near[o])])
    return head


class _Search:
    """Operators are numbered in topological order; ``deadline`` is the time by which all are to end."""

    def __init__(
        self, times: list[int], before: list[dict[int, int]], devices: int, deadline: int, budget: Enumeration
    ) -> None:
        self.times, self.before, self.devices, self.deadline = times, before, range(devices), deadline
        self.all, self.budget = range(len(times)), budget
        self.after = [{v: before[v][o] for v in self.all if o in before[v]} for o in self.all]
        self.head = _apart(times, before, list(self.all))
        self.tail = _apart(times, self.after, list(self.all)[::-1])
        self.by_tail = sorted(self.all, key=lambda o: -self.tail[o])
        alike = [(times[o], sorted(before[o].items()), sorted(self.after[o].items())) for o in self.all]
        self.twins = [[b for b in range(o) if alike[b] == alike[o]] for o in self.all]
        self.seen = set[Any]()

    def ends(self, done: tuple[int, ...], last: int, free: list[int], arrival: list[list[int]]) -> bool:
        """Return whether a state leads to a schedule that ends in time, and was not looked at before.

        ``done`` are the operators that have a device, ``last`` the latest start of them, ``free`` the time from which each
        device is free, ``arrival`` by device when what the operators in ``done`` make arrived there for each operator.
        """
        rest = [o for o in self.all if o not in done]
        if not rest:
            return True
        self.budget.states -= 1
        if self.budget.states < 0:
            raise Refused(f"more than {STATES} states to look at")
        waiting = {o: [b for b in self.before[o] if b not in done] for o in rest}
        leaves = not any(waiting.values()) and not any(self.after[o] for o in rest)
        last = 0 if leaves else last
        start = self.starts(rest, waiting, last, free, arrival)
        if not start or not self.fit(rest, last, free, start):
            return False
        told = [o for o in rest if not self.before[o] or len(waiting[o]) < len(self.before[o])]
        of_device = [(max(free[d], last), *(start[o][d] for o in told)) for d in self.devices]
        if (key := (tuple(rest), tuple(sorted(of_device)))) in self.seen:
            return False
        self.seen.add(key)
        ready = [o for o in rest if not waiting[o] and not any(b in rest for b in self.twins[o])]
        if leaves:
            first = (o for o in rest if all(row[o] <= row[b] for b in rest for row in arrival))
            ready = [o] if (o := next(first, None)) is not None else ready
        for o in ready:
            for d in self.devices:
                begin = start[o][d]
                if begin in (EARLIER, inf) or of_device[d] in of_device[:d]:
                    continue
                end = begin + self.times[o]
                now = [[*row] for row in arrival]
                for v, delay in self.after[o].items():
                    for e in self.devices:
                        now[e][v] = max(now[e][v], end if e == d else end + delay)
                if self.ends(tuple(sorted((*done, o))), begin, [*free[:d], end, *free[d + 1 :]], now):
                    return True
        return False

    def starts(
        self, rest: list[int], waiting: dict[int, list[int]], last: int, free: list[int], arrival: list[list[int]]
    ) -> dict[int, list[Any]]:
        """Return by device when each operator could start; none at all if one can't end in time."""
        head, start = dict[int, int](), dict[int, list[Any]]()
        for o in rest:
            follows = self.times[o] + self.tail[o]
            floor = max([self.head[o], last, *(head[b] + self.times[b] for b in waiting[o])])
            at = [max(row[o], f) for row, f in zip(arrival, free, strict=True)]
            head[o] = max(floor, min(at))
            if head[o] + follows > self.deadline:
                return {}
            start[o] = [inf if max(a, floor) + follows > self.deadline else EARLIER if a < last else a for a in at]
        return start

    def fit(self, rest: list[int], last: int, free: list[int], start: dict[int, list[Any]]) -> bool:
        """Return whether the work of operators with at least some tail fits in before it, for all tails."""
        earliest, work, left = [inf for _ in self.devices], 0, set(rest)
        for o in self.by_tail:
            if o in left:
                work += self.times[o]
                earliest = [
                    e if s == inf else min(e, max(s, f, last, self.head[o]))
                    for e, s, f in zip(earliest, start[o], free, strict=True)
                ]
                if work > sum(max(0, self.deadline - self.tail[o] - e) for e in earliest):
                    return False
        return True
