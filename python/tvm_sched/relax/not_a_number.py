"""Write maximum and minimum with a constant so that NaN is preserved, as in NumPy, ONNX and PyTorch."""

from __future__ import annotations

from typing import Any

from tvm import tirx

from .statements import map_expression, map_statement


def keep_not_a_number(function: tirx.PrimFunc) -> tirx.PrimFunc:
    """Let ``max(x, c)`` and ``min(x, c)`` of a floating-point constant be NaN where x is, at no cost.

    TVM's code for ``max(a, b)`` is ``a > b ? a : b``, which is ``b`` where either is NaN: the constant goes first.

    Parameters
    ----------
    function : tvm.tirx.PrimFunc
        As the last step before code is generated: a simplification moves constants back.
    """
    body = map_statement(function.body, lambda value: ([], _ordered(value)))
    return function if body.same_as(function.body) else function.with_body(body)


def _ordered(expr: Any) -> Any:
    expr = map_expression(expr, _ordered)
    if isinstance(expr, (tirx.Max, tirx.Min)) and _is_constant(expr.b) and not _is_constant(expr.a):
        return type(expr)(expr.b, expr.a)
    return expr


def _is_constant(expr: Any) -> bool:
    return isinstance(expr.value if isinstance(expr, tirx.Broadcast) else expr, tirx.FloatImm)
