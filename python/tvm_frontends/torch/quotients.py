"""Quotients and remainders of torch.export programs, including divisors 0 and -1."""

from __future__ import annotations

from tvm import relax

from ..division import float_remainder, safe_divisor
from .elementwise import operator_name, product_type
from .node_calls import Call, converter, is_float


@converter("div.Tensor", "div.Scalar", "div.Tensor_mode", "div.Scalar_mode", "floor_divide.default")
def divide(call: Call) -> relax.Expr:
    """True division, of whole numbers, too, or a quotient that is rounded to zero or down."""
    x, y = call.tensor("self", product_type(call)), call.tensor("other", product_type(call))
    mode = "floor" if operator_name(call) == "floor_divide" else call.arguments.get("rounding_mode")
    if mode is None:
        return call.cast(call.emit(relax.op.divide(x, y)), call.dtype)
    if is_float(call.dtype):
        if mode == "trunc":
            return call.cast(call.emit(relax.op.trunc(call.emit(relax.op.divide(x, y)))), call.dtype)
        return call.cast(_float_remainder(call, x, y, "quotient"), call.dtype)
    y, negated = safe_divisor(call.emit, y)
    quotient = call.emit(relax.op.divide(x, y) if mode == "trunc" else relax.op.floor_divide(x, y))
    return quotient if negated is None else call.emit(relax.op.where(negated, relax.op.negative(quotient), quotient))


@converter("remainder.Tensor", "remainder.Scalar", "remainder.Scalar_Tensor", "fmod.Tensor", "fmod.Scalar")
def remainder(call: Call) -> relax.Expr:
    """Remainder with the sign of the divisor, or of the dividend (fmod)."""
    x, y = call.tensor("self", call.dtype), call.tensor("other", call.dtype)
    if is_float(call.dtype):
        return _float_remainder(call, x, y, operator_name(call))
    y, _ = safe_divisor(call.emit, y)
    return call.emit((relax.op.mod if operator_name(call) == "fmod" else relax.op.floor_mod)(x, y))


def _float_remainder(call: Call, x: relax.Expr, y: relax.Expr, kind: str) -> relax.Expr:
    """One of the kinds of `float_remainder`."""
    x, y = (call.emit(relax.op.broadcast_to(value, call.shape)) for value in (x, y))
    return call.emit_te(float_remainder(kind), x, y, name=f"float_{kind}")
