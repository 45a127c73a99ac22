"""Ways to compute a group as heads and a tail, which `variants` bounds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import numpy.typing as npt

from ...problem import Operator

Array = npt.NDArray[np.int64]

SMALL = 16
"""Operators whose own host tensor is so many times smaller than the largest of a way are no heads of it."""


@dataclass(frozen=True)
class WayOperator:
    """An operator of a way.

    Its name, its times by device, the activations that it reads from outside of the group, its largest host tensor that
    nobody else reads (-1: none), other host tensors that it reads, the largest activation that it gives to the tail
    (-1: none).
    """

    name: str
    normal: Array
    direct: Array
    reads: tuple[str, ...]
    own: int
    shared: frozenset[str]
    gives: int


@dataclass(frozen=True)
class Way:
    """The heads and the tail of a way; of the third form also what others than these read, and which of them."""

    heads: tuple[WayOperator, ...]
    tail: WayOperator
    any_form: bool = False
    reads: Mapping[str, str] = field(default_factory=dict)

    @property
    def tail_is_head(self) -> bool:
        """Whether the tail is one of the heads."""
        return self.any_form and any(head.gives < 0 for head in self.heads)


def up_to(operators: Sequence[Operator], tail: int) -> list[int]:
    """The operators that the tail needs, directly or not, and the tail as the last one."""
    made = {name: k for k, operator in enumerate(operators) for name in operator.outputs}
    found, stack = {tail}, [tail]
    while stack:
        inner = {made[name] for name in operators[stack.pop()].inputs if name in made} - found
        found |= inner
        stack += inner
    return [*sorted(found - {tail}), tail]


def of_any_form(operators: Sequence[WayOperator]) -> Way:
    """A way of the third form, of the operators that the last one needs, and that."""
    tail = operators[-1]
    least = max(each.own for each in operators) / SMALL  # without what only adds a bias, ways have as many heads
    heads = [replace(each, gives=-1 if each is tail else 0) for each in operators if each.own >= max(least, 0)]
    heads.sort(key=lambda head: (not head.reads, -head.own))
    others = {name: each.name for each in operators[:-1] if each.own < max(least, 0) for name in each.reads}
    return Way(tuple(heads), tail, True, others)


def read_by_others(ways: Sequence[Way]) -> str:
    """An activation that an operator other than heads and tail, or the only one, reads in each way; "" where none is."""
    if any(not way.any_form and way.heads for way in ways):
        return ""
    common = frozenset.intersection(
        *(frozenset(way.reads) if way.any_form else frozenset(way.tail.reads) for way in ways)
    )
    return min(common, default="")


def share_of(way: Way, i: int, count: int) -> int:
    """How many of ``count`` heads belong to the operator of a way to which head ``i`` belongs."""
    heads = len(way.heads)
    if not heads:
        return count
    return sum(j * heads // count == i * heads // count for j in range(count))
