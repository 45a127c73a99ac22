"""Analyse the blocks of a kernel and their loads; shrink a kernel to shorter loops and smaller tensors."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import lru_cache
from typing import Any, NamedTuple

import tvm
from tvm import s_tir, tirx
from tvm.sym import Analyzer

from ..ir.statements import map_expression, realizations_in_loops


class Interval(NamedTuple):
    """The indices of a tensor from ``begin`` up to ``end`` along an axis."""

    axis: int
    begin: int
    end: int


class Values(NamedTuple):
    """The values of a block's variable from ``begin`` up to ``end``."""

    variable: Any
    begin: int
    end: int


class Blocks:
    """The blocks of a kernel in order, the loads of each, and the writer of each tensor."""

    def __init__(self, function: tirx.PrimFunc) -> None:
        realizations = [realize for realize, _ in realizations_in_loops(function.body.block.body)]
        self.all = realizations
        self.loads = {realize: list(loads_of(realize.block)) for realize in realizations}
        self.writer = {realize.block.body.buffer: realize for realize in realizations}
        if len(self.writer) < len(realizations):  # several blocks write one tensor
            self.writer.clear()


@lru_cache(maxsize=1000)  # one kernel is cut many times
def plain_blocks(function: tirx.PrimFunc) -> Blocks | None:
    """Return the blocks of a plain kernel (`is_plain`), else None."""
    return Blocks(function) if is_plain(function) else None


def is_plain(function: tirx.PrimFunc) -> bool:
    """Whether a kernel is a sequence of blocks, each in its own loops, one loop for each variable of the block."""
    if not isinstance(function.body, s_tir.SBlockRealize):
        return False
    root = function.body.block
    body = list(root.body.seq) if isinstance(root.body, tirx.SeqStmt) else [root.body]
    return not root.match_buffers and all(map(_is_nest, body))


def _is_nest(stmt: Any) -> bool:
    loops = []
    while isinstance(stmt, tirx.For):
        if stmt.kind != tirx.ForKind.SERIAL or not _is(stmt.min, 0):
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
    alone = known and not block.alloc_buffers and not block.match_buffers and _is(stmt.predicate, 1)
    return same and alone and (block.init is None or isinstance(block.init, tirx.BufferStore))


def shrunk(
    function: tirx.PrimFunc, blocks: Blocks, variables: Mapping[Any, Values], tensors: Mapping[Any, Interval]
) -> tirx.PrimFunc:
    """Make a kernel whose blocks do only a part of the work, on parts of tensors.

    Parameters
    ----------
    function : tvm.tirx.PrimFunc
        A plain kernel (`is_plain`).
    blocks : Blocks
        The blocks of the function.
    variables : mapping of SBlockRealize to Values
        The values that remain of one variable of a block.
    tensors : mapping of tvm.tirx.Buffer to Interval
        The interval that remains of a tensor; it contains all that these blocks read and write.
    """
    return _Shrunk(function, blocks, variables, tensors).function()


