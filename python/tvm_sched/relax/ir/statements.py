"""Rebuild the statements and expressions of a PrimFunc. TVM has no functors for these in Python."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache
from typing import Any

import tvm
import tvm_ffi
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


def contains(part: Any, kinds: tuple[type, ...], wanted: Callable[[Any], bool] = lambda node: True) -> bool:
    """Whether a node of some classes is in a statement or an expression, also in indices: looked for in C++."""

    def look(node: Any) -> tvm_ffi.VisitInterrupt | None:
        return tvm_ffi.VisitInterrupt() if wanted(node) else None

    return tvm_ffi.structural_walk(part, (kinds, look), order="pre") is not None


def any_expression(expr: Any, wanted: Callable[[Any], bool]) -> bool:
    """Whether an expression, or a part of it but for indices of tensors, is what is looked for."""
    occurs = False

    def visit(part: Any) -> Any:
        nonlocal occurs
        occurs = occurs or wanted(part)
        return part if occurs else map_expression(part, visit)

    visit(expr)
    return occurs


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
        method = _METHODS.get(type(stmt))
        return method(self, stmt) if method else stmt

    def _sequence(self, stmt: tirx.SeqStmt) -> Any:
        old = list(stmt.seq)
        parts = [self.visit(part) for part in old]
        return stmt if _same(parts, old) else tirx.SeqStmt(parts, stmt.span)

    def _store(self, stmt: tirx.BufferStore) -> Any:
        old = list(stmt.indices)
        first, value = self.expressions(stmt.value)
        places = self.indices(stmt.buffer, old)
        if value.same_as(stmt.value) and _same(places, old):
            return stmt
        return _after(first, tirx.BufferStore(stmt.buffer, value, places, stmt.span))

    def _bind(self, stmt: tirx.Bind) -> Any:
        first, value = self.expressions(stmt.value)
        return stmt if value.same_as(stmt.value) else _after(first, tirx.Bind(stmt.var, value, stmt.span))

    def _choice(self, stmt: tirx.IfThenElse) -> Any:
        then = self.visit(stmt.then_case)
        other = None if stmt.else_case is None else self.visit(stmt.else_case)
        if then.same_as(stmt.then_case) and (other is None or other.same_as(stmt.else_case)):
            return stmt
        return tirx.IfThenElse(stmt.condition, then, other, stmt.span)

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


# By exact class: TVM's classes are abstract base classes, of which a row of isinstance takes longer than the work.
_METHODS: dict[type, Callable[[_Mapper, Any], Any]] = {
    tirx.For: _Mapper._for,
    tirx.SeqStmt: _Mapper._sequence,
    s_tir.SBlockRealize: _Mapper._block,
    tirx.BufferStore: _Mapper._store,
    tirx.Bind: _Mapper._bind,
    tirx.IfThenElse: _Mapper._choice,
    tirx.AttrStmt: _Mapper._with_body,
    tirx.While: _Mapper._with_body,
}


def map_expression(expr: Any, visit: Callable[[Any], Any]) -> Any:
    """An expression whose operands are what ``visit`` gives for them; the same object where that changes none.

    Indices of tensors stay as they are.
    """
    rebuild = _rebuild_of(expr.__class__)
    return rebuild(expr, visit) if rebuild else expr


@cache
def _rebuild_of(kind: type) -> Callable[[Any, Callable[[Any], Any]], Any] | None:
    """What rebuilds expressions of a class; None where they have no operands."""
    if issubclass(kind, tvm.ir.Call):
        return lambda expr, visit: rebuild_call(expr, [visit(argument) for argument in expr.args])
    if issubclass(kind, tirx.Select):
        return lambda expr, visit: _rebuilt(expr, [expr.condition, expr.true_value, expr.false_value], visit, kind)
    if issubclass(kind, tirx.Cast):
        return lambda expr, visit: _rebuilt(
            expr, [expr.value], visit, lambda value: tirx.Cast(str(expr.ty.dtype), value)
        )
    if issubclass(kind, tirx.Broadcast):
        return lambda expr, visit: _rebuilt(expr, [expr.value], visit, lambda value: tirx.Broadcast(value, expr.lanes))
    if issubclass(kind, (tirx.expr.BinaryOpExpr, tirx.expr.CmpExpr, tirx.And, tirx.Or)):
        return lambda expr, visit: _rebuilt(expr, [expr.a, expr.b], visit, kind)
    if issubclass(kind, tirx.Not):
        return lambda expr, visit: _rebuilt(expr, [expr.a], visit, kind)
    return None


def intrinsic(call: Any) -> str:
    """Name of the intrinsic that a call calls, without TVM's dialect (``tirx.exp``, ``prim.log2``); "" of a function."""
    return str(call.op.name).rpartition(".")[2] if isinstance(call.op, tvm.ir.Op) else ""


def rebuild_call(call: Any, arguments: list[Any]) -> Any:
    """A call with other arguments; the same object where they are the same."""
    if _same(arguments, list(call.args)):
        return call
    return tvm.ir.Call(call.op, arguments, call.attrs, call.ty_args, call.span, call.ty)


def _after(first: list[Any], stmt: Any) -> Any:
    return tirx.SeqStmt([*first, stmt]) if first else stmt


def _rebuilt(expr: Any, old: list[Any], visit: Callable[[Any], Any], make: Callable[..., Any]) -> Any:
    new = [visit(part) for part in old]
    return expr if _same(new, old) else make(*new)


def _same(new: list[Any], old: list[Any]) -> bool:
    return len(new) == len(old) and all(map(_same_as, new, old))


def _same_as(one: Any, other: Any) -> bool:
    return bool(one.same_as(other))
