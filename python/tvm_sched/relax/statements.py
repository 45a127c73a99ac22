"""Rebuild the statements and expressions of a PrimFunc. TVM has no functors for these in Python."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import tvm
from tvm import s_tir, tirx

Expressions = Callable[[Any], tuple[list[Any], Any]]
Loops = Callable[[tirx.For], Any]
Places = Callable[[Any, list[Any]], list[Any]]


def map_statement(
    stmt: Any,
    expressions: Expressions | None = None,
    kinds: Loops | None = None,
    indices: Places | None = None,
) -> Any:
    """A statement with other expressions, and other kinds of loops.

    Parameters
    ----------
    stmt : tvm.tirx.Stmt
    expressions : callable, optional
        Gives statements to be done first, and the expression that is stored or bound in place of one. Extents and
        conditions of statements stay.
    kinds : callable, optional
        Gives the kind of a loop in place of the one it has.
    indices : callable, optional
        Gives the indices at which is stored in place of some, of the tensor and these.

    Returns
    -------
    tvm.tirx.Stmt
        The same object where nothing changes.
    """
    mapper = _Mapper(expressions or (lambda e: ([], e)), kinds or (lambda loop: loop.kind), indices=indices)
    return mapper.visit(stmt)


def map_loops(stmt: Any, loops: Loops) -> Any:
    """A statement with others in place of its loops, from the innermost outwards."""
    return _Mapper(lambda e: ([], e), lambda loop: loop.kind, loops).visit(stmt)


def realizations_in_loops(stmt: Any, loops: tuple[tirx.For, ...] = ()) -> Iterator[tuple[Any, tuple[tirx.For, ...]]]:
    """Blocks with the values of their variables, each before those in it, and all loops around it."""
    if isinstance(stmt, s_tir.SBlockRealize):
        yield stmt, loops
        yield from realizations_in_loops(stmt.block.body, loops)
    elif isinstance(stmt, tirx.SeqStmt):
        for part in stmt.seq:
            yield from realizations_in_loops(part, loops)
    elif isinstance(stmt, tirx.For):
        yield from realizations_in_loops(stmt.body, (*loops, stmt))
    elif isinstance(stmt, (tirx.AttrStmt, tirx.While)):
        yield from realizations_in_loops(stmt.body, loops)
    elif isinstance(stmt, tirx.IfThenElse):
        for part in (stmt.then_case, stmt.else_case):
            yield from realizations_in_loops(part, loops)


def statements_in(stmt: Any) -> Iterator[Any]:
    """A statement and all in it, each before those in it."""
    yield stmt
    if isinstance(stmt, s_tir.SBlockRealize):
        parts = [stmt.block.init, stmt.block.body]
    elif isinstance(stmt, tirx.SeqStmt):
        parts = list(stmt.seq)
    elif isinstance(stmt, tirx.IfThenElse):
        parts = [stmt.then_case, stmt.else_case]
    else:
        parts = [getattr(stmt, "body", None)]
    for part in parts:
        if part is not None:
            yield from statements_in(part)


def any_expression(expr: Any, wanted: Callable[[Any], bool]) -> bool:
    """Whether an expression, or a part of it but for indices of tensors, is what is looked for."""
    found = False

    def visit(part: Any) -> Any:
        nonlocal found
        found = found or wanted(part)
        return part if found else map_expression(part, visit)

    visit(expr)
    return found


class _Mapper:
    def __init__(
        self,
        expressions: Expressions,
        kinds: Loops,
        loops: Loops | None = None,
        indices: Places | None = None,
    ) -> None:
        self.expressions = expressions
        self.kinds = kinds
        self.loops = loops or (lambda loop: loop)
        self.indices = indices or (lambda buffer, given: given)

    def visit(self, stmt: Any) -> Any:
        if isinstance(stmt, tirx.For):
            return self._for(stmt)
        if isinstance(stmt, tirx.SeqStmt):
            parts = [self.visit(part) for part in stmt.seq]
            same = all(new.same_as(old) for new, old in zip(parts, stmt.seq, strict=True))
            return stmt if same else tirx.SeqStmt(parts, stmt.span)
        if isinstance(stmt, s_tir.SBlockRealize):
            return self._block(stmt)
        if isinstance(stmt, tirx.BufferStore):
            first, value = self.expressions(stmt.value)
            places = self.indices(stmt.buffer, list(stmt.indices))
            if value.same_as(stmt.value) and all(n.same_as(o) for n, o in zip(places, stmt.indices, strict=True)):
                return stmt
            return _after(first, tirx.BufferStore(stmt.buffer, value, places, stmt.span))
        if isinstance(stmt, tirx.Bind):
            first, value = self.expressions(stmt.value)
            return stmt if value.same_as(stmt.value) else _after(first, tirx.Bind(stmt.var, value, stmt.span))
        if isinstance(stmt, tirx.IfThenElse):
            then = self.visit(stmt.then_case)
            other = None if stmt.else_case is None else self.visit(stmt.else_case)
            if then.same_as(stmt.then_case) and (other is None or other.same_as(stmt.else_case)):
                return stmt
            return tirx.IfThenElse(stmt.condition, then, other, stmt.span)
        if isinstance(stmt, (tirx.AttrStmt, tirx.While)):
            return self._with_body(stmt)
        return stmt

    def _for(self, loop: tirx.For) -> Any:
        kind, body = self.kinds(loop), self.visit(loop.body)
        if kind == loop.kind and body.same_as(loop.body):
            return self.loops(loop)
        changed = tirx.For(
            loop.loop_var, loop.min, loop.extent, kind, body, loop.thread_binding, loop.annotations, loop.step, loop.span
        )  # fmt: skip
        return self.loops(changed)

    def _block(self, stmt: Any) -> Any:
        block = stmt.block
        body = self.visit(block.body)
        init = None if block.init is None else self.visit(block.init)
        if body.same_as(block.body) and (init is None or init.same_as(block.init)):
            return stmt
        block = s_tir.SBlock(
            block.iter_vars, block.reads, block.writes, block.name_hint, body, init, block.alloc_buffers,
            block.match_buffers, block.annotations, block.span,
        )  # fmt: skip
        return s_tir.SBlockRealize(stmt.iter_values, stmt.predicate, block, stmt.span)

    def _with_body(self, stmt: Any) -> Any:
        body = self.visit(stmt.body)
        if body.same_as(stmt.body):
            return stmt
        if isinstance(stmt, tirx.While):
            return tirx.While(stmt.condition, body, stmt.span)
        return tirx.AttrStmt(stmt.node, stmt.attr_key, stmt.value, body, stmt.span)


def map_expression(expr: Any, visit: Callable[[Any], Any]) -> Any:
    """An expression whose operands are what ``visit`` gives for them; the same object where that changes none.

    Indices of tensors stay as they are.
    """
    if isinstance(expr, (tirx.IntImm, tirx.FloatImm, tirx.Var, tvm.ir.TensorLoad)):
        return expr
    if isinstance(expr, tvm.ir.Call):
        return rebuild_call(expr, [visit(argument) for argument in expr.args])
    if isinstance(expr, tirx.Select):
        return _rebuilt(expr, [expr.condition, expr.true_value, expr.false_value], visit, tirx.Select)
    if isinstance(expr, tirx.Cast):
        return _rebuilt(expr, [expr.value], visit, lambda value: tirx.Cast(str(expr.ty.dtype), value))
    if isinstance(expr, tirx.Broadcast):
        return _rebuilt(expr, [expr.value], visit, lambda value: tirx.Broadcast(value, expr.lanes))
    if isinstance(expr, (tirx.expr.BinaryOpExpr, tirx.expr.CmpExpr, tirx.And, tirx.Or)):
        return _rebuilt(expr, [expr.a, expr.b], visit, type(expr))
    if isinstance(expr, tirx.Not):
        return _rebuilt(expr, [expr.a], visit, tirx.Not)
    return expr


def intrinsic(call: Any) -> str:
    """Name of the intrinsic that a call calls, without TVM's dialect (``tirx.exp``, ``prim.log2``); "" of a function."""
    return str(call.op.name).rpartition(".")[2] if isinstance(call.op, tvm.ir.Op) else ""


def rebuild_call(call: Any, arguments: list[Any]) -> Any:
    """A call with other arguments; the same object where they are the same."""
    if all(new.same_as(old) for new, old in zip(arguments, call.args, strict=True)):
        return call
    return tvm.ir.Call(call.op, arguments, call.attrs, call.ty_args, call.span, call.ty)


def _after(first: list[Any], stmt: Any) -> Any:
    return tirx.SeqStmt([*first, stmt]) if first else stmt


def _rebuilt(expr: Any, old: Any, visit: Callable[[Any], Any], make: Callable[..., Any]) -> Any:
    new = [visit(part) for part in old]
    return expr if all(n.same_as(o) for n, o in zip(new, old, strict=True)) else make(*new)
