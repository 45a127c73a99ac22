"""The rule ``prices``: Theorem 1 and Lemma 2 of ``docs/proofs/partition_prices.md``, by branch and bound in integers.

Sets of nodes are bits of integers.
"""

from __future__ import annotations

from collections.abc import Iterator
from fractions import Fraction
from typing import NamedTuple

from ..document import Refused
from .graph import Graph

STEPS = 100_000
"""Largest number of steps of branch and bound."""
CUTS = 8
"""Largest number of prices of cost that are tried at a step."""
ONE = 1 << 20
"""A price of cost is a multiple of one over it."""
FINE = 1 << 32
"""Costs are rounded down to multiples of all costs over this number; that only makes stages cheaper."""


class Choice(NamedTuple):
    """Nodes that a stage holds, nodes that it does not hold, and the price of cost to try first."""

    held: int
    out: int
    price: int


def can_be_worth_more(graph: Graph, prices: list[int], most: int, limit: Fraction) -> bool:
    """Return whether a set that can be a stage of cost at most ``limit`` has prices of more than ``most`` in all."""
    search, left, steps, dearer = _Search(graph, prices, most, limit), list[Choice](), 0, 0
    for v in sorted(range(graph.size), key=search.alone.__getitem__, reverse=True):
        left.append(Choice(search.closed(1 << v), dearer, ONE))  # stages of which this node is the dearest
        dearer |= 1 << v
    while left:
        steps += 1
        if steps > STEPS:
            raise Refused(f"more than {STEPS} steps to look for a stage that is worth more")
        branches = search.branches(left.pop())
        if branches is None:
            return True
        left += branches
    return False


