"""Delays by cases over placements: which operators of a region share a device (``docs/proofs/vipr.md``, "Cases").

The cases are a tree of assumptions ``same(a, b) = 1`` and ``same(a, b) = 0``. In each leaf the placed operators are divided
into classes, each of which runs on one device, and a path with copies between classes, or a class that runs one operator
after another, takes the time that is to be proved.
"""

from __future__ import annotations

from collections.abc import Callable
from math import inf
from typing import TYPE_CHECKING, Any, NamedTuple

from .integer_program import GREATER, LESS, Terms

if TYPE_CHECKING:
    from .schedule_program import ScheduleProgram

MOST_NODES = 1500
"""Largest number of nodes of the tree of one lemma; above it, a lower delay with a smaller tree is tried."""
MOST_IN_ALL = 15_000
"""Largest number of nodes of all trees of a file."""
WIDEST = 16
"""Largest number of operators of a region whose places are all decided; of others only those that the lemma names."""
_TRIES = (1.0, 0.6, 0.3)
"""Parts of what a delay is above the longest path that are tried one after another."""


class _TooMany(Exception):
    """The tree has more nodes than allowed."""


class Reason(NamedTuple):
    """Why a node takes ``ns``: the path to the last operator (``members`` is empty), or a class in turn."""

    ns: int
    members: tuple[int, ...] = ()


class Group(NamedTuple):
    """The time from the first start to the last end of operators that share a device: the rows that define it."""

    turns: int
    begin: Callable[[dict[int, int]], int]
    """Derive the least begin from rows of starts, or of what follows ends."""
    end: Callable[[dict[int, int | None]], int]


class Cases:
    """Variables and rows of ``same`` that all lemmas of a file share, and the search for trees."""

    def __init__(self, schedule: ScheduleProgram) -> None:
        self.schedule, self.left = schedule, MOST_IN_ALL
        self.pairs: dict[tuple[int, int], int] = {}
        self.copies: dict[tuple[int, int], int] = {}
        self.triangles: dict[tuple[int, int, int], int] = {}
        self.crowds: dict[tuple[int, ...], int] = {}
        self.groups: dict[tuple[int, ...], Group] = {}
        p = schedule.problem
        self.routes = {route._replace(channels=()) for (a, _), route in p.routes.items() if a >= 0}

    def same(self, a: int, b: int) -> int:
        """Return the variable that is 1 if two operators run on one device, else 0."""
        pair = min(a, b), max(a, b)
        if pair not in self.pairs:
            name = f"same_{pair[0]}_{pair[1]}"
            self.pairs[pair] = y = self.schedule.program.variable(name)
            self.schedule.least[y] = self.schedule.program.constraint(f"least_{name}", {y: 1})
        return self.pairs[pair]

    def copy_ns(self, a: int, b: int) -> Any:
        """Return the least time of a copy from ``a`` to its reader ``b``; infinite if no route joins two devices."""
        size = self.schedule.problem.before[b].get(a, 0)
        return min((route.ns(size) for route in self.routes), default=inf)

    def copy(self, a: int, b: int) -> int:
        """Return the row: ``b`` starts after ``a`` and, if they are apart, a copy."""
        if (a, b) not in self.copies:
            row = self.schedule.start(b) | {self.schedule.ends[a]: -1, self.same(a, b): self.copy_ns(a, b)}
            self.copies[a, b] = self.schedule.program.constraint(f"copy_{a}_{b}", row, self.copy_ns(a, b))
        return self.copies[a, b]

    def triangle(self, a: int, b: int, c: int) -> int:
        """Return the row: if ``a`` and ``c`` are with ``b``, ``a`` is with ``c``."""
        key = min(a, c), b, max(a, c)
        if key not in self.triangles:
            row = {self.same(a, b): 1, self.same(b, c): 1, self.same(a, c): -1}
            self.triangles[key] = self.schedule.program.constraint(f"triangle_{a}_{b}_{c}", row, 1, LESS)
        return self.triangles[key]

    def crowd(self, operators: tuple[int, ...]) -> int:
        """Return the row: of more operators than there are devices two share one."""
        if operators not in self.crowds:
            row = {self.same(a, b): 1 for k, b in enumerate(operators) for a in operators[:k]}
            self.crowds[operators] = self.schedule.program.constraint(f"crowd_{len(self.crowds)}", row, 1)
        return self.crowds[operators]

    def group(self, with_: int, members: tuple[int, ...]) -> Group:
        """Return the rows of operators that run one after another if all are on the device of ``with_``."""
        key = with_, *members
        if key not in self.groups:
            schedule, name = self.schedule, f"group_{len(self.groups)}"
            add, rule = schedule.program.variable, schedule.program.constraint
            begin, end = add(f"{name}_begin"), add(f"{name}_end")
            total = sum(schedule.duration(o)[0] for o in members)
            apart = {self.same(with_, o): -total for o in members if o != with_}
            turns = rule(f"{name}_turns", {end: 1, begin: -1} | apart, total - total * len(apart))
            starts = {o: ({begin: 1} | {v: -x for v, x in schedule.start(o).items()}, 0) for o in members}
            ends = {o: ({schedule.ends[o]: 1, end: -1}, 0) for o in members}
            first, last = schedule.one_of(f"{name}_first", starts), schedule.one_of(f"{name}_last", ends)
            self.groups[key] = Group(turns, first, last)
        return self.groups[key]

    def delay(self, first: int, last: int, between: list[int], named: set[int], ns: int, path: int) -> int | None:
        """Return the row of the largest delay above ``path`` that a tree of limited size proves; None without one."""
        decided = [o for o in between if len(between) <= WIDEST or o in named]
        for part in _TRIES:
            target = path + round(part * (ns - path))
            tree = _Tree(self, first, last, between, decided, target)
            try:
                tree.search()
            except _TooMany:
                continue
            if tree.target <= path:
                return None
            self.left -= tree.nodes
            return tree.write()
        return None


