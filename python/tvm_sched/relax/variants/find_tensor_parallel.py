"""Find regions of ``main`` that can be computed in independent parts: tensor parallelism.

Shoeybi et al., *Megatron-LM: Training multi-billion parameter language models using model parallelism* (2019) cut the first
of two successive products by columns and the second by rows, so that each part of the second reads the result of the same
part of the first. They cut attention by heads. Here no operator is known by name: `kernel_slicing` proves what can be cut.
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
from .kernel_parts import Interval
from .kernel_slicing import Slice, slice_result, slice_sum, terms_of
from .main_calls import Division, MainCalls
from .read_fused_functions import Core

MOST_UNITS = 64
"""Largest number of equal units of a region that has no equal parts; each part then gets several units."""

UNEVEN = 1.3
"""Largest allowed size of a part, as a multiple of an equal share."""


@dataclass(frozen=True)
class Member:
    """A call of a region, or one share of a call's result that a split takes."""

    variable: relax.Var
    kernel: tvm.ir.GlobalVar
    cut: Slice
    arguments: tuple[relax.Expr, ...]
    type: relax.TensorType  # of the result
    axis: int | None  # of the cut through the result; None: parts are terms of its sum
    units: int  # into which its inputs are cut
    first: int = 0  # unit at which its result begins

    def intervals_of(self, part: range) -> list[Interval | None]:
        """Return the interval of each argument that a range of the region's units reads; None: all of it."""
        intervals: list[Interval | None] = []
        for argument, axis in zip(self.arguments, self.cut.axes, strict=True):
            unit = 0 if axis is None else int(argument.ty.shape.values[axis]) // self.units
            begin, end = (self.first + part.start) * unit, (self.first + part.stop) * unit
            intervals.append(None if axis is None else Interval(axis, begin, end))
        return intervals

    def part_type(self, part: range, units: int) -> relax.TensorType:
        """Return the type of the result of a range of the region's units."""
        shape = list(known_shape(self.type))
        if self.axis is not None:
            shape[self.axis] = shape[self.axis] // units * len(part)
        return relax.TensorType(shape, dtype_of(self.type))


@dataclass(frozen=True)
class Cutting:
    """The parts of a region."""

    parts: tuple[range, ...]  # the units of each part
    units: int
    members: tuple[Member, ...]  # in the order of ``main``; the last call's heavy kernel at the end


@dataclass
class TensorParallelRegion:
    """Calls that can be computed in parts; the parts of the last call are terms of a sum."""

    variables: tuple[relax.Var, ...]  # of the calls, in the order of ``main``
    core: Core  # of the last call
    cuttings: dict[int, Cutting] = field(default_factory=dict)  # by number of parts

    @property
    def counts(self) -> tuple[int, ...]:
        """Numbers of parts."""
        return tuple(self.cuttings)

    @property
    def inside(self) -> tuple[relax.Var, ...]:
        """The calls before the last one; only the region reads their results."""
        return self.variables[:-1]


def find_regions(
    mod: tvm.IRModule, roots: Mapping[relax.Var, Core], counts: Sequence[int], is_weights: Callable[[Any], bool]
) -> dict[relax.Var, TensorParallelRegion]:
    """Find the regions that end with the heavy calls ``roots``; return them by the variable of the last call.

    No two regions have a call in common. A region grows backwards from its last call. A call joins if all readers of its
    result are in the region and read the same part, and if it computes that part from parts of weights and of its inputs.
    If a split divides a result among these calls (one product for queries, keys and values), each call gets its part of
    each share. All numbers of parts must give the same calls. A region needs a second heavy call: cutting only its input
    takes more copies than pieces by columns.

    Parameters
    ----------
    mod : tvm.IRModule
        As ``FuseOps`` leaves it.
    roots : mapping of relax.Var to Core
        The last calls, which have weights.
    counts : sequence of int
        Numbers of parts.
    is_weights : callable
        Whether an operand can be cut in advance.
    """
    search = _Search(mod, is_weights)
    regions: dict[relax.Var, TensorParallelRegion] = {}
    claimed: set[relax.Var] = set()
    for variable in reversed(list(roots)):
        if variable in claimed:
            continue
        region = search.region(variable, roots[variable], counts, claimed)
        if region is not None:
            regions[variable] = region
            claimed.update(region.variables)
    return regions


