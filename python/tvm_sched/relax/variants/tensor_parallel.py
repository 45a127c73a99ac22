"""Find regions of ``main`` that can be computed in independent parts: tensor parallelism.

Shoeybi et al., *Megatron-LM: Training multi-billion parameter language models using model parallelism* (2019): of two
products that follow each other the first is cut by columns and the second by rows, so that each part of the first makes
what the same part of the second reads; attention is cut by heads. Here no operators are known by name: what is cut is what
`slicing` proves.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import tvm
from tvm import relax

from ..ir.tensor_types import dtype_of, known_shape
from .fused_functions import Core
from .kernel_parts import Interval
from .kernel_slicing import Slice, slice_result, slice_sum, terms_of
from .main_calls import Division, MainCalls

MOST_UNITS = 64
"""Most equal units into which a region is cut that has no equal parts; each part gets about as many of them."""

UNEVEN = 1.3
"""How many times its equal share the largest part has at most."""


@dataclass(frozen=True)
class Member:
    """A call of a region other than the last, or what a split takes of a call's result.

    Attributes
    ----------
    variable : relax.Var
    kernel : tvm.ir.GlobalVar
    cut : Slice
    arguments : tuple of relax.Expr
    type : relax.TensorType
        Of its result.
    axis : int or None
        Along which its result is cut; None: parts are terms of it.
    units : int
        Into how many units what it reads is cut.
    first : int
        The unit of these with which its result begins.
    """

    variable: relax.Var
    kernel: tvm.ir.GlobalVar
    cut: Slice
    arguments: tuple[relax.Expr, ...]
    type: relax.TensorType
    axis: int | None
    units: int
    first: int = 0

    def intervals_of(self, part: range) -> list[Interval | None]:
        """The interval of each argument that some units of the region read; None: all of it."""
        begin, end = self.first + part.start, self.first + part.stop
        pairs = zip(self.arguments, self.cut.axes, strict=True)
        return [None if axis is None else self._interval(each, axis, begin, end) for each, axis in pairs]

    def _interval(self, argument: Any, axis: int, begin: int, end: int) -> Interval:
        unit = int(argument.ty.shape.values[axis]) // self.units
        return Interval(axis, begin * unit, end * unit)

    def part_type(self, part: range, units: int) -> relax.TensorType:
        """The type of what some of the region's units make."""
        shape = list(known_shape(self.type))
        if self.axis is not None:
            shape[self.axis] = shape[self.axis] // units * len(part)
        return relax.TensorType(shape, dtype_of(self.type))


@dataclass(frozen=True)
class Cutting:
    """How a region is cut into a number of parts.

    Attributes
    ----------
    parts : tuple of range
        The units of each part; equal where that is possible.
    units : int
    members : tuple of Member
        In the order of ``main``, the last call's heavy kernel at the end.
    """

    parts: tuple[range, ...]
    units: int
    members: tuple[Member, ...]


@dataclass
class Region:
    """Calls that can be computed in parts, of whose last one the parts are terms of a sum.

    Attributes
    ----------
    variables : tuple of relax.Var
        Of its calls in the order of ``main``.
    core : Core
        Of the last call.
    cuttings : dict of int to Cutting
        By number of parts.
    """

    variables: tuple[relax.Var, ...]
    core: Core
    cuttings: dict[int, Cutting] = field(default_factory=dict)

    @property
    def counts(self) -> tuple[int, ...]:
        """Numbers of parts."""
        return tuple(self.cuttings)

    @property
    def inside(self) -> tuple[relax.Var, ...]:
        """The calls but for the last, whose results nothing else reads."""
        return self.variables[:-1]


def find_regions(
    mod: tvm.IRModule, roots: Mapping[relax.Var, Core], counts: Sequence[int], is_weights: Callable[[Any], bool]
) -> dict[relax.Var, Region]:
    """The regions that end with some heavy calls, by the variable of the last call; no two have a call in common.

    A region grows from its last call backwards: a call joins it where all that reads its result is in the region and reads
    the same part of it, and where it computes that part of weights and of parts of what it reads. Where a split divides a
    result among such calls, as that of one product for queries, keys and values, each gets its part of each share. With
    more parts it must be the same calls. A region without another heavy call is none: to cut its input would take more
    copies than columns do.

    Parameters
    ----------
    mod : tvm.IRModule
        As ``FuseOps`` leaves it.
    roots : mapping of relax.Var to Core
        Calls with weights.
    counts : sequence of int
        Numbers of parts.
    is_weights : callable
        Whether parts of an operand can be made.
    """
    search = _Search(mod, is_weights)
    regions: dict[relax.Var, Region] = {}
    taken: set[relax.Var] = set()
    for variable in reversed(list(roots)):
        if variable in taken:
            continue
        region = search.region(variable, roots[variable], counts, taken)
        if region is not None:
            regions[variable] = region
            taken.update(region.variables)
    return regions


