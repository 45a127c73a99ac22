"""Arithmetic of quantised tensors, shared by the converters of the quantised operators.

Products of integers are summed in float32 where every sum is known to stay below 2^24, so that float32 holds it exactly:
the libraries' float32 kernels then compute what integers would, and fast. Elsewhere sums are int32.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from tvm import relax

from ...tensor_types import dtype_of
from ..widen import WIDER
from .nodes import Node, constant_of

RANGES = {
    "int2": (-2, 1),
    "uint2": (0, 3),
    "int4": (-8, 7),
    "uint4": (0, 15),
    "int8": (-128, 127),
    "uint8": (0, 255),
    "int16": (-32768, 32767),
    "uint16": (0, 65535),
}
"""Least and greatest value of the types that are quantised to; those below a byte are held in a wider one."""
_EXACT = 1 << 24


def along(node: Node, value: relax.Expr, axis: int, rank: int) -> relax.Expr:
    """A scalar or a vector along one axis, in a shape that broadcasts against a tensor of some rank."""
    count = math.prod(node.shape(value, "a scale or zero point"))
    shape = [1] * rank
    if count > 1:
        shape[axis] = count
    return node.emit(relax.op.reshape(value, shape if rank else ()))


def cast(node: Node, value: relax.Expr, dtype: str) -> relax.Expr:
    """A tensor in another data type."""
    return value if dtype_of(value) == dtype else node.emit(relax.op.astype(value, dtype))


def is_zero(value: relax.Expr | None) -> bool:
    """Whether a zero point is left out, or known to be nothing but zeros."""
    known = constant_of(value)
    return value is None or (known is not None and not known.astype("int64").any())


def centred(node: Node, value: relax.Expr, zero: relax.Expr | None, dtype: str) -> relax.Expr:
    """A tensor less its zero point (which broadcasts), exact in the type asked for."""
    value = cast(node, value, dtype)
    return value if is_zero(zero) else node.emit(relax.op.subtract(value, cast(node, zero, dtype)))


def sum_dtype(node: Node, left: relax.Expr, right: relax.Expr, right_zero: relax.Expr | None, terms: int) -> str:
    """float32 where sums of products of two 8-bit tensors are exact in it, else int32.

    Parameters
    ----------
    terms : int
        Products in a sum.
    """
    if any(dtype_of(value) not in ("int8", "uint8") for value in (left, right)):
        return "int32"
    largest = 255 * 255 * terms  # both less their zero points
    weights = constant_of(right)
    if weights is not None:
        zero = constant_of(right_zero)
        if right_zero is None or (zero is not None and zero.size == 1):
            offset = 0 if zero is None else int(zero.reshape(-1)[0])
            largest = min(largest, 255 * int(np.abs(weights.astype("int64") - offset).max(initial=0)) * terms)
    return "float32" if largest < _EXACT else "int32"


def quantize(node: Node, value: relax.Expr, scale: relax.Expr, zero: relax.Expr | None, dtype: str) -> relax.Expr:
    """Round ``value / scale`` half to even, add the zero point, saturate.

    Scale and zero point broadcast; the division is that of float32, as the standard's and ONNX Runtime's.
    """
    quotient = node.emit(relax.op.divide(cast(node, value, "float32"), cast(node, scale, "float32")))
    return saturate(node, quotient, zero, dtype)


def saturate(node: Node, value: relax.Expr, zero: relax.Expr | None, dtype: str) -> relax.Expr:
    """Round a float32 tensor half to even, add the zero point, and bound it by its type."""
    least, greatest = range_of(node, dtype)
    rounded = node.emit(relax.op.round(value))
    if not is_zero(zero):
        rounded = node.emit(relax.op.add(rounded, cast(node, zero, "float32")))
    return cast(node, node.emit(relax.op.clip(rounded, least, greatest)), WIDER.get(dtype, dtype))


def dequantize(node: Node, value: relax.Expr, scale: relax.Expr, zero: relax.Expr | None) -> relax.Expr:
    """``(value - zero) * scale`` in float32; scale and zero point broadcast."""
    wide = dtype_of(value) in ("int32", "uint32")  # float32 does not hold all of these
    whole = centred(node, value, zero, "int64" if wide else "float32")
    return node.emit(relax.op.multiply(cast(node, whole, "float32"), cast(node, scale, "float32")))


def range_of(node: Node, dtype: str) -> tuple[int, int]:
    """Least and greatest value of a type that is quantised to."""
    if dtype not in RANGES:
        raise node.unsupported(
            f"it quantises to {dtype}; {', '.join(RANGES)} are allowed: quantise the model to 8 bits, or leave it in floats"
        )
    return RANGES[dtype]


def scalar(value: Any, dtype: str) -> relax.Expr:
    """A constant of no dimensions."""
    return relax.const(np.asarray(value, dtype))
