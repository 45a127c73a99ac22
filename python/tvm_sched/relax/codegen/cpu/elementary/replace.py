"""A pass over lowered PrimFuncs: calls of the C library's functions become arithmetic (`table`)."""

from __future__ import annotations

from typing import Any

import tvm
from tvm import tirx

from ....ir.statements import contains, intrinsic, map_expression, map_statement, rebuild_call
from .arithmetic import Bindings, cast, constant
from .function_table import FUNCTIONS, power_of

_HALF = ("float16", "bfloat16")


def replace_calls(function: tirx.PrimFunc) -> tirx.PrimFunc:
    """Replace the calls of elementary functions on float32 (and on 16-bit numbers, through float32) in a kernel.

    The kernel has no blocks any more, and its vectorised loops are vectors. Calls on float64 stay those of the C library.

    Returns
    -------
    tvm.tirx.PrimFunc
        The same function where it calls none.
    """
    if not contains(function.body, (tvm.ir.Call,), is_replaced):
        return function
    body = map_statement(function.body, _with_arithmetic)
    return function if body.same_as(function.body) else function.with_body(body)


def is_replaced(expr: Any) -> bool:
    """Whether an expression is a call that `replace_calls` replaces."""
    return isinstance(expr, tvm.ir.Call) and bool(_function(expr))


def _function(call: Any) -> str:
    """Name of the function that a call calls, if there is a formula for it."""
    name = intrinsic(call)
    return name if (name in FUNCTIONS or name == "pow") and _kind(call) in ("float32", *_HALF) else ""


def _kind(call: Any) -> str:
    return str(call.ty.dtype).partition("x")[0] if isinstance(call.ty, tvm.ir.PrimType) else ""


def _with_arithmetic(expr: Any) -> tuple[list[Any], Any]:
    """Statements to be done first, and the expression after them."""
    let = Bindings()
    return let.statements, _Replacer(let).visit(expr)


class _Replacer:
    """Rebuilds one expression.

    What is computed before the expression is computed also where the expression would not have: behind the condition of
    an `if_then_else`, which may guard a read outside of a tensor. So arguments are read under all conditions around them.
    """

    def __init__(self, let: Bindings) -> None:
        self.let = let
        self.conditions: list[Any] = []

    def visit(self, expr: Any) -> Any:
        if not isinstance(expr, tvm.ir.Call):
            return map_expression(expr, self.visit)
        if intrinsic(expr) == "if_then_else":
            return self._choice(expr)
        if name := _function(expr):
            return self._call(name, _kind(expr), [self.visit(argument) for argument in expr.args])
        return map_expression(expr, self.visit)

    def _call(self, name: str, kind: str, arguments: list[Any]) -> Any:
        first, *others = [a if kind == "float32" else cast("float32", a) for a in arguments]
        first = self.let(self._guarded(first))
        others = [a if isinstance(a, (tirx.FloatImm, tirx.Broadcast)) else self.let(self._guarded(a)) for a in others]
        value = power_of(self.let, first, *others) if name == "pow" else FUNCTIONS[name](self.let, first)
        value = self.let(value)
        return value if kind == "float32" else cast(kind, value)

    def _guarded(self, value: Any) -> Any:
        for condition in reversed(self.conditions):
            value = tirx.if_then_else(condition, value, constant(0.0, "float32", value))
        return value

    def _choice(self, call: Any) -> Any:
        condition, *values = call.args
        condition = self.visit(condition)
        visited = []
        for value, guard in zip(values, (condition, tirx.Not(condition)), strict=True):
            self.conditions.append(guard)
            visited.append(self.visit(value))
            self.conditions.pop()
        return rebuild_call(call, [condition, *visited])
