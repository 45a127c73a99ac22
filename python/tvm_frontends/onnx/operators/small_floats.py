"""Casts between float32 and floating point of 8 or 4 bits, with the standard's rounding and saturation."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cache

import numpy as np
import numpy.typing as npt
import tvm
from tvm import relax, te

from ...tensor_types import dtype_of
from .nodes import Node


@dataclass(frozen=True)
class Layout:
    """Bit layout of a format."""

    mantissa: int
    bias: int
    """Bits of the mantissa, and the bias of exponents."""
    largest: int
    """Code of the largest finite number."""
    infinite: int | None
    """Code of infinity, if the format has one."""
    nan: int
    negative_zero: bool


LAYOUTS = {
    "float8_e4m3fn": Layout(3, 7, 0x7E, None, 0x7F, True),
    "float8_e4m3fnuz": Layout(3, 8, 0x7F, None, 0x80, False),
    "float8_e5m2": Layout(2, 15, 0x7B, 0x7C, 0x7E, True),
    "float8_e5m2fnuz": Layout(2, 16, 0x7F, None, 0x80, False),
}
"""Formats with sign and mantissa, as in the standard's page on float8."""
EXPONENTS = "float8_e8m0fnu"
"""The format of powers of two, without sign."""
SMALL_FLOATS = {*LAYOUTS, EXPONENTS}
FLOAT4 = "float4_e2m1fn"
"""The format with the values 0, 1/2, 1, 3/2, 2, 3, 4, 6 and their negatives; float32 holds them (`widen`)."""


def decode(node: Node, x: relax.Expr) -> relax.Expr:
    """Return a tensor of 8-bit floating point as float32, which holds each of its values."""
    codes = node.builder.emit_te(
        lambda a: te.compute(a.shape, lambda *i: tvm.tirx.reinterpret("uint8", a(*i)).astype("int32"), name="codes"),
        x,
        primfunc_name_hint="float8_codes",
    )
    shape = node.sizes(x, "its input")
    flat = node.emit(relax.op.reshape(codes, (math.prod(shape),)))
    values = node.emit(relax.op.take(relax.const(_values(dtype_of(x))), flat, 0))
    return node.emit(relax.op.reshape(values, shape))


def encode(node: Node, x: relax.Expr, dtype: str, saturate: bool = True, rounding: str = "up") -> relax.Expr:
    """Return a float32 tensor in 8-bit floating point.

    Parameters
    ----------
    saturate : bool
        Whether too large values become the largest finite number, else infinity or NaN.
    rounding : {"up", "down", "nearest"}
        Rounding to powers of two (`EXPONENTS`); other formats round half to even.
    """

    def compute(a: te.Tensor) -> te.Tensor:
        def element(*i: tvm.tirx.Var) -> tvm.tirx.Expr:
            bits = tvm.tirx.reinterpret("uint32", a(*i))
            code = (
                _power_of_two(bits, saturate, rounding)
                if dtype == EXPONENTS
                else _rounded(bits, LAYOUTS[dtype], saturate)
            )
            return tvm.tirx.reinterpret(dtype, code.astype("uint8"))

        return te.compute(a.shape, element, name="encode")

    return node.builder.emit_te(compute, x, primfunc_name_hint=f"to_{dtype}")


def round_to_float4(node: Node, x: relax.Expr) -> relax.Expr:
    """Round a float32 tensor half to even to values of `FLOAT4`; too large values become 6.

    NaN becomes -0, as in ml_dtypes.
    """

    def compute(a: te.Tensor) -> te.Tensor:
        def number(value: float) -> tvm.tirx.Expr:
            return tvm.tirx.const(value, "float32")

        def element(*i: tvm.tirx.Var) -> tvm.tirx.Expr:
            value = a(*i)
            size = tvm.tirx.min(tvm.tirx.abs(value), number(6.0))
            # Steps are a half below 2, 1 below 4, and 2 above.
            step = tvm.tirx.Select(
                size < number(2.0), number(0.5), tvm.tirx.Select(size < number(4.0), number(1), number(2))
            )
            near = tvm.tirx.nearbyint(size / step) * step
            bits = tvm.tirx.reinterpret("uint32", near) | (tvm.tirx.reinterpret("uint32", value) & _u(0x80000000))
            bits = tvm.tirx.Select(tvm.tirx.isnan(value), _u(0x80000000), bits)
            return tvm.tirx.reinterpret("float32", bits)

        return te.compute(a.shape, element, name="float4")

    return node.builder.emit_te(compute, x, primfunc_name_hint="to_float4")


def _rounded(bits: tvm.tirx.Expr, layout: Layout, saturate: bool) -> tvm.tirx.Expr:
    """Return the code of a float32 number, passed as bits, rounded half to even."""
    sign, size = bits >> _u(31), bits & _u(0x7FFFFFFF)
    dropped = 23 - layout.mantissa
    half = _u((1 << (dropped - 1)) - 1)
    even = (size >> _u(dropped)) & _u(1)
    # Rounding up to a power of two carries into the exponent, whose bits follow the mantissa's.
    normal = ((size + half + even) >> _u(dropped)) - _u((127 - layout.bias) << layout.mantissa)
    # Codes of subnormal numbers count multiples of the smallest number: adding `magic` in float32 rounds to these.
    step = 24 - layout.bias - layout.mantissa  # exponent of the number whose last place is the smallest number
    magic = tvm.tirx.const(2.0**step, "float32")
    moved = tvm.tirx.reinterpret("uint32", tvm.tirx.reinterpret("float32", size) + magic)
    below = moved - _u((127 + step) << 23)
    code = tvm.tirx.Select(size < _u((128 - layout.bias) << 23), below, normal)
    infinity, is_nan = _u(0x7F800000), size > _u(0x7F800000)
    over = layout.infinite if layout.infinite is not None else layout.nan
    beyond = _u(layout.largest) if saturate else _u(over)
    code = tvm.tirx.Select(tvm.tirx.any(size == infinity, code > _u(layout.largest)), beyond, code)
    code = tvm.tirx.Select(is_nan, _u(layout.nan), code)
    signed = code | (sign << _u(7))
    return signed if layout.negative_zero else tvm.tirx.Select(code == _u(0), code, signed)


def _power_of_two(bits: tvm.tirx.Expr, saturate: bool, rounding: str) -> tvm.tirx.Expr:
    """Return the exponent of a float32 number, passed as bits, whatever its sign."""
    exponent, fraction = (bits >> _u(23)) & _u(0xFF), bits & _u(0x7FFFFF)
    if rounding == "down":
        return exponent
    above = fraction > _u(0)
    if rounding == "nearest":
        half = _u(0x400000)
        above = tvm.tirx.any(fraction > half, tvm.tirx.all(fraction == half, exponent > _u(0)))
    last = 0xFE if saturate else 0xFF
    return tvm.tirx.Select(tvm.tirx.all(above, exponent < _u(last)), exponent + _u(1), exponent)


@cache
def _values(dtype: str) -> npt.NDArray[np.float32]:
    """Return the value of each code."""
    import ml_dtypes

    return np.arange(256, dtype="uint8").view(getattr(ml_dtypes, dtype)).astype("float32")


def _u(value: int) -> tvm.tirx.Expr:
    return tvm.tirx.const(value, "uint32")