class _Shrunk:
    def __init__(
        self, function: tirx.PrimFunc, blocks: Blocks, variables: Mapping[Any, Values], tensors: Mapping[Any, Interval]
    ) -> None:
        self.old, self.blocks, self.variables, self.tensors = function, blocks, variables, tensors
        self.smaller = {tensor: self._smaller(tensor, interval) for tensor, interval in tensors.items()}
        self.shift: Values | None = None  # the values that remain of the current block's variable

    def function(self) -> tirx.PrimFunc:
        """Make the smaller kernel."""
        old, root = self.old, self.old.body.block
        nests = list(root.body.seq) if isinstance(root.body, tirx.SeqStmt) else [root.body]
        body = [self._nest(nest) for nest in nests]
        block = s_tir.SBlock(
            [], [], [], root.name_hint, tirx.SeqStmt(body) if len(body) > 1 else body[0], None,
            [self.smaller.get(buffer, buffer) for buffer in root.alloc_buffers], [], root.annotations,
        )  # fmt: skip
        realize = s_tir.SBlockRealize([], tirx.const(True, "bool"), block)
        new = tirx.PrimFunc([self.smaller.get(p, p) for p in old.params], realize, old.ret_type, old.attrs)
        for attribute in ("global_symbol", "tvm_sched.flops"):
            new = new.without_attr(attribute)
        return s_tir.renew_defs(new)

    @staticmethod
    def _smaller(tensor: Any, interval: Interval) -> Any:
        shape = [int(extent) for extent in tensor.shape]
        shape[interval.axis] = interval.end - interval.begin
        sizes = [tirx.IntImm(str(old.ty.dtype), new) for old, new in zip(tensor.shape, shape, strict=True)]
        return tirx.decl_buffer(sizes, str(tensor.dtype), tensor.name, layout=tensor.ty.layout)

    def _nest(self, nest: Any) -> Any:
        if isinstance(nest, tirx.For):
            inner, body = nest.body, self._nest(nest.body)
            while isinstance(inner, tirx.For):
                inner = inner.body
            extent = self._width(inner, nest.loop_var, nest.extent)
            return tirx.For(nest.loop_var, nest.min, extent, nest.kind, body, None, nest.annotations)
        block = nest.block
        self.shift = self.variables.get(nest)
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
        """Return the new extent of a block's loop, or of the variable that it counts."""
        cut = self.variables.get(realize)
        for variable, value in zip(realize.block.iter_vars, realize.iter_values, strict=True):
            if value.same_as(loop_variable) and cut is not None and variable.var.same_as(cut.variable):
                return tirx.IntImm(str(extent.ty.dtype), cut.end - cut.begin)
        return extent

    def _store(self, store: Any) -> Any:
        buffer = self.smaller.get(store.buffer, store.buffer)
        indices = [self._index(store.buffer, axis, index) for axis, index in enumerate(store.indices)]
        return tirx.BufferStore(buffer, self._expression(store.value), indices)

    def _index(self, tensor: Any, axis: int, index: Any) -> Any:
        """Move an index into the remaining part of a tensor."""
        moved = self._expression(index)
        interval = self.tensors.get(tensor)
        if interval is not None and interval.axis == axis and interval.begin:
            moved = moved - tirx.IntImm(str(index.ty.dtype), interval.begin)
        return moved if moved.same_as(index) else Analyzer().simplify(moved)

    def _expression(self, expr: Any) -> Any:
        if self.shift is not None and self.shift.begin and expr.same_as(self.shift.variable):
            return expr + tirx.IntImm(str(expr.ty.dtype), self.shift.begin)
        if isinstance(expr, tvm.ir.TensorLoad):
            source = self.smaller.get(expr.source, expr.source)
            return tirx.BufferLoad(source, [self._index(expr.source, k, index) for k, index in enumerate(expr.indices)])
        return map_expression(expr, self._expression)

    def _region(self, region: Any) -> Any:
        ranges = []
        for axis, old in enumerate(region.region):
            size = self.smaller.get(region.source, region.source).shape[axis]
            if isinstance(old.extent, tirx.IntImm) and int(old.extent) >= int(size):
                ranges.append(tvm.ir.Range.from_min_extent(tirx.IntImm(str(size.ty.dtype), 0), size))
            else:
                ranges.append(tvm.ir.Range.from_min_extent(self._index(region.source, axis, old.min), old.extent))
        return tirx.BufferRegion(self.smaller.get(region.source, region.source), ranges)


def loads_of(block: Any) -> Iterator[Any]:
    """Yield the loads of a block."""
    yield from loads(block.body.value)
    if block.init is not None:
        yield from loads(block.init.value)


def loads(expr: Any) -> Iterator[Any]:
    """Yield the loads in an expression, also those in indices of other loads."""
    parts: list[Any] = []

    def visit(part: Any) -> Any:
        if isinstance(part, tvm.ir.TensorLoad):
            parts.append(part)
            for index in part.indices:
                visit(index)
            return part
        return map_expression(part, visit)

    visit(expr)
    yield from parts


def uses(expr: Any, variable: Any) -> bool:
    """Whether a variable occurs in an expression, indices included."""
    if uses_outside_of_loads(expr, variable):
        return True
    return any(uses_outside_of_loads(index, variable) for load in loads(expr) for index in load.indices)


def uses_outside_of_loads(expr: Any, variable: Any) -> bool:
    """Whether a variable occurs in an expression other than in indices."""
    occurs = False

    def visit(part: Any) -> Any:
        nonlocal occurs
        occurs = occurs or part.same_as(variable)
        return map_expression(part, visit)

    visit(expr)
    return occurs


def written_along(realize: Any, axis: int) -> Any:
    """Return the variable that is a block's index of the written tensor along an axis and in no other index, or None."""
    store = realize.block.body
    variable = store.indices[axis]
    spatial = [v.var for v in realize.block.iter_vars if v.iter_type == tirx.IterVar.DataPar]
    if not any(variable.same_as(v) for v in spatial):
        return None
    others = (index for k, index in enumerate(store.indices) if k != axis)
    return None if any(uses(index, variable) for index in others) else variable


def _is_known(expr: Any) -> bool:
    """Whether `map_expression` visits all parts of an expression."""
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


def _is(expr: Any, value: int) -> bool:
    return isinstance(expr, tirx.IntImm) and int(expr) == value
