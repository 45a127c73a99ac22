"""Reduce each alternative of a group to head operators and a tail, the form that `variant_relaxation` relaxes.

The forms and the assignment are in ``docs/proofs/variants.md``, "Construction".
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate, pairwise
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from tvm_sched_runtime.problem import Operator

Array = npt.NDArray[np.int64]

SMALL = 16
"""An operator counts as a head only if its largest host tensor is at least 1/16 of the largest one in its alternative."""


class AlternativeOperator(NamedTuple):
    """An operator of an alternative."""

    name: str
    normal: Array
    """Its time on each device without direct host access."""
    direct: Array
    """Its time on each device with direct host access."""
    reads: tuple[str, ...]
    """Activations that it reads from outside of the group."""
    own: int
    """Bytes of the largest host tensor that only this group reads; -1 without one."""
    own_name: str
    """Name of the largest host tensor that only this group reads, of which heads read parts (B4); "" where ``own`` is -1.

    It may be larger than ``own``, which leaves out tables of which an operator reads rows."""
    shared: frozenset[str]
    """Other host tensors that it reads."""
    gives: int
    """Bytes of the largest activation that the tail reads from it; -1 without one."""

    @property
    def shortest(self) -> int:
        """Nanoseconds on the fastest device, in the faster mode."""
        return int(min(self.normal.min(), self.direct.min()))


@dataclass(frozen=True)
class ReducedAlternative:
    """The heads and the tail of an alternative."""

    heads: tuple[AlternativeOperator, ...]
    tail: AlternativeOperator
    any_form: bool = False
    """Whether the alternative has the third form."""
    reads: Mapping[str, str] = field(default_factory=dict)
    """Third form: activations that operators other than the tail read, with the name of one reader."""
    further: tuple[AlternativeOperator, ...] = ()
    """Third form: further heads, which read no host tensor."""

    @property
    def tail_is_head(self) -> bool:
        """Whether the tail is one of the heads."""
        return self.any_form and any(head.gives < 0 for head in (*self.heads, *self.further))

    @property
    def is_one(self) -> bool:
        """Whether the tail stands for the whole alternative."""
        return not self.heads and not self.further


@dataclass(frozen=True)
class Head:
    """A head of the relaxed problem."""

    places: tuple[AlternativeOperator, ...]
    """By alternative, the operator to which the head belongs."""
    shares: tuple[int, ...]
    """By alternative, the number of heads that belong to that operator."""
    owners: tuple[int, ...]
    """By alternative, the number of heads that read parts of the same host tensor."""
    is_further: bool
    """Whether it stands for further heads, without host tensors."""


def heads_of(alternatives: Sequence[ReducedAlternative]) -> tuple[tuple[ReducedAlternative, ...], list[Head]]:
    """Return the alternatives as they are relaxed, and the heads of the relaxed problem.

    Heads with host tensors come first, then further heads if all alternatives have them. If an alternative has only further
    heads, all heads count as one kind, the longest first. An alternative of one operator is divided among all heads.
    """
    if any(each.further and not each.heads for each in alternatives):
        alternatives = [_with_further_as_heads(each) for each in alternatives]
    first, second = max(len(each.heads) for each in alternatives), max(len(each.further) for each in alternatives)
    missing = any(not each.is_one and not each.further for each in alternatives)
    divided = (operator for each in alternatives for operator in (each.further or (each.tail,) * each.is_one))
    if missing or any(operator.shortest <= first + second for operator in divided):  # too short to be divided
        alternatives, second = [replace(each, further=()) for each in alternatives], 0
    heads = []
    for count, further in ((first, False), (second, True)):
        of = [each.further if further else each.heads for each in alternatives]
        belongs = [_assign_heads(each, max(of, key=len)) for each in of]
        for i in range(count):
            places = tuple(
                own[to[i]] if own else each.tail for own, to, each in zip(of, belongs, alternatives, strict=True)
            )
            shares = tuple(to.count(to[i]) if own else first + second for own, to in zip(of, belongs, strict=True))
            owners = tuple(_owners(own, to, i) for own, to in zip(of, belongs, strict=True))
            heads.append(Head(places, shares, owners, further))
    return tuple(alternatives), heads


def needed_by_tail(operators: Sequence[Operator], tail: int) -> list[int]:
    """Return the operators that the tail depends on, directly or not, and the tail as the last one."""
    producer = {name: k for k, operator in enumerate(operators) for name in operator.outputs}
    needed, stack = {tail}, [tail]
    while stack:
        inner = {producer[name] for name in operators[stack.pop()].inputs if name in producer} - needed
        needed |= inner
        stack += inner
    return [*sorted(needed - {tail}), tail]


def _with_further_as_heads(alternative: ReducedAlternative) -> ReducedAlternative:
    heads = alternative.heads
    if alternative.any_form:
        heads = tuple(sorted((*heads, *alternative.further), key=lambda head: -head.shortest))
    return replace(alternative, heads=heads, further=())


def reduce_any_form(operators: Sequence[AlternativeOperator]) -> ReducedAlternative:
    """Reduce an alternative to the third form; ``operators`` are those that the last one depends on, and itself."""
    tail = operators[-1]
    least = max(each.own for each in operators) / SMALL  # operators that only add a bias are no heads
    heads = [each._replace(gives=-1 if each is tail else 0) for each in operators if each.own >= max(least, 0)]
    heads.sort(key=lambda head: (not head.reads, -head.own))
    small = [each for each in operators if each.own < max(least, 0)]
    long = (
        max((each.shortest for each in small), default=0) / SMALL
    )  # operators that only move elements are none either
    further = [each._replace(gives=-1 if each is tail else 0) for each in small if each.shortest >= long]
    further.sort(key=lambda head: -head.shortest)
    in_order = sorted(small, key=lambda each: each.shortest < long)  # a reader that is no head takes precedence
    reads = {name: each.name for each in in_order if each is not tail for name in each.reads}
    return ReducedAlternative(tuple(heads), tail, True, reads, tuple(further))


def read_by_others(alternatives: Sequence[ReducedAlternative]) -> str:
    """Return an activation that, in each alternative, an operator other than heads and tail reads; "" if there is none.

    In an alternative of one operator, that operator may read it.
    """
    if any(not each.any_form and each.heads for each in alternatives):
        return ""
    common = frozenset.intersection(
        *(_reads_of_others(each) if each.any_form else frozenset(each.tail.reads) for each in alternatives)
    )
    return min(common, default="")


def _reads_of_others(alternative: ReducedAlternative) -> frozenset[str]:
    """Return the activations with a reader that is no head; heads have no nanosecond left."""
    heads = {each.name for each in (*alternative.heads, *alternative.further)}
    return frozenset(name for name, reader in alternative.reads.items() if reader not in heads)


def _assign_heads(heads: Sequence[AlternativeOperator], finest: Sequence[AlternativeOperator]) -> list[int]:
    """Return, for each head of the relaxed problem, the position of the head of an alternative to which it belongs.

    The host tensors of each alternative are laid end to end and scaled to the same length. A head belongs to the one in
    whose tensor the middle of its own tensor falls. If one would get none, or if there are no bytes, the heads are divided
    evenly.
    """
    count = len(finest)
    ends = list(accumulate(max(head.own, 0) for head in finest))
    mine = list(accumulate(max(head.own, 0) for head in heads))
    if mine and mine[-1] and ends[-1]:
        twice = [before + end for before, end in pairwise([0, *ends])]
        assigned = [min(bisect_right(mine, at * mine[-1] // (2 * ends[-1])), len(mine) - 1) for at in twice]
        if len(set(assigned)) == len(heads):
            return assigned
    return [i * len(heads) // count for i in range(count)]


def _owners(heads: Sequence[AlternativeOperator], belongs: Sequence[int], i: int) -> int:
    """Return the number of heads of the relaxed problem that read parts of the same host tensor as head ``i``."""
    if not heads:
        return len(belongs)
    return sum(heads[other].own_name == heads[belongs[i]].own_name for other in belongs)
