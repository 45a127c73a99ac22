"""Cut a kernel into parts: along an axis of its result, or of the sum that it computes.

A kernel is cut where it can be proved that each of ``count`` equal parts is the same computation, of parts of some
arguments and of all of others. So one kernel does for all parts, and it is TVM's own with shorter loops. Several
parts that follow each other are computed by one kernel, too: what each of them reads lies directly behind what the part
before it reads.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from operator import methodcaller
from typing import Any

import tvm
from tvm import tirx
from tvm.sym import Analyzer

from ..ir.statements import map_expression
from .kernel_parts import (
    Blocks,
    Interval,
    Values,
    is_plain,
    loads,
    loads_of,
    plain_blocks,
    shrunk,
    uses,
    uses_outside_of_loads,
    written_along,
)

_REDUCTION = tirx.IterVar.CommReduce


@dataclass(frozen=True)
class Slice:
    """A part of a kernel's work.

    Attributes
    ----------
    of : callable
        The kernel that computes a number of parts that follow each other.
    axes : tuple of int or None
        Of each input the axis along which a part needs its part only, the ``k``-th of ``count`` equal ones; None where it
        needs all of it.
    """

    of: Callable[[int], tirx.PrimFunc]
    axes: tuple[int | None, ...]

    @property
    def kernel(self) -> tirx.PrimFunc:
        """What each part is computed by."""
        return self.of(1)


def slice_result(function: tirx.PrimFunc, axis: int, count: int) -> Slice | None:
    """A kernel of a ``count``-th of the result along an axis; None where that cannot be proved to be a part.

    Parameters
    ----------
    function : tvm.tirx.PrimFunc
        With blocks, as TVM makes it of operators, fused or alone; its last argument is its result.
    axis, count : int
    """
    return _attempt(function, count, methodcaller("result", axis))


def slice_sum(function: tirx.PrimFunc, count: int) -> Slice | None:
    """A kernel of a ``count``-th of the terms of the sum that a kernel computes; None where it computes no such sum.

    The parts' results have the shape of the kernel's; their sum is its result, but for the order of additions.
    """
    attempts = (_attempt(function, count, methodcaller("terms", v.var)) for v in _summed(function))
    return next((each for each in attempts if each is not None), None)


def terms_of(function: tirx.PrimFunc) -> list[int]:
    """Extents of the variables over which a kernel's result is summed."""
    return [int(variable.dom.extent) for variable in _summed(function)]


def _summed(function: tirx.PrimFunc) -> list[Any]:
    blocks = plain_blocks(function)
    last = blocks.writer.get(function.params[-1]) if blocks else None
    return [v for v in last.block.iter_vars if v.iter_type == _REDUCTION] if last else []


def share_axis(function: tirx.PrimFunc) -> int | None:
    """The axis along which a kernel divides its input among its results in equal shares, in order; None: it does not."""
    whole, *shares = function.params
    shape = [int(extent) for extent in whole.shape]
    sizes = [[int(extent) for extent in share.shape] for share in shares]
    if (
        len(shares) < 2
        or any(size != sizes[0] for size in sizes)
        or len(shape) != len(sizes[0])
        or not is_plain(function)
    ):
        return None
    axes = [k for k, (size, share) in enumerate(zip(shape, sizes[0], strict=True)) if size != share]
    if len(axes) != 1 or shape[axes[0]] != len(shares) * sizes[0][axes[0]]:
        return None
    writer = Blocks(function).writer
    taken = all(_takes(writer.get(share), whole, axes[0], k * sizes[0][axes[0]]) for k, share in enumerate(shares))
    return axes[0] if taken else None


def _takes(realize: Any, whole: Any, axis: int, begin: int) -> bool:
    """Whether a block writes what stands in another tensor, from ``begin`` on along an axis."""
    if realize is None or realize.block.init is not None:
        return False
    store = realize.block.body
    load, variables = store.value, [v.var for v in realize.block.iter_vars]
    if (
        not isinstance(load, tvm.ir.TensorLoad)
        or not load.source.same_as(whole)
        or len(store.indices) != len(variables)
    ):
        return False
    analyzer = Analyzer()
    rows = zip(store.indices, load.indices, variables, strict=True)
    return all(
        written.same_as(variable)
        and analyzer.can_prove_equal(read - written, tirx.IntImm(str(variable.ty.dtype), begin * (k == axis)))
        for k, (written, read, variable) in enumerate(rows)
    )


class _Refused(Exception):
    """The parts are not proved to be the same computation."""


def _attempt(function: tirx.PrimFunc, count: int, begin: Callable[[_Cut], None]) -> Slice | None:
    if not is_plain(function):
        return None
    try:
        cut = _Cut(function, count)
        begin(cut)
        return cut.finish()
    except _Refused:
        return None