class _Search:
    def __init__(self, mod: tvm.IRModule, is_weights: Callable[[Any], bool]) -> None:
        self.mod, self.is_weights = mod, is_weights
        self.calls = MainCalls(mod)
        self._slices: dict[Any, Slice | None] = {}
        self._terms: dict[Any, list[int]] = {}

    def region(
        self, variable: relax.Var, core: Core, counts: Sequence[int], claimed: set[relax.Var]
    ) -> TensorParallelRegion | None:
        """Return the region that ends with a call, or None."""
        region: TensorParallelRegion | None = None
        for count in counts:
            for units in self._units(core, count):
                growth = self._grow(variable, core, units, claimed)
                if growth is None or not any(map(self.calls.is_heavy, growth.inside - {variable})):
                    continue
                variables = tuple(sorted(growth.inside, key=self.calls.place.__getitem__))
                region = region or TensorParallelRegion(variables, core)
                if variables == region.variables:
                    parts = (range(k * units // count, (k + 1) * units // count) for k in range(count))
                    region.cuttings[count] = Cutting(tuple(parts), units, tuple(reversed(growth.members)))
                    break
        return region

    def _units(self, core: Core, count: int) -> Iterator[int]:
        """Yield numbers of units to try: first one for each part, then larger numbers that allow parts of similar size."""
        yield count
        if core.kernel not in self._terms:
            self._terms[core.kernel] = terms_of(self.mod[core.kernel])
        for units in range(MOST_UNITS, count, -1):
            even = -(-units // count) * count <= UNEVEN * units
            if even and any(terms % units == 0 for terms in self._terms[core.kernel]):
                yield units

    def _grow(self, last: relax.Var, core: Core, units: int, claimed: set[relax.Var]) -> _Growth | None:
        """Grow a region backwards from its last call; return None if that call cannot be cut."""
        root = self._slice((core.kernel, None, units), partial(slice_sum, self.mod[core.kernel], units))
        if root is None or not self._can_be_cut(core.operands, root):
            return None
        growth = _Growth(self.calls.place, {last})
        growth.join([], Member(core.joint, core.kernel, root, core.operands, core.joint.ty, None, units))
        call = self.calls.bindings[self.calls.place[last]].value
        if core.epilogue:  # it reads whole tensors, even those of which the heavy kernel reads a part
            arguments = dict(zip(self.mod[call.op].params, call.args, strict=True))
            for binding in core.epilogue:
                growth.need([arguments.get(used) for used in relax.analysis.free_vars(binding.value)])
        growth.need([v for v in relax.analysis.free_vars(call) if not any(v.same_as(each) for each in core.operands)])
        while growth.ahead:
            variable = self.calls.variables[-heapq.heappop(growth.ahead)]
            if variable in claimed:
                continue
            value, division = self.calls.bindings[self.calls.place[variable]].value, self.calls.division(variable)
            if isinstance(value, relax.TupleGetItem):
                growth.need([value.tuple_value])
            elif division is not None:
                self._join_division(growth, variable, division, units, claimed)
            elif (axis := growth.axis(variable)) is not None and self.calls.users[variable] <= growth.inside:
                member = self._member(variable, variable, axis, units)
                if member is not None:
                    growth.join([variable], member)
        return growth

    def _join_division(
        self, growth: _Growth, call: relax.Var, division: Division, units: int, claimed: set[relax.Var]
    ) -> None:
        """Add a split, and the call whose result it divides, if the region reads the same part of each share."""
        whole, shares = division.operand, division.shares
        if whole not in self.calls.place or whole in claimed or self.calls.users[whole] != {call}:
            return
        if any(growth.axis(s) != division.axis or not self.calls.users[s] <= growth.inside for s in shares.values()):
            return
        members = [self._member(share, whole, division.axis, units, k, division.parts) for k, share in shares.items()]
        if all(members):
            growth.join([whole, call, *shares.values()], *(member for member in reversed(members) if member))

    def _member(
        self, variable: relax.Var, result: relax.Var, axis: int, units: int, share: int = 0, shares: int = 1
    ) -> Member | None:
        """Cut a call's result, or one of its equal shares, along an axis; return None if that is impossible."""
        called = self.calls.called(self.calls.bindings[self.calls.place[result]])
        if called is None:
            return None
        name, arguments, kernel = called
        whole = units * shares
        cut = self._slice((name, axis, whole), lambda: slice_result(kernel, axis, whole))
        if cut is None or not self._can_be_cut(arguments, cut):
            return None
        return Member(variable, name, cut, arguments, variable.ty, axis, whole, share * units)

    def _can_be_cut(self, arguments: Sequence[Any], cut: Slice) -> bool:
        """Whether all operands that are cut are weights or results of calls."""
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
    """A region under construction."""

    place: Mapping[Any, int]  # position in ``main`` of each call's result
    inside: set[relax.Var]
    members: list[Member] = field(default_factory=list)  # the last call's first
    ahead: list[int] = field(default_factory=list)  # heap: negative positions of the tensors to visit
    _needed: dict[Any, set[int | None]] = field(default_factory=dict)

    def join(self, variables: Sequence[relax.Var], *members: Member) -> None:
        """Add calls to the region."""
        self.inside.update(variables)
        for member in members:
            self.members.append(member)
            self.need(member.arguments, member.cut.axes)

    def need(self, arguments: Sequence[Any], axes: Sequence[int | None] = ()) -> None:
        """Record the axes along which parts of results are needed; without axes, all of each is needed."""
        for argument, axis in zip(arguments, axes or (None,) * len(arguments), strict=True):
            if not isinstance(argument, relax.Var):
                continue
            if argument not in self._needed and argument in self.place:
                heapq.heappush(self.ahead, -self.place[argument])
            self._needed.setdefault(argument, set()).add(axis)

    def axis(self, variable: relax.Var) -> int | None:
        """Return the axis along which the region reads parts of a variable; None if it reads all, or along several axes."""
        axes = self._needed.get(variable, {None})
        return next(iter(axes)) if len(axes) == 1 else None
