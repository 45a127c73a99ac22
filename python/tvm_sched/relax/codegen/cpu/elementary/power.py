"""Powers of float32, computed in float64, whose 29 additional bits absorb the amplified error of the logarithm."""

from __future__ import annotations

import math
from typing import Any

from tvm import tirx

from .arithmetic import Bindings, absolute, at_least, at_most, cast, equals, nan, polynomial, real, reinterpret

_LOG2 = tuple(2 / math.log(2) / k for k in range(17, 0, -2))
"""Of log2((1 + s) / (1 - s)) / s, in s^2."""
_EXP2 = tuple(math.log(2) ** k / math.factorial(k) for k in range(10, -1, -1))
_ROUND64 = 1.5 * 2.0**52
_ROOT_HALF = 0x3FE6A09E667F3BCD
_MANTISSA = (1 << 52) - 1


def _long(value: int) -> Any:
    return tirx.IntImm("int64", value)


def _log2(let: Bindings, x: Any) -> Any:
    """Return log2 of a positive float32, 0 or infinity, as float64."""
    wide = let(cast("float64", x))  # every float32 is a normal float64
    shifted = let(reinterpret("int64", wide) - _long(_ROOT_HALF))
    e = cast("float64", cast("int32", tirx.shift_right(shifted, _long(52))))
    m = let(reinterpret("float64", tirx.bitwise_and(shifted, _long(_MANTISSA)) + _long(_ROOT_HALF)))
    s = let((m - real(1, m)) / (m + real(1, m)))
    value = let(polynomial(_LOG2, let(s * s)) * s + e)
    ends = tirx.Select(equals(wide, 0), real(-math.inf, wide), wide)
    return let(tirx.Select(tirx.And(wide > real(0, wide), wide < real(math.inf, wide)), value, ends))


def _exp2(let: Bindings, t: Any) -> Any:
    t = let(at_most(let(at_least(t, -200.0)), 200.0))
    shifted = let(t + real(_ROUND64, t))
    fraction = let(t - (shifted - real(_ROUND64, t)))
    n = reinterpret("int64", shifted) - reinterpret("int64", real(_ROUND64, t))
    scale = reinterpret("float64", tirx.shift_left(n + _long(1023), _long(52)))
    return cast("float32", polynomial(_EXP2, fraction) * scale)


def power(let: Bindings, x: Any, y: Any) -> Any:
    """``x ** y`` as in the C standard, also for 0, infinity and NaN."""
    positive = let(absolute(x))
    wide = cast("float64", y)
    value = let(_exp2(let, let(wide * _log2(let, positive))))
    whole = let(tirx.EQ(tirx.floor(y), y))
    halved = let(y * real(0.5, y))
    odd = tirx.And(whole, tirx.NE(tirx.floor(halved), halved))
    minus = let(reinterpret("int32", x) < tirx.IntImm("int32", 0))
    signed = tirx.Select(tirx.And(minus, odd), -value, value)
    refused = tirx.And(tirx.And(x < real(0, x), x > real(-math.inf, x)), tirx.Not(whole))
    result = tirx.Select(tirx.And(refused, tirx.EQ(y, y)), nan(x), signed)
    unit = tirx.And(equals(positive, 1), equals(let(absolute(y)), math.inf))
    one = tirx.Or(tirx.Or(equals(x, 1), equals(y, 0)), unit)
    return tirx.Select(one, real(1, x), result)


def constant_power(let: Bindings, x: Any, exponent: float) -> Any:
    """``x`` to a constant exponent by multiplications and roots; None if these are not enough."""
    if exponent != exponent or exponent in (math.inf, -math.inf):
        return None
    if exponent == int(exponent) and 1 <= abs(exponent) <= 4:
        value = x
        for _ in range(int(abs(exponent)) - 1):
            value = value * x
        return value if exponent > 0 else real(1, x) / value
    if abs(exponent) == 0.5:  # as powers, -0 gives 0 and minus infinity gives infinity, unlike sqrt
        root = let(tirx.sqrt(x + real(0, x)))
        root = tirx.Select(equals(x, -math.inf), real(math.inf, x), root)
        return root if exponent > 0 else real(1, x) / root
    return None
