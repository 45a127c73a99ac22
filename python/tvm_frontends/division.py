"""Integer division without traps, and floating-point remainders, for the converters of ONNX and torch."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import tvm
from tvm import relax, te

from .tensor_types import dtype_of


def safe_divisor(emit: Callable[[relax.Expr], relax.Expr], y: relax.Expr) -> tuple[relax.Expr, relax.Expr | None]:
    """Return integer divisors with 1 in place of 0 and -1; constants without these values are returned unchanged.

    Processors trap when they divide by 0, whose result is undefined, or the least number by -1.

    Parameters
    ----------
    emit
        Binds an expression to a variable.

    Returns
    -------
    divisor
    negated : relax.Expr or None
        Where the divisor was -1, so that the quotient must be negated; None if it is nowhere.
    """
    if isinstance(y, tvm.ir.GenericConst) and not np.isin(y.value.numpy(), (0, -1)).any():
        return y, None
    kind = dtype_of(y)
    traps, negated = relax.op.equal(y, relax.const(0, kind)), None
    if kind.startswith("int"):
        negated = emit(relax.op.equal(y, relax.const(-1, kind)))
        traps = relax.op.logical_or(traps, negated)
    return emit(relax.op.where(traps, relax.const(1, kind), y)), negated


def float_remainder(kind: str) -> Callable[[te.Tensor, te.Tensor], te.Tensor]:
    """Return a tensor expression for the remainder of two tensors of one shape and one floating-point type.

    Parameters
    ----------
    kind
        ``fmod``: with the sign of the dividend. ``remainder``: with the sign of the divisor. ``quotient``: the integer
        quotient of the latter.
    """

    def compute(a: te.Tensor, b: te.Tensor) -> te.Tensor:
        wide = "float64" if a.dtype == "float64" else "float32"
        function = "fmod" if wide == "float64" else "fmodf"

        def element(*i: tvm.tirx.Var) -> tvm.tirx.Expr:
            number, by = a(*i).astype(wide), b(*i).astype(wide)
            remainder = tvm.tirx.call_pure_extern(wide, function, number, by)
            if kind == "fmod":
                return remainder.astype(a.dtype)
            other = tvm.tirx.any(tvm.tirx.all(remainder < 0, by > 0), tvm.tirx.all(remainder > 0, by < 0))
            if kind == "remainder":
                return tvm.tirx.Select(other, remainder + by, remainder).astype(a.dtype)
            one = tvm.tirx.const(1, wide)
            quotient = (number - remainder) / by - tvm.tirx.Select(other, one, tvm.tirx.const(0, wide))
            return tvm.tirx.Select(by == 0, number / by, tvm.tirx.nearbyint(quotient)).astype(a.dtype)

        return te.compute(a.shape, element, name=kind)

    return compute