class _Search:
    """The graph in integers, and a step of the search."""

    def __init__(self, graph: Graph, prices: list[int], most: int, limit: Fraction) -> None:
        n, self.prices, self.most = range(graph.size), prices, most
        unit = max(1, -(-(sum(graph.work) + sum(t.transfer for t in graph.tensors)) // FINE))
        self.limit, self.work = int(limit // unit), [work // unit for work in graph.work]
        self.tensors = [(sum(1 << v for v in t.members), t.transfer // unit, t.always) for t in graph.tensors]
        self.before, self.after = [0] * graph.size, [0] * graph.size
        left = {v: set(graph.before[v]) for v in n}
        while left:  # in topological order
            for v in [v for v, waits in left.items() if not waits & left.keys()]:
                self.before[v] = sum(1 << u for u in graph.before[v])
                for u in graph.before[v]:
                    self.before[v] |= self.before[u]
                del left[v]
        for v in n:
            for u in _members(self.before[v]):
                self.after[u] |= 1 << v
        self.edges = [(u, v) for v in n for u in graph.before[v]]
        self.alone = [self.work[v] + sum(cost for members, cost, _ in self.tensors if members >> v & 1) for v in n]

    def closed(self, held: int) -> int:
        """Return a set with all nodes between its nodes."""
        before, after = self.around(held)
        return held | (before & after)

    def around(self, held: int) -> tuple[int, int]:
        """Return all nodes before some node of a set, and all behind some."""
        before = after = 0
        for v in _members(held):
            before, after = before | self.before[v], after | self.after[v]
        return before, after

    def branches(self, choice: Choice) -> list[Choice] | None:
        """Return the two choices about a further node, or none where no stage is worth more; None if some stage is."""
        held, out, price = choice
        if held & out:
            return []
        paid = sum(self.work[v] for v in _members(held))
        paid += sum(cost for members, cost, always in self.tensors if members & held and (always or members & out))
        if paid > self.limit:
            return []
        before, after = self.around(held)
        free = ~(held | out) & ((1 << len(self.work)) - 1)
        for v in _members(free):
            between = (after & self.before[v]) | (before & self.after[v])
            added = self.work[v] + sum(self.work[u] for u in _members(between & ~held))
            if between & out or paid + added > self.limit:
                out, free = out | 1 << v, free & ~(1 << v)
        worth = sum(self.prices[v] for v in _members(held | free))
        if worth <= self.most:
            return []
        low, high = self.of(held), self.of(held | free)
        if high[1] <= self.limit and self.closed(held | free) == held | free:
            return None
        if not free:
            return []
        best: int | None = None
        chosen, found = price, held
        for _ in range(CUTS):
            bound, found = self.cut(held, out, free, before, after, price)
            if bound // ONE <= self.most:
                return []
            if best is None or bound < best:
                best, chosen = bound, price
            value, cost = self.of(found)
            if cost > self.limit:
                high = value, cost
            else:
                low = value, cost
            if high[1] <= low[1]:
                break
            crossing = min(max((high[0] - low[0]) * ONE // (high[1] - low[1]), 1), 1 << 24)
            if crossing == price:
                break
            price = crossing
        v = max(_members(free), key=lambda v: (found >> v & 1, self.work[v]))
        return [Choice(held, out | 1 << v, chosen), Choice(self.closed(held | 1 << v), out, chosen)]

    def of(self, nodes: int) -> tuple[int, int]:
        """Return what a set is worth and what it costs."""
        cost = sum(self.work[v] for v in _members(nodes))
        for members, transfer, always in self.tensors:
            if members & nodes and (always or members & ~nodes):
                cost += transfer
        return sum(self.prices[v] for v in _members(nodes)), cost

    def cut(self, held: int, out: int, free: int, before: int, after: int, price: int) -> tuple[int, int]:
        """Return the bound of Lemma 2, times `ONE`, and a set that attains it."""
        number = {v: i for i, v in enumerate(_members(free), 2)}
        flow, size = _Flow(), len(number) + 2
        endless = (sum(self.prices) + 1) * ONE + sum(self.alone) * price
        total = paid = 0
        for v in _members(held):
            total, paid = total + self.prices[v], paid + self.work[v]
        for v, i in number.items():
            total += self.prices[v]
            flow.arc(0, i, self.prices[v] * ONE)
            flow.arc(i, 1, self.work[v] * price)
        for members, transfer, always in self.tensors:
            opened, inside, outside = members & free, members & held, always or bool(members & out)
            if inside and outside:
                paid += transfer
            elif opened and transfer and (inside or outside or opened & (opened - 1)):
                into, out_of = 0 if inside else size, 1 if outside else size + 1
                size += 2
                for v in _members(opened):  # `into` is on the side of a member, `out_of` needs all members on its own
                    if not inside:
                        flow.arc(number[v], into, endless)
                    if not outside:
                        flow.arc(out_of, number[v], endless)
                flow.arc(into, out_of, transfer * price)
        for u, v in self.edges:
            if u in number and v in number:
                if before >> u & 1 and before >> v & 1:
                    flow.arc(number[u], number[v], endless)
                if after >> u & 1 and after >> v & 1:
                    flow.arc(number[v], number[u], endless)
        value, side = flow.solve()
        found = held | sum(1 << v for v, i in number.items() if i in side)
        return total * ONE - paid * price - value + self.limit * price, found


class _Flow:
    """A largest flow from vertex 0 to vertex 1 (Dinic's method)."""

    def __init__(self) -> None:
        self.to, self.left, self.at = list[int](), list[int](), dict[int, list[int]]()

    def arc(self, a: int, b: int, capacity: int) -> None:
        for x, y, room in ((a, b, capacity), (b, a, 0)):
            self.at.setdefault(x, []).append(len(self.to))
            self.to.append(y)
            self.left.append(room)

    def solve(self) -> tuple[int, set[int]]:
        """Return the flow's value and the vertices that are still reached from 0."""
        to, left, at, value = self.to, self.left, self.at, 0
        while True:
            level, queue = {0: 0}, [0]
            for x in queue:
                for arc in at.get(x, ()):
                    if left[arc] and to[arc] not in level:
                        level[to[arc]] = level[x] + 1
                        queue.append(to[arc])
            if 1 not in level:
                return value, set(level)
            following, path = {x: iter(at.get(x, ())) for x in queue}, list[int]()
            x = 0
            while True:
                if x == 1:
                    amount = min(left[arc] for arc in path)
                    value += amount
                    for arc in path:
                        left[arc] -= amount
                        left[arc ^ 1] += amount
                    full = next(i for i, arc in enumerate(path) if not left[arc])
                    x = to[path[full] ^ 1]
                    del path[full:]
                    following[x] = iter(at[x])
                    continue
                arc_ = next((arc for arc in following[x] if left[arc] and level.get(to[arc], -1) == level[x] + 1), None)
                if arc_ is not None:
                    path.append(arc_)
                    x = to[arc_]
                elif path:
                    level[x] = -2
                    x = to[path.pop() ^ 1]
                else:
                    break


def _members(bits: int) -> Iterator[int]:
    while bits:
        low = bits & -bits
        yield low.bit_length() - 1
        bits ^= low
