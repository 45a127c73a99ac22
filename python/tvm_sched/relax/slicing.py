"""Kernels that do a part of another kernel's work: of its result along an axis, or of the sum that it computes.

A kernel is cut where it can be proved that each of ``count`` equal parts is the same computation, of parts of some
arguments and of all of others. So one kernel does for all parts, and it is TVM's own with shorter loops.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from operator import methodcaller
from typing import Any

import tvm
from tvm import s_tir, tirx
from tvm.sym import Analyzer

from .statements import map_expression, map_statement, realizations_in_loops

_SPATIAL, _REDUCTION = tirx.IterVar.DataPar, tirx.IterVar.CommReduce


@dataclass(frozen=True)
class Slice:
    """A part of a kernel's work.

    Attributes
    ----------
    kernel : tvm.tirx.PrimFunc
        What each part is computed by.
    axes : tuple of int or None
        Of each input the axis along which a part needs its part only, the ``k``-th of ``count`` equal ones; None where it
        needs all of it.
    """

    kernel: tirx.PrimFunc
    axes: tuple[int | None, ...]


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
    if not _is_plain(function):
        return None
    last = _Blocks(function).writer.get(function.params[-1])
    variables = [v for v in last.block.iter_vars if v.iter_type == _REDUCTION] if last else []
    found = (_attempt(function, count, methodcaller("terms", v.var)) for v in variables)
    return next((each for each in found if each is not None), None)


class _Refused(Exception):
    """The parts are not proved to be the same computation."""


def _attempt(function: tirx.PrimFunc, count: int, begin: Callable[[_Cut], None]) -> Slice | None:
    if not _is_plain(function):
        return None
    try:
        cut = _Cut(function, count)
        begin(cut)
        return cut.finish()
    except _Refused:
        return None


def _is_plain(function: tirx.PrimFunc) -> bool:
    """Whether a kernel is blocks one after another, each with loops of its own that count its variables."""
    if not isinstance(function.body, s_tir.SBlockRealize):
        return False
    root = function.body.block
    body = list(root.body.seq) if isinstance(root.body, tirx.SeqStmt) else [root.body]
    return not root.match_buffers and all(map(_is_nest, body))


def _is_nest(stmt: Any) -> bool:
    loops = []
    while isinstance(stmt, tirx.For):
        if stmt.kind != tirx.ForKind.SERIAL or not _is_zero(stmt.min):
            return False
        loops.append(stmt)
        stmt = stmt.body
    if not isinstance(stmt, s_tir.SBlockRealize) or not isinstance(stmt.block.body, tirx.BufferStore):
        return False
    block = stmt.block
    same = len(loops) == len(block.iter_vars) and all(
        value.same_as(loop.loop_var) and isinstance(loop.extent, tirx.IntImm)
        for value, loop in zip(stmt.iter_values, loops, strict=True)
    )
    known = all(_is_known(s.value) for s in (block.body, block.init) if isinstance(s, tirx.BufferStore))
    alone = known and not block.alloc_buffers and not block.match_buffers and _is_one(stmt.predicate)
    return same and alone and (block.init is None or isinstance(block.init, tirx.BufferStore))


class _Blocks:
    """The blocks of a kernel, in order, and the one that writes each tensor."""

    def __init__(self, function: tirx.PrimFunc) -> None:
        found = [realize for realize, _ in realizations_in_loops(function.body.block.body)]
        self.all = found
        self.writer = {realize.block.body.buffer: realize for realize in found}
        if len(self.writer) < len(found):  # several blocks write one tensor
            self.writer.clear()


class _Cut:
    """Goes from the result back to what has to be cut for it."""

    def __init__(self, function: tirx.PrimFunc, count: int) -> None:
        self.function, self.count = function, count
        self.blocks = _Blocks(function)
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
        mine = [e for e in _loads(store.value) if e.source.same_as(result)]
        adds = (
            isinstance(store.value, tirx.Add)
            and len(mine) == 1
            and any(side.same_as(mine[0]) for side in (store.value.a, store.value.b))
        )
        zero = block.init is not None and isinstance(block.init.value, tirx.FloatImm) and block.init.value.value == 0
        if not adds or not zero or any(_uses(index, variable) for index in store.indices):
            raise _Refused
        self.axes[result] = None
        self._cut_block(realize, variable)

    def finish(self) -> Slice:
        """The kernel of a part."""
        for realize in self.blocks.all:
            if realize not in self.variables:
                for load in _loads_of(realize.block):
                    self._need(load.source, None)
        inputs = tuple(self.axes.get(p) for p in self.function.params[:-1])
        return Slice(_Shrunk(self).function(), inputs)

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
        variable = realize.block.body.indices[axis]
        spatial = [v.var for v in realize.block.iter_vars if v.iter_type == _SPATIAL]
        if not any(variable.same_as(v) for v in spatial):
            raise _Refused
        if any(_uses(index, variable) for k, index in enumerate(realize.block.body.indices) if k != axis):
            raise _Refused
        self._cut_block(realize, variable)

    def _cut_block(self, realize: Any, variable: Any) -> None:
        """Let a block do a part of a variable's values."""
        if realize in self.variables or _extent(realize.block, variable) % self.count:
            raise _Refused
        self.variables[realize] = variable
        stores = [realize.block.body, *([realize.block.init] if realize.block.init is not None else [])]
        if any(_uses_outside_of_loads(store.value, variable) for store in stores):
            raise _Refused
        for load in _loads_of(realize.block):
            if not load.source.same_as(realize.block.body.buffer):
                self._need(load.source, self._axis_of(realize.block, variable, load))

    def _axis_of(self, block: Any, variable: Any, load: Any) -> int | None:
        """The axis along which what is read shifts with the part, as the parts of the tensor do; None where it does not."""
        found: int | None = None
        for axis, (index, size) in enumerate(zip(load.indices, load.source.shape, strict=True)):
            if not _uses(index, variable) or self._shifts(block, variable, index, 0, None):
                continue
            part = int(size) // self.count
            if found is not None or int(size) % self.count or not self._shifts(block, variable, index, part, part):
                raise _Refused
            found = axis
        return found

    def _shifts(self, block: Any, variable: Any, index: Any, by: int, below: int | None) -> bool:
        """Whether an index in part ``k`` is that in the first part and ``by * k``, and that one ``below`` a number."""
        if any(True for _ in _loads(index)):
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


