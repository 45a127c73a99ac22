"""A lower bound for placements: separators, at which all branches meet, and how units divide the branches between them.

Sets of operators are the bits of integers. Times and sizes are integer multiples of a common unit, so nothing is rounded.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from fractions import Fraction
from math import inf, lcm
from typing import Any, NamedTuple

from .instance import Instance
from .path_bound import between, long_paths, members, rounded_down

LOOKS = 20_000_000
"""Largest number of heads, tails and pairs of them to try: some 10 s of a processor core."""

ROOM = 10**9
"""The bound allows an accelerator 1 / ROOM more than its memory, since `evaluate` rounds sums of sizes."""


class SeparatorProof(NamedTuple):
    """A bound, the operators that it counts, and the paths through the blocks between their separators."""

    bound: float
    operators: list[int]
    paths: list[list[int]]


def separator_bound(instance: Instance, looks: int = LOOKS) -> SeparatorProof:
    """Return the strongest bound by separators over several sets of operators.

    The sets are all operators and, for each of `long_paths`, the operators between its ends. A set is left out if its blocks
    have more than ``looks`` heads, tails and pairs of them. The bound is 0 if all sets are left out.
    Proof: Theorem 5 of ``docs/proofs/placement_separators.md``.

    Examples
    --------
    >>> from tvm_sched.schedulers.efficient_mip import Instance
    >>> from tvm_sched.schedulers.efficient_mip.separator_bound import separator_bound
    >>> chain = Instance([[10.0], [10.0]], [100.0, 100.0], [1.0, 1.0], [30.0, 30.0], [(0, 1)], [1.0])
    >>> separator_bound(chain)
    SeparatorProof(bound=80.0, operators=[0, 1], paths=[])
    """
    before, behind = between(instance)
    sets = [tuple(instance.operators)]
    sets += [tuple(members(before[path[-1]] & behind[path[0]])) for path in long_paths(instance) if path]
    best = SeparatorProof(0.0, [], [])
    for operators in dict.fromkeys(sets):
        series = _Series(_restricted(instance, operators), looks)
        bound = rounded_down(series.least_latency())
        if bound > best.bound:
            paths = [[operators[v] for v in path.operators] for path in series.paths]
            best = SeparatorProof(bound, list(operators), paths)
    return best


def _restricted(instance: Instance, operators: Sequence[int]) -> Instance:
    """Return the instance of some of the operators, without the requirement that certain ones are placed together."""
    number = {v: i for i, v in enumerate(operators)}
    return replace(
        instance,
        accelerator=[instance.accelerator[v] for v in operators],
        cpu=[instance.cpu[v] for v in operators],
        size=[instance.size[v] for v in operators],
        transfer=[instance.transfer[v] for v in operators],
        edges=[(number[u], number[v]) for u, v in instance.edges if u in number and v in number],
        together=[],
    )


class _Path(NamedTuple):
    """A path through a block, and the least time ``[s][e]`` of its operators ``s`` to ``e - 1`` (`_Series._least`)."""

    operators: list[int]
    least: list[list[int]]


class _Part(NamedTuple):
    """A head or tail of a block: its operators, their work and size, and the operators whose results they read."""

    operators: int
    work: int
    size: int
    reads: int


_NOTHING = _Part(0, 0, 0, 0)


class _TooManyLooks(Exception):
    """The blocks have too many heads and tails."""


class _Series:
    """Separators 1 to m in topological order, and block k between separators k and k + 1.

    Separators 0 and m + 1 stand for the start and the end of the run; they are not operators.
    """

    def __init__(self, instance: Instance, looks: int) -> None:
        self.instance, self.looks, self.paths = instance, looks, list[_Path]()
        count = len(instance.operators)
        fastest = [min(times, default=inf) for times in instance.accelerator]
        times, self.unit = _whole([*fastest, *instance.cpu, *instance.transfer])
        self.accelerator, self.cpu, self.transfer = times[:count], times[count : 2 * count], times[2 * count :]
        (*self.size, room), _ = _whole([*instance.size, max(instance.capacity, default=0.0)])
        self.room = room + room // ROOM
        self.reads = [_set(near) for near in instance.before]
        self.readers = [_set(near) for near in instance.after]
        self.before, self.behind = between(instance)
        full = (1 << count) - 1
        self.separators = [v for v in instance.order if self.before[v] | self.behind[v] == full]
        self.own = [0, *(1 << v for v in self.separators), 0]
        self.until = [0, *(self.before[v] for v in self.separators), full]
        self.onward = [full, *(self.behind[v] for v in self.separators), 0]
        self.blocks = [
            self.onward[k] & self.until[k + 1] & ~self.own[k] & ~self.own[k + 1] for k in range(len(self.own) - 1)
        ]

    def least_latency(self) -> Fraction:
        """Return the bound of Theorem 5; 0 if the blocks have too many heads and tails."""
        starts, ends = list[dict[_Part, int]](), {0: 0}
        try:
            for k in range(len(self.blocks)):
                starts.append(self._starts(k, ends))
                if k < len(self.separators):
                    ends = self._ends(k + 1, starts)
        except _TooManyLooks:
            return Fraction(0)
        return Fraction(starts[-1][_NOTHING], self.unit)

    def _starts(self, k: int, ends: dict[int, int]) -> dict[_Part, int]:
        """Return the earliest start of the unit of separator ``k + 1``, by its tail of block ``k``.

        ``ends`` has the earliest end of the unit of separator ``k``, by its head of the block.
        """
        paths = self._cover(k)
        masks = [_set(path.operators) for path in paths]
        rows = [
            (end, head, [path.least[(head & mask).bit_count()] for path, mask in zip(paths, masks, strict=True)])
            for head, end in sorted(ends.items(), key=lambda item: item[1])
        ]
        starts = {}
        for tail in self._parts(k, self.readers) if k < len(self.separators) else [_NOTHING]:
            rest = [
                len(path.operators) - (tail.operators & mask).bit_count()
                for path, mask in zip(paths, masks, strict=True)
            ]
            start: Any = inf
            for end, head, least in rows:
                if end >= start:
                    break
                self._look()
                if not head & tail.operators:
                    start = min(start, end + max((row[e] for row, e in zip(least, rest, strict=True)), default=0))
            starts[tail] = start
        return starts

    def _ends(self, j: int, starts: list[dict[_Part, int]]) -> dict[int, int]:
        """Return the earliest end of a unit whose last separator is ``j``, by its head of block ``j``.

        ``starts`` has the earliest starts of units, by their first separator (from 1) and their tail of the block before it.
        """
        candidates = sorted(self._candidates(j, starts))
        sizes, least = [size for size, _ in candidates], list[int]()
        for _, end in candidates:
            least.append(min(least[-1], end) if least else end)
        later = self.blocks[j] | self.onward[j + 1]
        ends = {0: starts[j - 1][_NOTHING] + self.cpu[self.separators[j - 1]]}
        for head in self._parts(j, self.reads):
            if fitting := bisect_right(sizes, self.room - head.size):
                out = self._copies(self._read_in(head.operators | self.own[j], later & ~head.operators))
                end = least[fitting - 1] + head.work + out
                ends[head.operators] = min(end, ends.get(head.operators, end))
        return ends

    def _candidates(self, j: int, starts: list[dict[_Part, int]]) -> Iterator[tuple[int, int]]:
        """Yield size and earliest end of each unit whose last separator is ``j``, without a head of block ``j``."""
        inner = 0
        for i in range(j, 0, -1):
            inner |= self.own[i] | (self.blocks[i] if i < j else 0)
            size, work = self._sum(self.size, inner), self._sum(self.accelerator, inner)
            if size > self.room:
                return
            reads = self._reads(inner)
            out = self._copies(self._read_in(inner & ~self.own[j], self.onward[j + 1]))
            for tail, start in starts[i - 1].items():
                self._look()
                taken = (reads | tail.reads) & ~inner & ~tail.operators
                late = self._copies(self._read_in(tail.operators, self.onward[j + 1]))
                yield size + tail.size, start + work + tail.work + self._copies(taken) + out + late

    def _parts(self, k: int, near: list[int]) -> list[_Part]:
        """Return the heads of block ``k`` that fit, if ``near`` is what operators read, or the tails, if their readers."""
        parts = [_NOTHING]
        found = {0}
        for part in parts:
            for v in members(self.blocks[k] & ~part.operators):
                more = part.operators | 1 << v
                size = part.size + self.size[v]
                if more not in found and size <= self.room and not near[v] & self.blocks[k] & ~more:
                    self._look()
                    found.add(more)
                    parts.append(_Part(more, part.work + self.accelerator[v], size, part.reads | self.reads[v]))
        return parts

    def _cover(self, k: int) -> list[_Path]:
        """Return paths that together hold all operators of block ``k``, each with as many new operators as possible."""
        left, paths = self.blocks[k], list[_Path]()
        within = [v for v in self.instance.order if self.blocks[k] >> v & 1]
        while left:
            longest, previous = dict[int, int](), dict[int, int]()
            for v in within:
                longest[v], u = max(((longest[u], u) for u in self.instance.before[v] if u in longest), default=(0, -1))
                longest[v] += 1 + (left >> v & 1) * len(within)
                previous[v] = u
            path = [max(within, key=longest.__getitem__)]
            while (u := previous[path[-1]]) >= 0:
                path.append(u)
            path.reverse()
            left &= ~_set(path)
            paths.append(_Path(path, self._least(k, path)))
        self.paths += paths
        return paths

    def _least(self, k: int, path: list[int]) -> list[list[int]]:
        """Return ``[s][e]``: the least cost of operators ``s`` to ``e - 1`` of the path, in stretches or on CPUs."""
        length = len(path)
        ahead = [self.until[k], *(self.before[v] for v in path)]
        later = [*(self.behind[v] for v in path), self.onward[k + 1]]
        stretch = dict[tuple[int, int], int]()
        for s in range(length):
            for e in range(s + 1, length + 1):
                held = self.behind[path[s]] & self.before[path[e - 1]]
                if self._sum(self.size, held) > self.room:
                    break
                moved = self._reads(held) & ~held & ahead[s] | self._read_in(held, later[e])
                stretch[s, e] = self._sum(self.accelerator, held) + self._copies(moved)
        least = [[0] * (length + 1) for _ in range(length + 1)]
        for s in range(length):
            for e in range(s + 1, length + 1):
                cuts = [least[s][c] + stretch[c, e] for c in range(s, e) if (c, e) in stretch]
                least[s][e] = min([least[s][e - 1] + self.cpu[path[e - 1]], *cuts])
        return least

    def _sum(self, values: list[int], operators: int) -> int:
        return sum(values[v] for v in members(operators))

    def _copies(self, operators: int) -> int:
        return sum(self.transfer[v] for v in members(operators))

    def _reads(self, operators: int) -> int:
        read = 0
        for v in members(operators):
            read |= self.reads[v]
        return read

    def _read_in(self, operators: int, later: int) -> int:
        """Return the operators of a set whose results one of ``later`` reads."""
        return sum(1 << v for v in members(operators) if self.readers[v] & later)

    def _look(self) -> None:
        self.looks -= 1
        if self.looks < 0:
            raise _TooManyLooks


def _set(operators: Iterable[int]) -> int:
    """Return a set as bits."""
    bits = 0
    for v in operators:
        bits |= 1 << v
    return bits


def _whole(values: list[float]) -> tuple[list[int], int]:
    """Return values as multiples of 1 / unit, and the unit; infinite ones become larger than the sum of all others."""
    exact = [Fraction(value) for value in values if value < inf]
    unit = lcm(*(value.denominator for value in exact))
    most = int(sum(exact) * unit) + 1
    return [int(Fraction(value) * unit) if value < inf else most for value in values], unit
