"""Sine, cosine, tangent and their inverses, with the polynomials of Cephes (Moshier, 1992)."""

from __future__ import annotations

import math
from typing import Any

from tvm import tirx

from .arithmetic import (
    Bindings,
    absolute,
    at_least,
    at_most,
    cast,
    integer,
    polynomial,
    real,
    reinterpret,
    same,
    with_sign,
)

LARGEST_ANGLE = 2.0**28
"""Up to here, in radians, sine, cosine and tangent have the error of `MOST_ULP`; beyond, the angle itself loses digits."""
_SIN = (-1.9515295891e-4, 8.3321608736e-3, -1.6666654611e-1)
_COS = (2.443315711809948e-5, -1.388731625493765e-3, 4.166664568298827e-2)
_ATAN = (8.05374449538e-2, -1.38776856032e-1, 1.99777106478e-1, -3.33329491539e-1)
_ASIN = (4.2163199048e-2, 2.4181311049e-2, 4.5470025998e-2, 7.4953002686e-2, 1.6666752422e-1)
_PI_2_HIGH, _PI_2_LOW = 1.57079631090164184570, 1.58932547735281966916e-8
"""Their sum is pi / 2; the first has 25 bits (as in fdlibm)."""
_ROUND64 = 1.5 * 2.0**52


def _angle(let: Bindings, x: Any) -> tuple[Any, Any]:
    """The rest of an angle after whole quarters of a turn, from -pi/4 to pi/4, and the number of the quarter."""
    wide = let(cast("float64", x))
    wide = let(at_most(let(at_least(wide, -3e9)), 3e9))
    shifted = let(wide * real(2 / math.pi, wide) + real(_ROUND64, wide))
    whole = let(shifted - real(_ROUND64, wide))
    rest = wide - whole * real(_PI_2_HIGH, wide) - whole * real(_PI_2_LOW, wide)
    quarter = cast("int32", tirx.bitwise_and(reinterpret("int64", shifted), tirx.IntImm("int64", 3)))
    infinite = let(x - x)  # NaN for infinities
    return let(cast("float32", rest) + infinite), let(quarter)


def _sin_and_cos(let: Bindings, r: Any) -> tuple[Any, Any]:
    z = let(r * r)
    sine = let(polynomial(_SIN, z) * z * r + r)
    return sine, let(polynomial(_COS, z) * z * z - z * real(0.5, z) + real(1, z))


def _turned(let: Bindings, x: Any, quarters: int) -> Any:
    rest, quarter = _angle(let, x)
    sine, cosine = _sin_and_cos(let, rest)
    position = let(quarter + integer(quarters))
    odd = tirx.bitwise_and(position, integer(1)) > integer(0)
    value = let(tirx.Select(odd, cosine, sine))
    return tirx.Select(tirx.bitwise_and(position, integer(2)) > integer(0), -value, value)


def sin(let: Bindings, x: Any) -> Any:
    """The sine."""
    return tirx.Select(same(x, 0), x, _turned(let, x, 0))


def cos(let: Bindings, x: Any) -> Any:
    """The cosine."""
    return _turned(let, x, 1)


def tan(let: Bindings, x: Any) -> Any:
    """The tangent."""
    rest, quarter = _angle(let, x)
    sine, cosine = _sin_and_cos(let, rest)
    odd = tirx.bitwise_and(quarter, integer(1)) > integer(0)
    return tirx.Select(same(x, 0), x, tirx.Select(odd, -cosine / sine, sine / cosine))


def atan(let: Bindings, x: Any) -> Any:
    """The inverse of the tangent."""
    magnitude = let(absolute(x))
    steep = let(magnitude > real(2.414213562373095, x))
    middle = let(magnitude > real(0.4142135623730950, x))
    above = tirx.Select(steep, real(-1, x), tirx.Select(middle, magnitude - real(1, x), magnitude))
    below = tirx.Select(steep, magnitude, tirx.Select(middle, magnitude + real(1, x), real(1, x)))
    start = tirx.Select(steep, real(math.pi / 2, x), tirx.Select(middle, real(math.pi / 4, x), real(0, x)))
    t = let(above / below)
    z = let(t * t)
    return with_sign(polynomial(_ATAN, z) * z * t + t + start, x)


def _asin_parts(let: Bindings, x: Any) -> tuple[Any, Any]:
    """The arc sine of t and whether t is the square root of ``(1 - |x|) / 2`` or ``|x|`` itself."""
    magnitude = let(absolute(x))
    steep = let(magnitude > real(0.5, x))
    z = let(tirx.Select(steep, (real(1, x) - magnitude) * real(0.5, x), magnitude * magnitude))
    t = let(tirx.Select(steep, tirx.sqrt(z), magnitude))
    return let(polynomial(_ASIN, z) * z * t + t), steep


def asin(let: Bindings, x: Any) -> Any:
    """The inverse of the sine."""
    value, steep = _asin_parts(let, x)
    return with_sign(tirx.Select(steep, real(math.pi / 2, x) - value * real(2, x), value), x)


def acos(let: Bindings, x: Any) -> Any:
    """The inverse of the cosine."""
    value, steep = _asin_parts(let, x)
    positive = tirx.Select(steep, value * real(2, x), real(math.pi / 2, x) - value)
    negative = tirx.Select(steep, real(math.pi, x) - value * real(2, x), real(math.pi / 2, x) + value)
    return tirx.Select(x < real(0, x), negative, positive)
