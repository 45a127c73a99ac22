"""Rebuild the statements and expressions of a PrimFunc. TVM has no functors for these in Python."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from functools import cache
from typing import Any

import numpy as np
import tvm
import tvm_ffi
from tvm import s_tir, tirx

Expressions = Callable[[Any], tuple[list[Any], Any]]
Loops = Callable[[tirx.For], Any]
Places = Callable[[Any, list[Any]], list[Any]]
Scope = Callable[[Any], AbstractContextManager[Any]]


def map_statement(
    stmt: Any,
    expressions: Expressions | None = None,
    kinds: Loops | None = None,
    indices: Places | None = None,
    scope: Scope | None = None,
) -> Any:
    """Rebuild a statement with other expressions, loop kinds or store indices; the same object if nothing changes.

    Parameters
    ----------
    stmt : tvm.tirx.Stmt
    expressions : callable, optional
        Takes an expression that is stored or bound; returns statements to run first, and its replacement. Extents and
        conditions of statements are not mapped.
    kinds : callable, optional
        Takes a loop and returns its new kind.
    indices : callable, optional
        Takes a tensor and the indices of a store, and returns the new indices.
    scope : callable, optional
        Takes a loop, a block's realisation, or a condition, and returns the context in which what it contains or guards is
        rebuilt.
    """
    return _Mapper(expressions, kinds, indices=indices, scope=scope).visit(stmt)


def map_loops(stmt: Any, loops: Loops) -> Any:
    """Rebuild a statement with its loops replaced, innermost loops first."""
    return _Mapper(loops=loops).visit(stmt)


def with_body(function: tirx.PrimFunc, body: Any) -> tirx.PrimFunc:
    """Return the function with another body; the same object if the body is the same."""
    return function if body.same_as(function.body) else function.with_body(body)


def realizations_in_loops(stmt: Any, loops: tuple[tirx.For, ...] = ()) -> Iterator[tuple[Any, tuple[tirx.For, ...]]]:
    """Yield block realisations with the loops around each, outer blocks first."""
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
    """Yield a statement and all nested statements, outer statements first."""
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


def contains(part: Any, kinds: tuple[type, ...], predicate: Callable[[Any], bool] = lambda node: True) -> bool:
    """Whether a statement or expression, indices included, contains a node of some classes; the walk runs in C++."""

    def look(node: Any) -> tvm_ffi.VisitInterrupt | None:
        return tvm_ffi.VisitInterrupt() if predicate(node) else None

    return tvm_ffi.structural_walk(part, (kinds, look), order="pre") is not None


def any_expression(expr: Any, predicate: Callable[[Any], bool]) -> bool:
    """Whether ``predicate`` is true of an expression or a part of it; indices of tensors are not searched."""
    occurs = False

    def visit(part: Any) -> Any:
        nonlocal occurs
        occurs = occurs or predicate(part)
        return part if occurs else map_expression(part, visit)

    visit(expr)
    return occurs


class _Mapper:
    def __init__(
        self,
        expressions: Expressions | None = None,
        kinds: Loops | None = None,
        loops: Loops | None = None,
        indices: Places | None = None,
        scope: Scope | None = None,
    ) -> None:
        self.expressions = expressions or (lambda expr: ([], expr))
        self.kinds = kinds or (lambda loop: loop.kind)
        self.loops = loops or (lambda loop: loop)
        self.indices = indices or (lambda buffer, old: old)
        self.scope = scope or (lambda what: nullcontext())

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
        with self.scope(stmt.condition):
            then = self.visit(stmt.then_case)
        with self.scope(tirx.Not(stmt.condition)):
            other = None if stmt.else_case is None else self.visit(stmt.else_case)
        if then.same_as(stmt.then_case) and (other is None or other.same_as(stmt.else_case)):
            return stmt
        return tirx.IfThenElse(stmt.condition, then, other, stmt.span)

    def _for(self, loop: tirx.For) -> Any:
        kind = self.kinds(loop)
        with self.scope(loop):
            body = self.visit(loop.body)
        if kind == loop.kind and body.same_as(loop.body):
            return self.loops(loop)
        changed = tirx.For(
            loop.loop_var, loop.min, loop.extent, kind, body, loop.thread_binding, loop.annotations, loop.step, loop.span
        )  # fmt: skip
        return self.loops(changed)

    def _block(self, stmt: Any) -> Any:
        block = stmt.block
        with self.scope(stmt):
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


# By exact class: isinstance is slow for TVM's abstract base classes.
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
    """Rebuild an expression with ``visit`` applied to its operands; the same object if nothing changes.

    Indices of tensors are not visited.
    """
    rebuild = _rebuild_of(expr.__class__)
    return rebuild(expr, visit) if rebuild else expr


@cache
def _rebuild_of(kind: type) -> Callable[[Any, Callable[[Any], Any]], Any] | None:
    """Return the function that rebuilds expressions of a class; None if they have no operands."""
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
    """Return the name of a called intrinsic without TVM's dialect (``tirx.exp``, ``prim.log2``); "" for a function."""
    return str(call.op.name).rpartition(".")[2] if isinstance(call.op, tvm.ir.Op) else ""


