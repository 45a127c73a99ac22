"""Sine, cosine, tangent and their inverses, with the polynomials of Cephes (Moshier, 1992)."""

from __future__ import annotations

import math
from typing import Any

from tvm import tirx

from .arithmetic import Bindings, absolute, cast, equals, integer, polynomial, real, with_sign

_SIN = (-1.9515295891e-4, 8.3321608736e-3, -1.6666654611e-1)
_COS = (2.443315711809948e-5, -1.388731625493765e-3, 4.166664568298827e-2)
_ATAN = (8.05374449538e-2, -1.38776856032e-1, 1.99777106478e-1, -3.33329491539e-1)
_ASIN = (4.2163199048e-2, 2.4181311049e-2, 4.5470025998e-2, 7.4953002686e-2, 1.6666752422e-1)
_TURNS = (85445659, 240010261, 88048874, 524801235, 249589169, 156865476, 119571452)
"""The first 203 fractional bits of 1 / (2 pi), 29 in each part: a part times a float32 is exact in float64."""


def _angle(let: Bindings, x: Any) -> tuple[Any, Any]:
    """Reduce an angle to -pi/4 to pi/4, and return it with the number of quarter turns removed.

    Accurate for all angles (Payne and Hanek, 1983): whole turns are dropped from each product before the sum.
    """
    finite = tirx.Select(absolute(x) < real(math.inf, x), x, real(0, x))
    wide = let(cast("float64", finite))
    turns, lost = None, None
    for position, bits in enumerate(_TURNS):
        product = let(wide * real(math.ldexp(bits, -29 * (position + 1)), wide))
        part = let(product - tirx.nearbyint(product))
        if turns is None:
            turns, lost = part, real(0, wide)
            continue
        total = let(turns + part)  # `lost` collects rounding errors, which matter for small remainders
        taken = let(total - turns)
        lost = let(lost + ((turns - (total - taken)) + (part - taken)))
        turns = total
    quarters = let(turns * real(4, wide))
    whole = let(tirx.nearbyint(quarters))
    reduced = ((quarters - whole) + lost * real(4, wide)) * real(math.pi / 2, wide)
    infinite = let(x - x)  # NaN for infinities
    return let(cast("float32", reduced) + infinite), let(cast("int32", whole))


def _sin_and_cos(let: Bindings, r: Any) -> tuple[Any, Any]:
    z = let(r * r)
    sine = let(polynomial(_SIN, z) * z * r + r)
    return sine, let(polynomial(_COS, z) * z * z - z * real(0.5, z) + real(1, z))


def _shifted_sine(let: Bindings, x: Any, quarters: int) -> Any:
    reduced, quarter = _angle(let, x)
    sine, cosine = _sin_and_cos(let, reduced)
    position = let(quarter + integer(quarters))
    odd = tirx.bitwise_and(position, integer(1)) > integer(0)
    value = let(tirx.Select(odd, cosine, sine))
    return tirx.Select(tirx.bitwise_and(position, integer(2)) > integer(0), -value, value)


def sin(let: Bindings, x: Any) -> Any:
    """The sine."""
    return tirx.Select(equals(x, 0), x, _shifted_sine(let, x, 0))


def cos(let: Bindings, x: Any) -> Any:
    """The cosine."""
    return _shifted_sine(let, x, 1)


def tan(let: Bindings, x: Any) -> Any:
    """The tangent."""
    reduced, quarter = _angle(let, x)
    sine, cosine = _sin_and_cos(let, reduced)
    odd = tirx.bitwise_and(quarter, integer(1)) > integer(0)
    return tirx.Select(equals(x, 0), x, tirx.Select(odd, -cosine / sine, sine / cosine))


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