class _Search:
    def __init__(self, mod: tvm.IRModule, is_weights: Callable[[Any], bool]) -> None:
        self.mod, self.is_weights = mod, is_weights
        self.calls = MainCalls(mod)
        self._slices: dict[Any, Slice | None] = {}
        self._terms: dict[Any, list[int]] = {}

    def region(self, variable: relax.Var, core: Core, counts: Sequence[int], taken: set[relax.Var]) -> Region | None:
        """The region that ends with a call; None where there is none."""
        region: Region | None = None
        for count in counts:
            for units in self._units(core, count):
                growth = self._grown(variable, core, units, taken)
                if growth is None or not any(map(self.calls.is_heavy, growth.inside - {variable})):
                    continue
                variables = tuple(sorted(growth.inside, key=self.calls.place.__getitem__))
                region = region or Region(variables, core)
                if variables == region.variables:
                    parts = (range(k * units // count, (k + 1) * units // count) for k in range(count))
                    region.cuttings[count] = Cutting(tuple(parts), units, tuple(reversed(growth.members)))
                    break
        return region

    def _units(self, core: Core, count: int) -> Iterator[int]:
        """Numbers of units to try for so many parts: one for each part, else more, of which each part gets about as many."""
        yield count
        if core.kernel not in self._terms:
            self._terms[core.kernel] = terms_of(self.mod[core.kernel])
        for units in range(MOST_UNITS, count, -1):
            even = -(-units // count) * count <= UNEVEN * units
            if even and any(terms % units == 0 for terms in self._terms[core.kernel]):
                yield units

    def _grown(self, last: relax.Var, core: Core, units: int, taken: set[relax.Var]) -> _Growth | None:
        """A region from its last call backwards; None where that cannot be cut."""
        root = self._slice((core.kernel, None, units), partial(slice_sum, self.mod[core.kernel], units))
        if root is None or not self._can_be_cut(core.operands, root):
            return None
        growth = _Growth(self.calls.place, {last})
        growth.join([], Member(core.joint, core.kernel, root, core.operands, core.joint.ty, None, units))
        call = self.calls.bindings[self.calls.place[last]].value
        if core.epilogue:  # what was fused to the heavy kernel reads whole tensors, also one of which that reads a part
            given = dict(zip(self.mod[call.op].params, call.args, strict=True))
            for binding in core.epilogue:
                growth.need([given.get(used) for used in relax.analysis.free_vars(binding.value)])
        growth.need([v for v in relax.analysis.free_vars(call) if not any(v.same_as(each) for each in core.operands)])
        while growth.ahead:
            variable = self.calls.variables[-heapq.heappop(growth.ahead)]
            if variable in taken:
                continue
            value, division = self.calls.bindings[self.calls.place[variable]].value, self.calls.division(variable)
            if isinstance(value, relax.TupleGetItem):
                growth.need([value.tuple_value])
            elif division is not None:
                self._join_division(growth, variable, division, units, taken)
            elif (axis := growth.axis(variable)) is not None and self.calls.users[variable] <= growth.inside:
                member = self._member(variable, variable, axis, units)
                if member is not None:
                    growth.join([variable], member)
        return growth

    def _join_division(
        self, growth: _Growth, call: relax.Var, division: Division, units: int, taken: set[relax.Var]
    ) -> None:
        """Let a split and the call whose result it divides join a region that reads the same part of each share."""
        whole, shares = division.operand, division.shares
        if whole not in self.calls.place or whole in taken or self.calls.users[whole] != {call}:
            return
        if any(growth.axis(s) != division.axis or not self.calls.users[s] <= growth.inside for s in shares.values()):
            return
        members = [self._member(share, whole, division.axis, units, k, division.parts) for k, share in shares.items()]
        if all(members):
            growth.join([whole, call, *shares.values()], *(member for member in reversed(members) if member))

    def _member(
        self, variable: relax.Var, made: relax.Var, axis: int, units: int, share: int = 0, shares: int = 1
    ) -> Member | None:
        """What a call makes, or one of equal shares of that, cut along an axis; None where it cannot be."""
        called = self.calls.called(self.calls.bindings[self.calls.place[made]])
        if called is None:
            return None
        name, arguments, kernel = called
        whole = units * shares
        cut = self._slice((name, axis, whole), lambda: slice_result(kernel, axis, whole))
        if cut is None or not self._can_be_cut(arguments, cut):
            return None
        return Member(variable, name, cut, arguments, variable.ty, axis, whole, share * units)

    def _can_be_cut(self, arguments: Sequence[Any], cut: Slice) -> bool:
        """Whether there are parts of all operands that are cut: of weights, and of what calls make."""
        if len(arguments) != len(cut.axes):
            return False
        return all(
            axis is None or self.is_weights(argument) or argument in self.calls.place
            for argument, axis in zip(arguments, cut.axes, strict=True)
        )

    def _slice(self, key: Any, make: Callable[[], Slice | None]) -> Slice | None:
        if key not in self._slices:
            self._slices[key] = make()
        return self._slices[key]


@dataclass
class _Growth:
    """A region under construction.

    Attributes
    ----------
    place : dict of relax.Var to int
        Of what calls in ``main`` make.
    inside : set of relax.Var
    members : list of Member
        The last call's first.
    ahead : list of int
        A heap of the negative places of what the region reads and has not been looked at.
    """

    place: Mapping[Any, int]
    inside: set[relax.Var]
    members: list[Member] = field(default_factory=list)
    ahead: list[int] = field(default_factory=list)
    _needed: dict[Any, set[int | None]] = field(default_factory=dict)

    def join(self, variables: Sequence[relax.Var], *members: Member) -> None:
        """Let calls join the region."""
        self.inside.update(variables)
        for member in members:
            self.members.append(member)
            self.need(member.arguments, member.cut.axes)

    def need(self, arguments: Sequence[Any], axes: Sequence[int | None] = ()) -> None:
        """Note which parts of what calls make are needed; without axes, all of each."""
        for argument, axis in zip(arguments, axes or (None,) * len(arguments), strict=True):
            if not isinstance(argument, relax.Var):
                continue
            if argument not in self._needed and argument in self.place:
                heapq.heappush(self.ahead, -self.place[argument])
            self._needed.setdefault(argument, set()).add(axis)

    def axis(self, variable: relax.Var) -> int | None:
        """The axis along which the region reads parts of a variable; None where it needs all of it, or different ones."""
        axes = self._needed.get(variable, {None})
        return next(iter(axes)) if len(axes) == 1 else None