def rebuild_call(call: Any, arguments: list[Any]) -> Any:
    """Rebuild a call with other arguments; the same object if nothing changes."""
    if _same(arguments, list(call.args)):
        return call
    return tvm.ir.Call(call.op, arguments, call.attrs, call.ty_args, call.span, call.ty)


def _after(first: list[Any], stmt: Any) -> Any:
    return tirx.SeqStmt([*first, stmt]) if first else stmt


def _rebuilt(expr: Any, old: list[Any], visit: Callable[[Any], Any], make: Callable[..., Any]) -> Any:
    new = [visit(part) for part in old]
    return expr if _same(new, old) else make(*new)


def _same(new: list[Any], old: list[Any]) -> bool:
    return len(new) == len(old) and all(one.same_as(other) for one, other in zip(new, old, strict=True))


_OPERATIONS: dict[type, Callable[..., Any]] = {
    tirx.Add: np.add, tirx.Sub: np.subtract, tirx.Mul: np.multiply, tirx.FloorDiv: np.floor_divide, tirx.FloorMod: np.mod,
    tirx.Min: np.minimum, tirx.Max: np.maximum, tirx.EQ: np.equal, tirx.NE: np.not_equal, tirx.LT: np.less,
    tirx.LE: np.less_equal, tirx.GT: np.greater, tirx.GE: np.greater_equal, tirx.And: np.logical_and,
    tirx.Or: np.logical_or,
}  # fmt: skip


def choice_of(expr: Any) -> tuple[Any, Any, Any] | None:
    """Return condition and values of an expression that evaluates one of two; None for others."""
    if isinstance(expr, tirx.Select):
        return expr.condition, expr.true_value, expr.false_value
    if isinstance(expr, tvm.ir.Call) and intrinsic(expr) == "if_then_else":
        return tuple(expr.args)
    return None


def evaluate(expr: Any, values: Mapping[Any, Any]) -> Any:
    """Return the values of an integer expression for arrays of values of its variables; None if it has other parts."""
    if isinstance(expr, tirx.IntImm):
        return np.int64(expr.value)
    if isinstance(expr, tirx.Var):
        return values.get(expr)
    if isinstance(expr, tirx.Cast) and str(expr.ty.dtype) in ("int32", "int64"):
        return evaluate(expr.value, values)
    choice = choice_of(expr)
    parts: tuple[Any, ...] = choice or ((expr.a,) if isinstance(expr, tirx.Not) else ())
    function: Callable[..., Any] = np.where if choice else np.logical_not
    if not parts and type(expr) in _OPERATIONS:
        function, parts = _OPERATIONS[type(expr)], (expr.a, expr.b)
    found = [evaluate(part, values) for part in parts]
    return function(*found) if found and all(each is not None for each in found) else None