class _Tree:
    """The cases of one region. Operators are decided one after another: each joins a class or begins one."""

    def __init__(
        self, cases: Cases, first: int, last: int, between: list[int], decided: list[int], target: int
    ) -> None:
        self.cases, self.first, self.last, self.between = cases, first, last, between
        self.decided, self.target, self.nodes = decided, target, 0
        schedule, inside = cases.schedule, {first, *between}
        self.time = {o: schedule.duration(o)[0] for o in between} | {first: 0}
        self.before = {o: [a for a in schedule.problem.before[o] if a in inside] for o in between}
        self.copy = {(a, o): cases.copy_ns(a, o) for o in between for a in self.before[o]}
        self.devices = len(schedule.problem.devices)
        self.of: dict[int, int] = {first: first}  # operator to the first one of its class
        self.classes = [first]

    def search(self) -> None:
        """Lower ``target`` to what the cases prove; raise `_TooMany` if there are too many."""
        self.nodes += 1
        if self.nodes > min(MOST_NODES, self.cases.left):
            raise _TooMany
        reason = self.reason()
        if reason.ns >= self.target:
            return
        if (o := self.next_operator()) is None:
            self.target = reason.ns
            return
        for representative in list(self.classes):
            with self.placed(o, representative):
                self.search()
        if len(self.classes) < self.devices:
            with self.placed(o, o):
                self.search()

    def next_operator(self) -> int | None:
        """Return the next operator to be decided; None if all are."""
        return next((o for o in self.decided if o not in self.of), None)

    def placed(self, o: int, representative: int) -> _Placed:
        """Place an operator for the time of a ``with`` block."""
        return _Placed(self, o, representative)

    def costs(self, a: int, o: int) -> Any:
        """Return the copy between neighbours; 0 if one of them is not placed or both share a device."""
        apart = a in self.of and o in self.of and self.of[a] != self.of[o]
        return self.copy[a, o] if apart and self.copy[a, o] < inf else 0

    def times(self) -> tuple[dict[int, int], dict[int, int]]:
        """Return least starts after the first operator's end, and least times from ends to the last operator's end."""
        start, tail = {self.first: 0}, dict.fromkeys((self.first, *self.between), 0)
        for o in self.between:
            start[o] = max(start[a] + self.time[a] + self.costs(a, o) for a in self.before[o])
        for o in reversed(self.between):
            for a in self.before[o]:
                tail[a] = max(tail[a], self.costs(a, o) + self.time[o] + tail[o])
        return start, tail

    def reason(self) -> Reason:
        """Return the strongest of the longest path and all classes in turn."""
        start, tail = self.times()
        best = Reason(start[self.last] + self.time[self.last])
        for representative in self.classes:
            own = [o for o in self.between if self.of.get(o) == representative]
            for least_start in {start[o] for o in own}:
                late = sorted((o for o in own if start[o] >= least_start), key=lambda o: -tail[o])
                work = 0
                for k, o in enumerate(late):
                    work += self.time[o]
                    if k and least_start + work + tail[o] > best.ns:
                        best = Reason(least_start + work + tail[o], tuple(sorted(late[: k + 1])))
        return best

    def write(self) -> int:
        """Derive the delay in each case and join the cases; return the row."""
        return _Writer(self).node({})


