"""Write maximum and minimum with a constant so that NaN is preserved, as in NumPy, ONNX and PyTorch."""

from __future__ import annotations

from typing import Any

import tvm_ffi
from tvm import tirx


def keep_not_a_number(function: tirx.PrimFunc) -> tirx.PrimFunc:
    """Let ``max(x, c)`` and ``min(x, c)`` of a floating-point constant be NaN where x is, at no cost.

    TVM's code for ``max(a, b)`` is ``a > b ? a : b``, which is ``b`` where either is NaN: the constant goes first.

    Parameters
    ----------
    function : tvm.tirx.PrimFunc
        As the last step before code is generated: a simplification moves constants back.
    """
    body = tvm_ffi.structural_map(function.body, ((tirx.Max, tirx.Min), _ordered))
    return function if body.same_as(function.body) else function.with_body(body)


def _ordered(expr: Any) -> Any:
    return type(expr)(expr.b, expr.a) if _is_constant(expr.b) and not _is_constant(expr.a) else expr


def _is_constant(expr: Any) -> bool:
    return isinstance(expr.value if isinstance(expr, tirx.Broadcast) else expr, tirx.FloatImm)
