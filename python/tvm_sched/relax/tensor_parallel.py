"""Regions of ``main`` that can be computed in parts without a meeting in between: tensor parallelism.

Shoeybi et al., *Megatron-LM: Training multi-billion parameter language models using model parallelism* (2019): of two
products that follow each other the first is cut by columns and the second by rows, so that each part of the first makes
what the same part of the second reads; attention is cut by heads. Here no operators are known by name: what is cut is what
`slicing` proves.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import tvm
from tvm import relax

from .fused_functions import Core
from .main_calls import MainCalls
from .slicing import Slice, slice_result, slice_sum


@dataclass(frozen=True)
class Member:
    """A call of a region other than the last.

    Attributes
    ----------
    variable : relax.Var
    kernel : tvm.ir.GlobalVar
    cut : Slice
    arguments : tuple of relax.Expr
    type : relax.TensorType
        Of a part of its result.
    """

    variable: relax.Var
    kernel: tvm.ir.GlobalVar
    cut: Slice
    arguments: tuple[relax.Expr, ...]
    type: relax.TensorType


@dataclass
class Region:
    """Calls that can be computed in parts, of whose last one the parts are terms of a sum.

    Attributes
    ----------
    variables : tuple of relax.Var
        Of its calls in the order of ``main``.
    core : Core
        Of the last call.
    roots : dict of int to Slice
        By number of parts, how the heavy kernel of the last call is cut.
    members : dict of int to tuple of Member
        The other calls.
    """

    variables: tuple[relax.Var, ...]
    core: Core
    roots: dict[int, Slice] = field(default_factory=dict)
    members: dict[int, tuple[Member, ...]] = field(default_factory=dict)

    @property
    def counts(self) -> tuple[int, ...]:
        """Numbers of parts."""
        return tuple(self.roots)

    @property
    def inside(self) -> tuple[relax.Var, ...]:
        """The calls but for the last, whose results nothing else reads."""
        return self.variables[:-1]


def find_regions(
    mod: tvm.IRModule, roots: Mapping[relax.Var, Core], counts: Sequence[int], is_weights: Callable[[Any], bool]
) -> dict[relax.Var, Region]:
    """The regions that end with some heavy calls, by the variable of the last call; no two have a call in common.

    A region grows from its last call backwards: a call joins it where all that reads its result is in the region and reads
    the same part of it, and where it computes that part of weights and of parts of what it reads. With more parts it must
    be the same calls. A region without another heavy call is none: to cut its input would take more copies than columns do.

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
    found: dict[relax.Var, Region] = {}
    taken: set[relax.Var] = set()
    for variable in reversed(list(roots)):
        if variable in taken:
            continue
        region = search.region(variable, roots[variable], counts, taken)
        if region is not None:
            found[variable] = region
            taken.update(region.variables)
    return found


class _Search:
    def __init__(self, mod: tvm.IRModule, is_weights: Callable[[Any], bool]) -> None:
        self.mod, self.is_weights = mod, is_weights
        self.calls = MainCalls(mod)
        self._slices: dict[Any, Slice | None] = {}

    def region(self, variable: relax.Var, core: Core, counts: Sequence[int], taken: set[relax.Var]) -> Region | None:
        """The region that ends with a call; None where there is none."""
        found: Region | None = None
        for count in counts:
            root = self._slice((core.kernel, None, count), partial(slice_sum, self.mod[core.kernel], count))
            if root is None or not self._can_be_cut(core.operands, root):
                continue
            members = self._members(variable, core, root, count, taken)
            if not any(self.calls.is_heavy(member.variable) for member in members):
                continue
            variables = (*(member.variable for member in members), variable)
            if found is None:
                found = Region(variables, core)
            if variables == found.variables:
                found.roots[count], found.members[count] = root, members
        return found

    def _members(
        self, last: relax.Var, core: Core, root: Slice, count: int, taken: set[relax.Var]
    ) -> tuple[Member, ...]:
        """The other calls of a region, in the order of ``main``."""
        needed: dict[Any, set[int | None]] = {}
        _note(needed, core.operands, root.axes)
        call = self.calls.bindings[self.calls.place[last]].value
        if core.epilogue:  # what was fused to the heavy kernel reads whole tensors, also one of which that reads a part
            given = dict(zip(self.mod[call.op].params, call.args, strict=True))
            for binding in core.epilogue:
                _note(needed, [given.get(used) for used in relax.analysis.free_vars(binding.value)])
        outside = (v for v in relax.analysis.free_vars(call) if not any(v.same_as(each) for each in core.operands))
        _note(needed, list(outside))
        inside, members = {last}, list[Member]()
        for place in reversed(range(self.calls.place[last])):
            variable = self.calls.variables[place]
            axes = needed.get(variable, {None})
            if None in axes or len(axes) > 1 or variable in taken or not self.calls.users[variable] <= inside:
                continue
            (axis,) = axes
            assert axis is not None
            member = self._member(self.calls.bindings[place], axis, count)
            if member is not None:
                inside.add(variable)
                members.append(member)
                _note(needed, member.arguments, member.cut.axes)
        return tuple(reversed(members))

    def _member(self, binding: relax.VarBinding, axis: int, count: int) -> Member | None:
        """A call, cut along an axis of its result; None where it cannot be."""
        called = self.calls.called(binding)
        if called is None:
            return None
        variable, arguments, kernel = called
        cut = self._slice((variable, axis, count), lambda: slice_result(kernel, axis, count))
        if cut is None or not self._can_be_cut(arguments, cut):
            return None
        shape = [int(extent) for extent in binding.var.ty.shape.values]
        shape[axis] //= count
        return Member(binding.var, variable, cut, arguments, relax.TensorType(shape, str(binding.var.ty.dtype.dtype)))

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


def _note(needed: dict[Any, set[int | None]], arguments: Sequence[Any], axes: Sequence[int | None] = ()) -> None:
    """Note which parts of what calls make are needed; without axes, all of each."""
    for argument, axis in zip(arguments, axes or (None,) * len(arguments), strict=True):
        if isinstance(argument, relax.Var):
            needed.setdefault(argument, set()).add(axis)
