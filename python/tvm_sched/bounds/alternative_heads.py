"""Reduce each way of computing a group to heads and a tail, the form that `variants` bounds."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate, pairwise

import numpy as np
import numpy.typing as npt

from ..problem import Operator

Array = npt.NDArray[np.int64]

SMALL = 16
"""An operator is no head of a way if the largest host tensor of the way is this number of times as large as its own."""


@dataclass(frozen=True)
class AlternativeOperator:
    """An operator of a way.

    Its name, its times by device, the activations that it reads from outside of the group, its largest host tensor that
    only this way reads (-1: none) with its name, other host tensors that it reads, the largest activation that it gives to
    the tail (-1: none).
    """

    name: str
    normal: Array
    direct: Array
    reads: tuple[str, ...]
    own: int
    own_name: str
    shared: frozenset[str]
    gives: int

    @property
    def shortest(self) -> int:
        """Nanoseconds on the fastest device, in the faster mode."""
        return int(min(self.normal.min(), self.direct.min()))


@dataclass(frozen=True)
class ReducedAlternative:
    """The heads and the tail of a way.

    Of the third form also the rest, other heads that have no host tensor to read, and what others than heads and tail read,
    with the name of one that does.
    """

    heads: tuple[AlternativeOperator, ...]
    tail: AlternativeOperator
    any_form: bool = False
    reads: Mapping[str, str] = field(default_factory=dict)
    rest: tuple[AlternativeOperator, ...] = ()

    @property
    def tail_is_head(self) -> bool:
        """Whether the tail is one of the heads."""
        return self.any_form and any(head.gives < 0 for head in (*self.heads, *self.rest))

    @property
    def is_one(self) -> bool:
        """Whether the tail stands for all of the way."""
        return not self.heads and not self.rest


@dataclass(frozen=True)
class Head:
    """What a head of the relaxed problem stands for.

    By way its operator, into how many heads that is divided, and how many heads have parts of the host tensor that it reads.
    """

    places: tuple[AlternativeOperator, ...]
    shares: tuple[int, ...]
    owners: tuple[int, ...]
    is_rest: bool


def heads_of(ways: Sequence[ReducedAlternative]) -> tuple[tuple[ReducedAlternative, ...], list[Head]]:
    """The ways as they are relaxed, and their heads: first those with host tensors, then the rest, if all ways have such.

    Where one has a rest alone, all are heads, those that take longer first. An operator that is all of its way is divided
    among all heads.
    """
    if any(way.rest and not way.heads for way in ways):
        ways = [_without_rest(way) for way in ways]
    first, second = max(len(way.heads) for way in ways), max(len(way.rest) for way in ways)
    missing = any(not way.is_one and not way.rest for way in ways)
    divided = (each for way in ways for each in (way.rest or (way.tail,) * way.is_one))
    if missing or any(each.shortest <= first + second for each in divided):  # nothing is left of a few nanoseconds
        ways, second = [replace(way, rest=()) for way in ways], 0
    found = []
    for count, rest in ((first, False), (second, True)):
        of = [way.rest if rest else way.heads for way in ways]
        belongs = [_assign_heads(each, max(of, key=len)) for each in of]
        for i in range(count):
            places = tuple(each[to[i]] if each else way.tail for each, to, way in zip(of, belongs, ways, strict=True))
            shares = tuple(to.count(to[i]) if each else first + second for each, to in zip(of, belongs, strict=True))
            owners = tuple(_owners(each, to, i) for each, to in zip(of, belongs, strict=True))
            found.append(Head(places, shares, owners, rest))
    return tuple(ways), found


def needed_by_tail(operators: Sequence[Operator], tail: int) -> list[int]:
    """The operators that the tail needs, directly or not, and the tail as the last one."""
    made = {name: k for k, operator in enumerate(operators) for name in operator.outputs}
    found, stack = {tail}, [tail]
    while stack:
        inner = {made[name] for name in operators[stack.pop()].inputs if name in made} - found
        found |= inner
        stack += inner
    return [*sorted(found - {tail}), tail]


def _without_rest(way: ReducedAlternative) -> ReducedAlternative:
    heads = sorted((*way.heads, *way.rest), key=lambda head: -head.shortest) if way.any_form else way.heads
    return replace(way, heads=tuple(heads), rest=())


def reduce_any_form(operators: Sequence[AlternativeOperator]) -> ReducedAlternative:
    """A way of the third form, of the operators that the last one needs, and that."""
    tail = operators[-1]
    least = max(each.own for each in operators) / SMALL  # without what only adds a bias, ways have as many heads
    heads = [replace(each, gives=-1 if each is tail else 0) for each in operators if each.own >= max(least, 0)]
    heads.sort(key=lambda head: (not head.reads, -head.own))
    small = [each for each in operators if each.own < max(least, 0)]
    long = max((each.shortest for each in small), default=0) / SMALL  # nor what only moves elements
    rest = [replace(each, gives=-1 if each is tail else 0) for each in small if each.shortest >= long]
    rest.sort(key=lambda head: -head.shortest)
    in_order = sorted(small, key=lambda each: each.shortest < long)  # of several readers one that is no head is named
    reads = {name: each.name for each in in_order if each is not tail for name in each.reads}
    return ReducedAlternative(tuple(heads), tail, True, reads, tuple(rest))


def read_by_others(ways: Sequence[ReducedAlternative]) -> str:
    """An activation that an operator other than heads and tail, or the only one, reads in each way; "" where none is."""
    if any(not way.any_form and way.heads for way in ways):
        return ""
    common = frozenset.intersection(
        *(_reads_of_others(way) if way.any_form else frozenset(way.tail.reads) for way in ways)
    )
    return min(common, default="")


def _reads_of_others(way: ReducedAlternative) -> frozenset[str]:
    """What operators read of which no head is made; those of heads have no nanosecond left."""
    heads = {each.name for each in (*way.heads, *way.rest)}
    return frozenset(name for name, reader in way.reads.items() if reader not in heads)


def _assign_heads(heads: Sequence[AlternativeOperator], finest: Sequence[AlternativeOperator]) -> list[int]:
    """For each head of the relaxed problem the one of a way to which it belongs, in order.

    By bytes: the host tensors of each way are laid end to end, and scaled to the same length; a head belongs to the one of
    this way in whose tensor the middle of its own falls. Where one would get none so, and where there are no bytes, each
    gets about as many as the others.
    """
    count = len(finest)
    ends = list(accumulate(max(head.own, 0) for head in finest))
    mine = list(accumulate(max(head.own, 0) for head in heads))
    if mine and mine[-1] and ends[-1]:
        twice = [before + end for before, end in pairwise([0, *ends])]
        found = [min(bisect_right(mine, at * mine[-1] // (2 * ends[-1])), len(mine) - 1) for at in twice]
        if len(set(found)) == len(heads):
            return found
    return [i * len(heads) // count for i in range(count)]


def _owners(heads: Sequence[AlternativeOperator], belongs: Sequence[int], i: int) -> int:
    """How many heads of the relaxed problem have parts of the host tensor of which head ``i`` has one."""
    if not heads:
        return len(belongs)
    return sum(heads[other].own_name == heads[belongs[i]].own_name for other in belongs)