class _Shrunk:
    """The kernel in which what is cut is smaller."""

    def __init__(self, cut: _Cut) -> None:
        self.cut = cut
        self.made = {tensor: self._smaller(tensor, axis) for tensor, axis in cut.axes.items() if axis is not None}

    def function(self) -> tirx.PrimFunc:
        """The kernel of a part."""
        old, root = self.cut.function, self.cut.function.body.block
        nests = list(root.body.seq) if isinstance(root.body, tirx.SeqStmt) else [root.body]
        body = [self._nest(nest) for nest in nests]
        block = s_tir.SBlock(
            [], [], [], root.name_hint, tirx.SeqStmt(body) if len(body) > 1 else body[0], None,
            [self.made.get(buffer, buffer) for buffer in root.alloc_buffers], [], root.annotations,
        )  # fmt: skip
        realize = s_tir.SBlockRealize([], tirx.const(True, "bool"), block)
        new = tirx.PrimFunc([self.made.get(p, p) for p in old.params], realize, old.ret_type, old.attrs)
        for attribute in ("global_symbol", "tvm_sched.flops"):
            new = new.without_attr(attribute)
        return s_tir.renew_defs(new)

    def _smaller(self, tensor: Any, axis: int) -> Any:
        shape = [int(extent) for extent in tensor.shape]
        shape[axis] //= self.cut.count
        kinds = [tirx.IntImm(str(old.ty.dtype), new) for old, new in zip(tensor.shape, shape, strict=True)]
        return tirx.decl_buffer(kinds, str(tensor.dtype), tensor.name)

    def _nest(self, nest: Any) -> Any:
        if isinstance(nest, tirx.For):
            inner, body = nest.body, self._nest(nest.body)
            while isinstance(inner, tirx.For):
                inner = inner.body
            extent = self._width(inner, nest.loop_var, nest.extent)
            return tirx.For(nest.loop_var, nest.min, extent, nest.kind, body, None, nest.annotations)
        block = nest.block
        variables = [
            tirx.IterVar(tvm.ir.Range.from_min_extent(v.dom.min, self._width(nest, value, v.dom.extent)), v.var, v.iter_type)
            for v, value in zip(block.iter_vars, nest.iter_values, strict=True)
        ]  # fmt: skip
        body = self._store(block.body)
        init = None if block.init is None else self._store(block.init)
        regions = [[self._region(region) for region in regions] for regions in (block.reads, block.writes)]
        new = s_tir.SBlock(variables, *regions, block.name_hint, body, init, [], [], block.annotations)
        return s_tir.SBlockRealize(nest.iter_values, nest.predicate, new)

    def _width(self, realize: Any, loop_variable: Any, extent: Any) -> Any:
        """The extent of a loop of a block, or of the variable that it counts."""
        cut = self.cut.variables.get(realize)
        for variable, value in zip(realize.block.iter_vars, realize.iter_values, strict=True):
            if value.same_as(loop_variable) and cut is not None and variable.var.same_as(cut):
                return tirx.IntImm(str(extent.ty.dtype), int(extent) // self.cut.count)
        return extent

    def _store(self, store: Any) -> Any:
        mapped = map_statement(store, lambda value: ([], self._expression(value)))
        buffer = self.made.get(mapped.buffer, mapped.buffer)
        return tirx.BufferStore(buffer, mapped.value, list(mapped.indices))

    def _expression(self, expr: Any) -> Any:
        if isinstance(expr, tvm.ir.TensorLoad):
            source = self.made.get(expr.source)
            indices = [self._expression(index) for index in expr.indices]
            return tirx.BufferLoad(expr.source if source is None else source, indices)
        return map_expression(expr, self._expression)

    def _region(self, region: Any) -> Any:
        buffer = region.source
        if buffer not in self.made:
            return region
        new = self.made[buffer]
        ranges = [
            tvm.ir.Range.from_min_extent(tirx.IntImm(str(size.ty.dtype), 0), size)
            if isinstance(old.extent, tirx.IntImm) and int(old.extent) > int(size)
            else old
            for old, size in zip(region.region, new.shape, strict=True)
        ]
        return tirx.BufferRegion(new, ranges)


def _loads_of(block: Any) -> Iterator[Any]:
    """What a block reads."""
    yield from _loads(block.body.value)
    if block.init is not None:
        yield from _loads(block.init.value)


def _loads(expr: Any) -> Iterator[Any]:
    """Loads in an expression, also those in indices of others."""
    found: list[Any] = []

    def visit(part: Any) -> Any:
        if isinstance(part, tvm.ir.TensorLoad):
            found.append(part)
            for index in part.indices:
                visit(index)
            return part
        return map_expression(part, visit)

    visit(expr)
    yield from found


def _uses(expr: Any, variable: Any) -> bool:
    """Whether a variable occurs in an expression, indices included."""
    if _uses_outside_of_loads(expr, variable):
        return True
    return any(_uses_outside_of_loads(index, variable) for load in _loads(expr) for index in load.indices)


def _uses_outside_of_loads(expr: Any, variable: Any) -> bool:
    found = False

    def visit(part: Any) -> Any:
        nonlocal found
        found = found or part.same_as(variable)
        return map_expression(part, visit)

    visit(expr)
    return found


def _with(expr: Any, variable: Any, value: Any) -> Any:
    """An expression with another in place of a variable."""

    def visit(part: Any) -> Any:
        return value if part.same_as(variable) else map_expression(part, visit)

    return visit(expr)


def _extent(block: Any, variable: Any) -> int:
    return next(int(v.dom.extent) for v in block.iter_vars if v.var.same_as(variable))


def _is_known(expr: Any) -> bool:
    """Whether all parts of an expression are of kinds that `map_expression` looks into."""
    kinds = (
        tirx.IntImm, tirx.FloatImm, tirx.Var, tvm.ir.TensorLoad, tvm.ir.Call, tirx.Select, tirx.Cast, tirx.Not, tirx.And,
        tirx.Or, tirx.expr.BinaryOpExpr, tirx.expr.CmpExpr,
    )  # fmt: skip
    known = True

    def visit(part: Any) -> Any:
        nonlocal known
        known = known and isinstance(part, kinds)
        if isinstance(part, tvm.ir.TensorLoad):
            for index in part.indices:
                visit(index)
        return map_expression(part, visit)

    visit(expr)
    return known


def _is_zero(expr: Any) -> bool:
    return isinstance(expr, tirx.IntImm) and int(expr) == 0


def _is_one(expr: Any) -> bool:
    return isinstance(expr, tirx.IntImm) and int(expr) == 1
