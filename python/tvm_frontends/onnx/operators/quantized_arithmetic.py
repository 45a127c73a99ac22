"""Arithmetic of quantised tensors for the converters of quantised operators.

If every sum of products is known to stay below 2^24, integers are multiplied in float32, which then holds them exactly
and has the fastest kernels. Otherwise sums are int32.
"""

from __future__ import annotations

import math

import numpy as np
from tvm import relax

from ...tensor_types import dtype_of
from ..widen import WIDER
from .nodes import Node, constant_of

RANGES = {
    "int2": (-2, 1), "uint2": (0, 3), "int4": (-8, 7), "uint4": (0, 15), "int8": (-128, 127), "uint8": (0, 255),
    "int16": (-32768, 32767), "uint16": (0, 65535),
}  # fmt: skip
"""Least and greatest value of the quantised types; a wider type holds those below a byte."""
_EXACT = 1 << 24


def along(node: Node, value: relax.Expr, axis: int, rank: int) -> relax.Expr:
    """Reshape a scalar or a vector along one axis, so that it broadcasts against a tensor of some rank."""
    count = math.prod(node.shape(value, "a scale or zero point"))
    shape = [1] * rank
    if count > 1:
        shape[axis] = count
    return node.emit(relax.op.reshape(value, shape if rank else ()))


def cast(node: Node, value: relax.Expr, dtype: str) -> relax.Expr:
    """Return a tensor in another type."""
    return value if dtype_of(value) == dtype else node.emit(relax.op.astype(value, dtype))


def is_zero(value: relax.Expr | None) -> bool:
    """Whether a zero point is left out, or is the constant 0."""
    known = constant_of(value)
    return value is None or (known is not None and not known.astype("int64").any())


def centred(node: Node, value: relax.Expr, zero: relax.Expr | None, dtype: str) -> relax.Expr:
    """Return a tensor minus its zero point (which broadcasts), exact in ``dtype``."""
    value = cast(node, value, dtype)
    return value if is_zero(zero) else node.emit(relax.op.subtract(value, cast(node, zero, dtype)))


def sum_dtype(node: Node, left: relax.Expr, right: relax.Expr, right_zero: relax.Expr | None, terms: int) -> str:
    """Return float32 if sums of products of two 8-bit tensors are exact in it, else int32.

    Parameters
    ----------
    terms : int
        Products in a sum.
    """
    if any(dtype_of(value) not in ("int8", "uint8") for value in (left, right)):
        return "int32"
    largest = 255 * 255 * terms  # both minus their zero points
    weights = constant_of(right)
    if weights is not None:
        zero = constant_of(right_zero)
        if right_zero is None or (zero is not None and zero.size == 1):
            offset = 0 if zero is None else int(zero.reshape(-1)[0])
            largest = min(largest, 255 * int(np.abs(weights.astype("int64") - offset).max(initial=0)) * terms)
    return "float32" if largest < _EXACT else "int32"


def quantize(node: Node, value: relax.Expr, scale: relax.Expr, zero: relax.Expr | None, dtype: str) -> relax.Expr:
    """Emit ``value / scale``, rounded half to even, plus the zero point, saturated.

    Scale and zero point broadcast; the division is in float32, as in the standard and in ONNX Runtime.
    """
    quotient = node.emit(relax.op.divide(cast(node, value, "float32"), cast(node, scale, "float32")))
    return saturate(node, quotient, zero, dtype)


def saturate(node: Node, value: relax.Expr, zero: relax.Expr | None, dtype: str) -> relax.Expr:
    """Round a float32 tensor half to even, add the zero point, and clamp it to its type."""
    least, greatest = range_of(node, dtype)
    rounded = node.emit(relax.op.round(value))
    if not is_zero(zero):
        rounded = node.emit(relax.op.add(rounded, cast(node, zero, "float32")))
    return cast(node, node.emit(relax.op.clip(rounded, least, greatest)), WIDER.get(dtype, dtype))


def dequantize(node: Node, value: relax.Expr, scale: relax.Expr, zero: relax.Expr | None) -> relax.Expr:
    """Emit ``(value - zero) * scale`` in float32; scale and zero point broadcast."""
    wide = dtype_of(value) in ("int32", "uint32")  # float32 does not hold all 32-bit integers
    whole = centred(node, value, zero, "int64" if wide else "float32")
    return node.emit(relax.op.multiply(cast(node, whole, "float32"), cast(node, scale, "float32")))


def range_of(node: Node, dtype: str) -> tuple[int, int]:
    """Return the least and greatest value of a quantised type."""
    if dtype not in RANGES:
        raise node.unsupported(
            f"it quantises to {dtype}; {', '.join(RANGES)} are allowed: quantise the model to 8 bits, or keep it in floats"
        )
    return RANGES[dtype]