class _Placed:
    """A ``with`` block in which an operator is in a class."""

    def __init__(self, tree: _Tree, o: int, representative: int) -> None:
        self.tree, self.o, self.representative = tree, o, representative

    def __enter__(self) -> None:
        self.tree.of[self.o] = self.representative
        if self.o == self.representative:
            self.tree.classes.append(self.o)

    def __exit__(self, *_: object) -> None:
        del self.tree.of[self.o]
        if self.o == self.representative:
            self.tree.classes.pop()


class _Writer:
    """Derive the rows of a tree. ``known`` has the rows of assumptions by pair: operator and first one of a class."""

    def __init__(self, tree: _Tree) -> None:
        self.tree, self.cases, self.program = tree, tree.cases, tree.cases.schedule.program

    def node(self, known: dict[tuple[int, int], int]) -> int:
        """Return the row of the delay in a case."""
        tree = self.tree
        reason = tree.reason()
        if reason.ns >= tree.target:
            return _Leaf(self, known).row(reason)
        o = tree.next_operator()
        assert o is not None
        return self.choose(o, list(tree.classes), known)

    def choose(self, o: int, classes: list[int], known: dict[tuple[int, int], int]) -> int:
        """Return the row of all cases in which an operator is in one of some classes, or begins one."""
        tree = self.tree
        if not classes:
            if len(tree.classes) == tree.devices:
                return self.contradiction(o, known)
            with tree.placed(o, o):
                return self.node(known)
        variable, label = self.cases.same(classes[0], o), f"with_{classes[0]}_{o}"
        high = self.program.assume(f"{label}_yes", [variable], GREATER, 1)
        with tree.placed(o, classes[0]):
            joined = self.node(known | {(classes[0], o): high})
        low = self.program.assume(f"{label}_no", [variable], LESS, 0)
        other = self.choose(o, classes[1:], known | {(classes[0], o): low})
        return self.program.either(label, other, low, joined, high)

    def contradiction(self, o: int, known: dict[tuple[int, int], int]) -> int:
        """Return the row 0 ≥ 1: one operator of each class and this one are on more devices than there are."""
        crowd = tuple(sorted((*self.tree.classes, o)))
        pairs = [(a, b) for a in self.tree.classes for b in (*self.tree.classes, o) if (a, b) in known]
        return self.program.combine("too_many", {self.cases.crowd(crowd): 1} | {known[pair]: -1 for pair in pairs})


