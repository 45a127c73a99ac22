"""Quotients and remainders of torch.export programs, of divisors of 0 and -1 too."""

from __future__ import annotations

import tvm
from tvm import relax, te

from .torch_operators import constant, operator_name, product_type
from .torch_registry import Call, converter, dtype_of, is_float


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
    y, negated = _safe_divisor(call, y)
    quotient = call.emit(relax.op.divide(x, y) if mode == "trunc" else relax.op.floor_divide(x, y))
    return quotient if negated is None else call.emit(relax.op.where(negated, relax.op.negative(quotient), quotient))


@converter("remainder.Tensor", "remainder.Scalar", "remainder.Scalar_Tensor", "fmod.Tensor", "fmod.Scalar")
def remainder(call: Call) -> relax.Expr:
    """With the sign of the divisor, or of the dividend (fmod)."""
    x, y = call.tensor("self", call.dtype), call.tensor("other", call.dtype)
    if is_float(call.dtype):
        return _float_remainder(call, x, y, operator_name(call))
    y, _ = _safe_divisor(call, y)
    return call.emit((relax.op.mod if operator_name(call) == "fmod" else relax.op.floor_mod)(x, y))


def _safe_divisor(call: Call, y: relax.Expr) -> tuple[relax.Expr, relax.Expr | None]:
    """1 for 0, for which torch raises an error, and for -1, at whose quotient with the least number processors trap.

    The second result says where -1 stood.
    """
    if isinstance(y, tvm.ir.GenericConst) and not (y.value.numpy() == 0).any() and not (y.value.numpy() == -1).any():
        return y, None
    traps, negated = relax.op.equal(y, constant(0, y)), None
    if dtype_of(y).startswith("int"):
        negated = call.emit(relax.op.equal(y, constant(-1, y)))
        traps = relax.op.logical_or(traps, negated)
    return call.emit(relax.op.where(traps, constant(1, y), y)), negated


def _float_remainder(call: Call, x: relax.Expr, y: relax.Expr, kind: str) -> relax.Expr:
    """``fmod``, the remainder of the sign of the divisor, or the quotient that belongs to the latter, as torch has them."""
    x, y = (call.emit(relax.op.broadcast_to(value, call.shape)) for value in (x, y))

    def compute(a: te.Tensor, b: te.Tensor) -> te.Tensor:
        wide = "float64" if a.dtype == "float64" else "float32"
        function = "fmod" if wide == "float64" else "fmodf"

        def element(*i: tvm.tirx.Var) -> tvm.tirx.Expr:
            number, by = a(*i).astype(wide), b(*i).astype(wide)
            rest = tvm.tirx.call_pure_extern(wide, function, number, by)
            if kind == "fmod":
                return rest.astype(a.dtype)
            other = tvm.tirx.any(tvm.tirx.all(rest < 0, by > 0), tvm.tirx.all(rest > 0, by < 0))
            if kind == "remainder":
                return tvm.tirx.Select(other, rest + by, rest).astype(a.dtype)
            one = tvm.tirx.const(1, wide)
            quotient = (number - rest) / by - tvm.tirx.Select(other, one, tvm.tirx.const(0, wide))
            return tvm.tirx.Select(by == 0, number / by, tvm.tirx.nearbyint(quotient)).astype(a.dtype)

        return te.compute(a.shape, element, name=kind)

    return call.emit_te(compute, x, y, name=f"float_{kind}")
