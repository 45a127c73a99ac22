"""Cut a kernel into parts: along an axis of its result, or of the sum that it computes.

A kernel is cut if each of ``count`` equal parts is proved to be the same computation on parts of some arguments and on all
of the others. One kernel then serves all parts: TVM's own with shorter loops. A kernel can also compute several successive
parts, since the parts of an argument that they read are adjacent.
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
    """A cut of a kernel's work into equal parts."""

    of: Callable[[int], tirx.PrimFunc]  # makes the kernel that computes a number of successive parts
    axes: tuple[int | None, ...]  # along which part k reads the k-th part of each input; None: it reads all

    @property
    def kernel(self) -> tirx.PrimFunc:
        """The kernel of one part."""
        return self.of(1)


def slice_result(function: tirx.PrimFunc, axis: int, count: int) -> Slice | None:
    """Cut a kernel's result into ``count`` parts along an axis; return None without a proof.

    The kernel has blocks, as TVM makes them from operators, fused or alone; its last argument is its result.
    """
    return _attempt(function, count, methodcaller("result", axis))


def slice_sum(function: tirx.PrimFunc, count: int) -> Slice | None:
    """Cut the sum that a kernel computes into ``count`` parts of its terms; return None if it computes no sum.

    The parts' results have the shape of the kernel's result. They add up to it, but for the order of additions.
    """
    attempts = (_attempt(function, count, methodcaller("terms", v.var)) for v in _summed(function))
    return next((each for each in attempts if each is not None), None)


def terms_of(function: tirx.PrimFunc) -> list[int]:
    """Return the extents of the variables over which a kernel's result is summed."""
    return [int(variable.dom.extent) for variable in _summed(function)]


def _summed(function: tirx.PrimFunc) -> list[Any]:
    blocks = plain_blocks(function)
    last = blocks.writer.get(function.params[-1]) if blocks else None
    return [v for v in last.block.iter_vars if v.iter_type == _REDUCTION] if last else []


def share_axis(function: tirx.PrimFunc) -> int | None:
    """Return the axis along which a kernel splits its input into equal results, in order; None if it does not."""
    whole, *shares = function.params
    shape = [int(extent) for extent in whole.shape]
    sizes = [[int(extent) for extent in share.shape] for share in shares]
    if len(shares) < 2 or any(size != sizes[0] for size in sizes):
        return None
    if len(shape) != len(sizes[0]) or not is_plain(function):
        return None
    axes = [k for k, (size, share) in enumerate(zip(shape, sizes[0], strict=True)) if size != share]
    if len(axes) != 1 or shape[axes[0]] != len(shares) * sizes[0][axes[0]]:
        return None
    writer = Blocks(function).writer
    split = all(_copies(writer.get(share), whole, axes[0], k * sizes[0][axes[0]]) for k, share in enumerate(shares))
    return axes[0] if split else None


def _copies(realize: Any, whole: Any, axis: int, begin: int) -> bool:
    """Whether a block copies another tensor from ``begin`` on along an axis."""
    if realize is None or realize.block.init is not None:
        return False
    store = realize.block.body
    load, variables = store.value, [v.var for v in realize.block.iter_vars]
    if not isinstance(load, tvm.ir.TensorLoad) or not load.source.same_as(whole):
        return False
    if len(store.indices) != len(variables):
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
    """Cuts tensors and blocks, backwards from the result."""

    def __init__(self, function: tirx.PrimFunc, count: int) -> None:
        self.function, self.count = function, count
        self.blocks = Blocks(function)
        self.axes: dict[Any, int | None] = {}  # of each tensor: the axis of its cut; None: all of it is used
        self.variables: dict[Any, Any] = {}  # of each block that is cut: the variable with fewer values

    def result(self, axis: int) -> None:
        """Cut the result."""
        self._need(self.function.params[-1], axis)

    def terms(self, variable: Any) -> None:
        """Cut the sum over a variable of the block that writes the result."""
        result = self.function.params[-1]
        realize = self.blocks.writer[result]
        block, store = realize.block, realize.block.body
        sums = [e for e in loads(store.value) if e.source.same_as(result)]
        adds = isinstance(store.value, tirx.Add) and len(sums) == 1
        adds = adds and any(side.same_as(sums[0]) for side in (store.value.a, store.value.b))
        zero = block.init is not None and isinstance(block.init.value, tirx.FloatImm) and block.init.value.value == 0
        if not adds or not zero or any(uses(index, variable) for index in store.indices):
            raise _Refused
        self.axes[result] = None
        self._cut_block(realize, variable)

    def finish(self) -> Slice:
        """Return the cut; blocks that are not cut need whole tensors."""
        for realize in self.blocks.all:
            if realize not in self.variables:
                for load in loads_of(realize.block):
                    self._need(load.source, None)
        return Slice(self._kernel, tuple(self.axes.get(p) for p in self.function.params[:-1]))

    def _kernel(self, width: int) -> tirx.PrimFunc:
        """Make the kernel of ``width`` successive parts."""
        variables = {r: Values(v, 0, _extent(r.block, v) // self.count * width) for r, v in self.variables.items()}
        sizes = {t: int(t.shape[a]) // self.count * width for t, a in self.axes.items() if a is not None}
        tensors = {t: Interval(a, 0, sizes[t]) for t, a in self.axes.items() if a is not None}
        return shrunk(self.function, self.blocks, variables, tensors)

    def _need(self, tensor: Any, axis: int | None) -> None:
        """Cut a tensor along an axis (None: use all of it); refuse if it was cut otherwise before."""
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
        """Give a block a part of a variable's values."""
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
        """Return the axis along which a load reads the part's own part of a tensor; None if all parts read the same."""
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
        """Whether an index in part k is ``by * k`` more than in the first part, where it is less than ``below``."""
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
    """Substitute a value for a variable in an expression."""

    def visit(part: Any) -> Any:
        return value if part.same_as(variable) else map_expression(part, visit)

    return visit(expr)


def _extent(block: Any, variable: Any) -> int:
    return next(int(v.dom.extent) for v in block.iter_vars if v.var.same_as(variable))