class _Leaf:
    """The rows of one case."""

    def __init__(self, writer: _Writer, known: dict[tuple[int, int], int]) -> None:
        self.writer, self.known = writer, known
        self.tree, self.cases, self.program = writer.tree, writer.cases, writer.program
        self.start, self.tail = self.tree.times()
        self.heads: dict[int, int | None] = {self.tree.first: None}
        self.tails: dict[int, int | None] = {self.tree.last: None}
        self.after: dict[int, list[int]] = {}
        for o in self.tree.between:
            for a in self.tree.before[o]:
                self.after.setdefault(a, []).append(o)

    def row(self, reason: Reason) -> int:
        """Return the row that the last operator ends at least ``reason.ns`` after the first one."""
        if not reason.members:
            row = self.head(self.tree.last)
            assert row is not None
            return row
        representative = self.tree.of[reason.members[0]]
        group = self.cases.group(representative, reason.members)
        starts = {o: self.begins(o) for o in reason.members}
        first = group.begin({o: self.program.combine(f"start_{o}", terms) for o, terms in starts.items()})
        last = group.end({o: self.behind(o) for o in reason.members})
        total = sum(self.tree.time[o] for o in reason.members)
        together = {self.known[representative, o]: total for o in reason.members if o != representative}
        return self.program.combine("in_turn", {group.turns: 1, first: 1, last: 1} | together)

    def edge(self, a: int, o: int) -> dict[int, int]:
        """Return rows that together say how long after the end of ``a`` its reader ``o`` starts."""
        cost = self.tree.costs(a, o)
        return {self.cases.copy(a, o): 1, self.apart(a, o): -cost} if cost else {self.cases.schedule.edges[a, o]: 1}

    def apart(self, a: int, b: int) -> int:
        """Return the row that two operators of different classes do not share a device."""
        ra, rb = self.tree.of[a], self.tree.of[b]
        terms = {self.known[(ra, rb) if (ra, rb) in self.known else (rb, ra)]: 1}
        if a != ra:  # same(a, rb) is at most same(ra, rb)
            terms |= {self.cases.triangle(ra, a, rb): 1, self.known[ra, a]: -1}
        if b != rb:  # same(a, b) is at most same(a, rb)
            terms |= {self.cases.triangle(a, b, rb): 1, self.known[rb, b]: -1}
        return self.program.combine(f"apart_{a}_{b}", terms) if len(terms) > 1 else next(iter(terms))

    def before(self, o: int) -> int:
        """Return the predecessor through which the longest path from the first operator comes."""
        length = {a: self.start[a] + self.tree.time[a] + self.tree.costs(a, o) for a in self.tree.before[o]}
        return max(length, key=length.__getitem__)

    def begins(self, o: int) -> Terms:
        """Return rows that together say when an operator starts at the earliest."""
        row = self.head(self.before(o))
        return self.edge(self.before(o), o) | ({} if row is None else {row: 1})

    def head(self, o: int) -> int | None:
        """Return the row of the least end of an operator after the first one's; None for the first one."""
        chain = [o]
        while chain[-1] not in self.heads:
            chain.append(self.before(chain[-1]))
        for each in chain[-2::-1]:
            terms = {**self.begins(each), self.cases.schedule.duration(each)[1]: 1}
            self.heads[each] = self.program.combine(f"end_{each}", terms)
        return self.heads[o]

    def behind(self, o: int) -> int | None:
        """Return the row of the least time from an operator's end to the last one's; None for the last one."""
        chain = [o]
        while (at := chain[-1]) not in self.tails:
            length = {b: self.tree.costs(at, b) + self.tree.time[b] + self.tail[b] for b in self.after[at]}
            chain.append(max(length, key=length.__getitem__))
        for each, following in zip(chain[-2::-1], chain[:0:-1], strict=True):
            row = self.tails[following]
            terms = {**self.edge(each, following), self.cases.schedule.duration(following)[1]: 1}
            self.tails[each] = self.program.combine(f"tail_{each}", terms | ({} if row is None else {row: 1}))
        return self.tails[o]
