"""exp, log and derived functions: polynomials of Cephes (Moshier, 1992), ratios fitted to least relative error."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from tvm import tirx

from .arithmetic import (
    Bindings,
    absolute,
    at_least,
    at_most,
    bits_of,
    cast,
    constant,
    equals,
    float_of,
    integer,
    nan,
    polynomial,
    power_of_two,
    real,
    scaled,
)

LN2 = math.log(2)
_LOG2_E = math.log2(math.e)
_LN2_HIGH, _LN2_LOW = 0.693359375, -2.12194440e-4
"""Two summands of log(2); the first has few digits, so that its product with an integer is exact."""
_EXP = (1.9875691500e-4, 1.3981999507e-3, 8.3334519073e-3, 4.1665795894e-2, 1.6666665459e-1, 5.0000001201e-1)
_LOG = (
    7.0376836292e-2, -1.1514610310e-1, 1.1676998740e-1, -1.2420140846e-1, 1.4249322787e-1, -1.6668057665e-1,
    2.0000714765e-1, -2.4999993993e-1, 3.3333331174e-1,
)  # fmt: skip
_TANH = (
    (1.3319164935e-08, 2.0583556101e-05, 3.4940394484e-03, 1.3379722171e-01, 9.9999997902e-01),
    (7.7620597732e-07, 3.2831005936e-04, 2.5871092154e-02, 4.6713037417e-01, 1.0),
)
_ERF = (
    (2.0419714566e-06, 2.8480774566e-04, 3.7795849790e-03, 5.2790215127e-02, 1.9078330533e-01, 1.1283791454e00),
    (3.8004035564e-05, 1.1652061489e-03, 1.4997390922e-02, 1.1425730328e-01, 5.0241002195e-01, 1.0),
)
_ROUND = 1.5 * 2.0**23
_SMALLEST_NORMAL = 2.0**-126


def exp_parts(let: Bindings, x: Any) -> tuple[Any, Any]:
    """Return ``p`` and ``n``, so that ``exp(x)`` is ``(1 + p) * 2**n``, for x from -104 to 89."""
    shifted = let(x * real(_LOG2_E, x) + real(_ROUND, x))
    whole = let(shifted - real(_ROUND, x))
    remainder = let(x - whole * real(_LN2_HIGH, x) - whole * real(_LN2_LOW, x))
    return let(polynomial(_EXP, remainder) * (remainder * remainder) + remainder), let(
        bits_of(shifted) - integer(0x4B400000)
    )


def exp(let: Bindings, x: Any) -> Any:
    """The exponential function."""
    part, n = exp_parts(let, let(at_most(let(at_least(x, -104.0)), 89.0)))
    return scaled(let, part + real(1, x), n)


def exp2(let: Bindings, x: Any) -> Any:
    """2 to a power."""
    x = let(at_most(let(at_least(x, -151.0)), 129.0))
    shifted = let(x + real(_ROUND, x))
    remainder = let((x - (shifted - real(_ROUND, x))) * real(LN2, x))
    part = polynomial(_EXP, remainder) * (remainder * remainder) + remainder + real(1, x)
    return scaled(let, part, let(bits_of(shifted) - integer(0x4B400000)))


def exp10(let: Bindings, x: Any) -> Any:
    """10 to a power."""
    x = let(at_most(let(at_least(x, -46.0)), 39.0))
    shifted = let(x * real(math.log2(10), x) + real(_ROUND, x))
    whole = let(shifted - real(_ROUND, x))
    high, low = 0.30102539062, 4.60503897e-6  # log10(2)
    remainder = let((x - whole * real(high, x) - whole * real(low, x)) * real(math.log(10), x))
    part = polynomial(_EXP, remainder) * (remainder * remainder) + remainder + real(1, x)
    return scaled(let, part, let(bits_of(shifted) - integer(0x4B400000)))


def expm1(let: Bindings, x: Any) -> Any:
    """``exp(x) - 1`` for x from -18 to 89."""
    part, n = exp_parts(let, x)
    scale = let(power_of_two(n - integer(1)))
    return (part * scale + (scale - real(0.5, x))) * real(2, x)


def _log_parts(let: Bindings, x: Any) -> tuple[Any, Any, Any]:
    """Return f, correction and e, so that ``log(x)`` of a positive number is ``f + correction + e * log(2)``."""
    tiny = let(x < real(_SMALLEST_NORMAL, x))
    bits = let(bits_of(tirx.Select(tiny, x * real(2.0**23, x), x)))
    shifted = let(bits - integer(0x3F3504F3))  # the square root of 1/2
    exponent = tirx.shift_right(shifted, integer(23)) + tirx.Select(
        tiny, constant(-23, "int32", x), constant(0, "int32", x)
    )
    e = let(cast("float32", exponent))
    f = let(float_of(tirx.bitwise_and(shifted, integer(0x007FFFFF)) + integer(0x3F3504F3)) - real(1, x))
    square = let(f * f)
    return f, let(f * square * polynomial(_LOG, f) - square * real(0.5, x)), e


def _with_limits(x: Any, value: Any) -> Any:
    """The logarithm where x is positive and finite; minus infinity, NaN, infinity elsewhere."""
    value = tirx.Select(x > real(0, x), value, tirx.Select(equals(x, 0), real(-math.inf, x), nan(x)))
    return tirx.Select(equals(x, math.inf), real(math.inf, x), value)


def log(let: Bindings, x: Any) -> Any:
    """The natural logarithm."""
    f, correction, e = _log_parts(let, x)
    value = e * real(_LN2_LOW, x) + correction + f + e * real(_LN2_HIGH, x)
    return _with_limits(x, let(value))


def logarithm(base: float) -> Callable[[Bindings, Any], Any]:
    """Return the formula of the logarithm to a base, as accurate as for base e."""
    per_e = math.log(2) / math.log(base)
    factor = 1 / math.log(base)
    high = float(int(per_e * 4096)) / 4096
    factor_high = float(int(factor * 256)) / 256

    def formula(let: Bindings, x: Any) -> Any:
        f, correction, e = _log_parts(let, x)
        low = e * real(per_e - high, x) + (f + correction) * real(factor - factor_high, x)
        value = low + correction * real(factor_high, x) + f * real(factor_high, x) + e * real(high, x)
        return _with_limits(x, let(value))

    return formula


def log1p(let: Bindings, x: Any) -> Any:
    """Return log(1 + x), with Kahan's correction for the rounding error of 1 + x."""
    u = let(x + real(1, x))
    d = let(u - real(1, x))
    exact = tirx.Select(equals(d, 0), real(1, x), d)
    corrected = let(log(let, u)) * (x / exact)
    infinite = tirx.Select(equals(x, math.inf), x, corrected)
    return tirx.Select(equals(d, 0), x, infinite)


def tanh(let: Bindings, x: Any) -> Any:
    """The hyperbolic tangent, a ratio of polynomials that is 1 from 9.02 on."""
    bounded = let(at_most(let(at_least(x, -9.02)), 9.02))
    z = let(bounded * bounded)
    value = let(bounded * polynomial(_TANH[0], z) / polynomial(_TANH[1], z))
    return at_most(let(at_least(value, -1.0)), 1.0)


def erf(let: Bindings, x: Any) -> Any:
    """The error function, a ratio of polynomials that is 1 from 3.93 on."""
    bounded = let(at_most(let(at_least(x, -3.93)), 3.93))
    z = let(bounded * bounded)
    value = let(bounded * polynomial(_ERF[0], z) / polynomial(_ERF[1], z))
    return at_most(let(at_least(value, -1.0)), 1.0)


def sigmoid(let: Bindings, x: Any) -> Any:
    """``1 / (1 + exp(-x))``, accurate also for tiny results."""
    e = let(exp(let, let(-absolute(x))))
    return tirx.Select(x < real(0, x), e, real(1, x)) / (e + real(1, x))
