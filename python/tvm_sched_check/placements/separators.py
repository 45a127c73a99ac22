"""Bound the latency of every placement by a series of separators (Theorem 5 of ``docs/proofs/placement_separators.md``).

A separator is an operator that all others precede or follow. Sets of operators are the bits of integers; times are multiples
of a common fraction.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator
from fractions import Fraction
from itertools import accumulate, pairwise
from math import inf, lcm
from typing import Any

from ..document import Refused, count
from .instance import Instance

LOOKS = 100_000_000
"""Largest number of parts of blocks, and of pairs of parts, that are looked at."""


def separator_bound(instance: Instance, operators: list[int], paths: list[list[int]]) -> Fraction:
    """Return the least latency of the operators that are kept, with paths that each lie in a block of them."""
    if len({*map(count, operators)}) < len(operators) or max(operators, default=inf) >= len(instance.cpu):
        raise Refused("the evidence names no operators, one twice, or one that is not there")
    return _Series(instance, operators, paths).bound()


class _Series:
    """Separators 1 to m of some operators; 0 and m + 1 are the begin and the end. Block k is between k and k + 1."""

    def __init__(self, instance: Instance, operators: list[int], paths: list[list[int]]) -> None:
        every, self.looks = _bits(operators), 0
        order = [v for v in instance.order if every >> v & 1]
        self.before, self.after = ([_bits(near) & every for near in side] for side in (instance.before, instance.after))
        leads_to = _closure(self.before, order)
        comes_from = _closure(self.after, order[::-1])
        rows = [instance.cpu, [min(row, default=inf) for row in instance.accelerator], instance.transfer]
        self.tick, (self.cpu, self.work, self.transfer) = _whole(rows)
        _, (self.size, capacity) = _whole([instance.size, instance.capacity])
        self.room = max(capacity, default=-1)
        self.at = [v for v in order if leads_to[v] | comes_from[v] == every]
        own = [0, *(1 << v for v in self.at), 0]
        self.own, self.ahead = own, [0, *(leads_to[v] for v in self.at), every]
        self.behind = [every, *(comes_from[v] for v in self.at), 0]
        self.blocks = [self.behind[k] & self.ahead[k + 1] & ~(own[k] | own[k + 1]) for k in range(len(own) - 1)]
        self.paths: list[list[tuple[int, list[list[int]]]]] = [[] for _ in self.blocks]
        for path in paths:
            held = _bits(path)
            within = [k for k, block in enumerate(self.blocks) if held and held & ~block == 0]
            if not within or any(v not in instance.after[u] for u, v in pairwise(path)):
                raise Refused("a path of the evidence is none through a block between two separators")
            self.paths[within[0]].append((held, self._cuts(within[0], path, leads_to, comes_from)))

    def bound(self) -> Fraction:
        """Return the end of the cheapest series of units."""
        starts, ends = list[dict[int, int]](), {0: 0}
        for k in range(len(self.at)):
            starts.append(self._starts(k, ends, self._parts(k, self.after)))
            ends = self._ends(k + 1, starts)
        return Fraction(self._starts(len(self.at), ends, [0])[0], self.tick)

    def _starts(self, k: int, ends: dict[int, int], tails: list[int]) -> dict[int, int]:
        """Return the least start of the unit of separator k + 1, by its part of block k."""
        heads = sorted((end, head) for head, end in ends.items())
        rows = [(e, h, [cuts[(h & path).bit_count()] for path, cuts in self.paths[k]]) for e, h in heads]
        starts = dict[int, int]()
        for tail in tails:
            stops = [(path & ~tail).bit_count() for path, _ in self.paths[k]]
            best: Any = inf
            for end, head, cuts in rows:
                if end >= best:
                    break
                self._look()
                if not head & tail:
                    best = min(best, end + max((cut[stop] for cut, stop in zip(cuts, stops, strict=True)), default=0))
            starts[tail] = best
        return starts

    def _ends(self, j: int, starts: list[dict[int, int]]) -> dict[int, int]:
        """Return the least end of the unit whose last separator is j, by its part of block j."""
        inner, units, later = 0, list[tuple[int, int]](), self.blocks[j] | self.behind[j + 1]
        for i in range(j, 0, -1):
            inner |= self.own[i] | (self.blocks[i] if i < j else 0)
            if _sum(self.size, inner) > self.room:
                break
            for tail, start in starts[i - 1].items():
                self._look()
                held = inner | tail
                size, work = _sum(self.size, held), _sum(self.work, held)
                out = self._read_in(held & ~self.own[j], self.behind[j + 1])
                units.append((size, start + work + _sum(self.transfer, self._reads(held) & ~held | out)))
        units.sort()
        sizes, least = [size for size, _ in units], [*accumulate((end for _, end in units), min)]
        ends = {0: starts[j - 1][0] + self.cpu[self.at[j - 1]]}
        for head in self._parts(j, self.before):
            if fitting := bisect_right(sizes, self.room - _sum(self.size, head)):
                out = self._read_in(head | self.own[j], later & ~head)
                end = least[fitting - 1] + _sum(self.work, head) + _sum(self.transfer, out)
                ends[head] = min(end, ends.get(head, end))
        return ends

    def _cuts(self, k: int, path: list[int], leads_to: list[int], comes_from: list[int]) -> list[list[int]]:
        """Return the cost of the cheapest cut of each stretch of a path, as in Theorem 2 of `placement_path.md`."""
        length, cost = len(path), dict[tuple[int, int], int]()
        for i in range(length):
            earlier = leads_to[path[i - 1]] if i else self.ahead[k]
            for e in range(i + 1, length + 1):
                later = comes_from[path[e]] if e < length else self.behind[k + 1]
                held = comes_from[path[i]] & leads_to[path[e - 1]]
                if _sum(self.size, held) <= self.room:
                    moved = self._reads(held) & ~held & earlier | self._read_in(held, later)
                    cost[i, e] = _sum(self.work, held) + _sum(self.transfer, moved)
        cuts = [[0] * (length + 1) for _ in range(length + 1)]
        for i in range(length):
            for e in range(i + 1, length + 1):
                last = [cuts[i][c] + cost[c, e] for c in range(i, e) if (c, e) in cost]
                cuts[i][e] = min([cuts[i][e - 1] + self.cpu[path[e - 1]], *last])
        return cuts

    def _parts(self, k: int, near: list[int]) -> list[int]:
        """Return the sets that fit into an accelerator and hold what is near to their operators in block k."""
        found, parts, block = {0}, [0], self.blocks[k]
        for part in parts:
            for v in _members(block & ~part):
                more = part | 1 << v
                if more not in found and not near[v] & block & ~more and _sum(self.size, more) <= self.room:
                    self._look()
                    found.add(more)
                    parts.append(more)
        return parts

    def _reads(self, operators: int) -> int:
        read = 0
        for v in _members(operators):
            read |= self.before[v]
        return read

    def _read_in(self, operators: int, later: int) -> int:
        return _bits(v for v in _members(operators) if self.after[v] & later)

    def _look(self) -> None:
        self.looks += 1
        if self.looks > LOOKS:
            raise Refused(f"the evidence needs more than {LOOKS} parts of blocks and pairs of them")


def _closure(near: list[int], order: list[int]) -> list[int]:
    """Return each operator with all that lie before it; ``order`` has these first."""
    reached = [1 << v for v in range(len(near))]
    for v in order:
        for u in _members(near[v]):
            reached[v] |= reached[u]
    return reached


def _whole(rows: list[list[Any]]) -> tuple[int, list[list[int]]]:
    """Return numbers times their common denominator, which comes first. An infinite one becomes more than all others."""
    finite = [Fraction(x) for row in rows for x in row if x < inf]
    unit = lcm(*(x.denominator for x in finite))
    most = sum(finite) + 1
    return unit, [[int((Fraction(x) if x < inf else most) * unit) for x in row] for row in rows]


def _members(operators: int) -> Iterator[int]:
    while operators:
        yield operators.bit_length() - 1
        operators ^= 1 << operators.bit_length() - 1


def _bits(operators: Iterable[int]) -> int:
    return sum(1 << count(v) for v in {*operators})


def _sum(values: list[int], operators: int) -> int:
    return sum(values[v] for v in _members(operators))
