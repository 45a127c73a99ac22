"""Replace calls of elementary functions in lowered PrimFuncs by arithmetic: the table of functions and the pass."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tvm
from tvm import tirx

from ....ir.statements import contains, intrinsic, map_expression, map_statement, rebuild_call, with_body
from .arithmetic import Bindings, cast, constant, real
from .exponential import erf, exp, exp2, exp10, log, log1p, logarithm, sigmoid, tanh
from .hyperbolic import acosh, asinh, atanh, cosh, sinh
from .power import constant_power, power
from .trigonometric import acos, asin, atan, cos, sin, tan

MOST_ULP = {
    "exp": 2, "exp2": 2, "exp10": 3, "log": 2, "log2": 3, "log10": 3, "log1p": 4, "tanh": 6, "sigmoid": 4, "erf": 6,
    "pow": 1, "sin": 2, "cos": 2, "tan": 4, "sinh": 4, "cosh": 3, "atan": 4, "asin": 4, "acos": 4, "asinh": 4,
    "acosh": 4, "atanh": 4, "rsqrt": 2,
}  # fmt: skip
"""Largest error of each function over all of float32, in units in the last place of the exact result."""
FUNCTIONS: dict[str, Callable[[Bindings, Any], Any]] = {
    "exp": exp, "exp2": exp2, "exp10": exp10, "log": log, "log2": logarithm(2), "log10": logarithm(10), "log1p": log1p,
    "tanh": tanh, "sigmoid": sigmoid, "erf": erf, "sin": sin, "cos": cos, "tan": tan, "sinh": sinh, "cosh": cosh,
    "atan": atan, "asin": asin, "acos": acos, "asinh": asinh, "acosh": acosh, "atanh": atanh,
    "rsqrt": lambda let, x: real(1, x) / tirx.sqrt(x),
}  # fmt: skip
"""Formulas of one float32 argument, by the name of TVM's intrinsic."""
_HALF = ("float16", "bfloat16")


def replace_calls(function: tirx.PrimFunc) -> tirx.PrimFunc:
    """Replace the calls of elementary functions on float32 (and on 16-bit numbers, through float32) in a kernel.

    The kernel must have no blocks, and its vectorised loops must be lowered to vectors. Calls on float64 keep calling the
    C library. Returns the same function object if it has no such calls.
    """
    if not contains(function.body, (tvm.ir.Call,), is_replaced):
        return function
    return with_body(function, map_statement(function.body, _with_arithmetic))


def is_replaced(expr: Any) -> bool:
    """Whether an expression is a call that `replace_calls` replaces."""
    return isinstance(expr, tvm.ir.Call) and bool(_function(expr))


def _function(call: Any) -> str:
    """Return the name of the called function if it has a formula, else an empty string."""
    name = intrinsic(call)
    return name if (name in FUNCTIONS or name == "pow") and _kind(call) in ("float32", *_HALF) else ""


def _kind(call: Any) -> str:
    return str(call.ty.dtype).partition("x")[0] if isinstance(call.ty, tvm.ir.PrimType) else ""


def _power(let: Bindings, x: Any, y: Any) -> Any:
    """``x ** y`` of variables of type float32; ``y`` may be a constant."""
    scalar = y.value if isinstance(y, tirx.Broadcast) else y
    if isinstance(scalar, tirx.FloatImm) and (known := constant_power(let, x, float(scalar.value))) is not None:
        return known
    return power(let, x, let(y))


def _with_arithmetic(expr: Any) -> tuple[list[Any], Any]:
    """Return the statements that must run first, and the expression that uses their results."""
    let = Bindings()
    return let.statements, _Replacer(let).visit(expr)


class _Replacer:
    """Rebuilds one expression.

    Statements hoisted out of an `if_then_else` run even if its condition is false, and the condition may guard a read
    outside a tensor. So hoisted arguments are evaluated under all conditions around them.
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
        value = _power(self.let, first, *others) if name == "pow" else FUNCTIONS[name](self.let, first)
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