class _Cut:
    """Goes from the result back to what has to be cut for it."""

    def __init__(self, function: tirx.PrimFunc, count: int) -> None:
        self.function, self.count = function, count
        self.blocks = Blocks(function)
        self.axes: dict[Any, int | None] = {}  # of tensors that are read or written: the axis, or None for all of it
        self.variables: dict[Any, Any] = {}  # of blocks that do a part: the variable with fewer values

    def result(self, axis: int) -> None:
        """Cut the result."""
        self._need(self.function.params[-1], axis)

    def terms(self, variable: Any) -> None:
        """Cut the sum over a variable of the block that writes the result."""
        result = self.function.params[-1]
        realize = self.blocks.writer[result]
        block, store = realize.block, realize.block.body
        mine = [e for e in loads(store.value) if e.source.same_as(result)]
        adds = (
            isinstance(store.value, tirx.Add)
            and len(mine) == 1
            and any(side.same_as(mine[0]) for side in (store.value.a, store.value.b))
        )
        zero = block.init is not None and isinstance(block.init.value, tirx.FloatImm) and block.init.value.value == 0
        if not adds or not zero or any(uses(index, variable) for index in store.indices):
            raise _Refused
        self.axes[result] = None
        self._cut_block(realize, variable)

    def finish(self) -> Slice:
        """The parts, and what they need."""
        for realize in self.blocks.all:
            if realize not in self.variables:
                for load in loads_of(realize.block):
                    self._need(load.source, None)
        return Slice(self._kernel, tuple(self.axes.get(p) for p in self.function.params[:-1]))

    def _kernel(self, width: int) -> tirx.PrimFunc:
        """The kernel of this number of successive parts."""
        variables = {r: Values(v, 0, _extent(r.block, v) // self.count * width) for r, v in self.variables.items()}
        sizes = {t: int(t.shape[a]) // self.count * width for t, a in self.axes.items() if a is not None}
        tensors = {t: Interval(a, 0, sizes[t]) for t, a in self.axes.items() if a is not None}
        return shrunk(self.function, self.blocks, variables, tensors)

    def _need(self, tensor: Any, axis: int | None) -> None:
        """A part of a tensor is needed, or all of it, and nothing else was needed before."""
        if tensor in self.axes:
            if self.axes[tensor] != axis:
                raise _Refused
            return
        self.axes[tensor] = axis
        if axis is None:
            return
        if int(tensor.shape[axis]) % self.count:
            raise _Refused
        realize = self.blocks.writer.get(tensor)
        if realize is None:
            if tensor.same_as(self.function.params[-1]):
                raise _Refused
            return
        variable = written_along(realize, axis)
        if variable is None:
            raise _Refused
        self._cut_block(realize, variable)

    def _cut_block(self, realize: Any, variable: Any) -> None:
        """Let a block do a part of a variable's values."""
        if realize in self.variables or _extent(realize.block, variable) % self.count:
            raise _Refused
        self.variables[realize] = variable
        stores = [realize.block.body, *([realize.block.init] if realize.block.init is not None else [])]
        if any(uses_outside_of_loads(store.value, variable) for store in stores):
            raise _Refused
        for load in loads_of(realize.block):
            if not load.source.same_as(realize.block.body.buffer):
                self._need(load.source, self._axis_of(realize.block, variable, load))

    def _axis_of(self, block: Any, variable: Any, load: Any) -> int | None:
        """The axis along which what is read shifts with the part, as the parts of the tensor do; None where it does not."""
        shifted: int | None = None
        for axis, (index, size) in enumerate(zip(load.indices, load.source.shape, strict=True)):
            if not uses(index, variable) or self._shifts(block, variable, index, 0, None):
                continue
            part = int(size) // self.count
            if shifted is not None or int(size) % self.count or not self._shifts(block, variable, index, part, part):
                raise _Refused
            shifted = axis
        return shifted

    def _shifts(self, block: Any, variable: Any, index: Any, by: int, below: int | None) -> bool:
        """Whether an index in part ``k`` is that in the first part and ``by * k``, and that one ``below`` a number."""
        if any(True for _ in loads(index)):
            raise _Refused
        analyzer, kind = Analyzer(), str(variable.ty.dtype)
        width = _extent(block, variable) // self.count
        for each in block.iter_vars:
            extent = width if each.var.same_as(variable) else each.dom.extent
            analyzer.bind(each.var, tvm.ir.Range.from_min_extent(tirx.IntImm(kind, 0), tirx.IntImm(kind, int(extent))))
        part = tirx.Var("part", kind)
        analyzer.bind(part, tvm.ir.Range.from_min_extent(tirx.IntImm(kind, 0), tirx.IntImm(kind, self.count)))
        there = _with(index, variable, variable + part * tirx.IntImm(kind, width))
        if not analyzer.can_prove_equal(there, index + part * tirx.IntImm(kind, by)):
            return False
        if below is None:
            return True
        bound = analyzer.const_int_bound(analyzer.simplify(index))
        return bound.min_value >= 0 and bound.max_value < below


def _with(expr: Any, variable: Any, value: Any) -> Any:
    """An expression with another in place of a variable."""

    def visit(part: Any) -> Any:
        return value if part.same_as(variable) else map_expression(part, visit)

    return visit(expr)


def _extent(block: Any, variable: Any) -> int:
    return next(int(v.dom.extent) for v in block.iter_vars if v.var.same_as(variable))
