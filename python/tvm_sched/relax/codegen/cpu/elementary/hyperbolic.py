"""Hyperbolic functions and their inverses."""

from __future__ import annotations

from typing import Any

from tvm import tirx

from .arithmetic import Bindings, absolute, at_most, integer, nan, real, scaled, with_sign
from .exponential import LN2, exp_parts, expm1, log, log1p


def sinh(let: Bindings, x: Any) -> Any:
    """The hyperbolic sine."""
    magnitude = let(absolute(x))
    t = let(expm1(let, let(at_most(magnitude, 88.0))) * real(0.5, x))
    moderate = t + t / (t * real(2, x) + real(1, x))
    return with_sign(tirx.Select(magnitude > real(88, x), _half_exp(let, magnitude), moderate), x)


def cosh(let: Bindings, x: Any) -> Any:
    """The hyperbolic cosine."""
    half = let(_half_exp(let, let(absolute(x))))
    return half + real(0.25, x) / half


def _half_exp(let: Bindings, x: Any) -> Any:
    """``exp(x) / 2``, which is finite where sinh and cosh are."""
    part, n = exp_parts(let, let(at_most(x, 90.0)))
    return scaled(let, part + real(1, x), let(n - integer(1)))


def asinh(let: Bindings, x: Any) -> Any:
    """The inverse of the hyperbolic sine."""
    a = let(absolute(x))
    huge = let(a > real(1e9, x))
    bounded = let(tirx.Select(huge, real(1, x), a))
    square = let(bounded * bounded)
    moderate = log1p(let, let(bounded + square / (real(1, x) + tirx.sqrt(square + real(1, x)))))
    return with_sign(tirx.Select(huge, log(let, a) + real(LN2, x), moderate), x)


def acosh(let: Bindings, x: Any) -> Any:
    """The inverse of the hyperbolic cosine."""
    huge = let(x > real(1e9, x))
    t = let(tirx.Select(huge, real(1, x), x) - real(1, x))
    moderate = log1p(let, let(t + tirx.sqrt(t * real(2, x) + t * t)))
    value = tirx.Select(huge, log(let, x) + real(LN2, x), moderate)
    return tirx.Select(x < real(1, x), nan(x), value)


def atanh(let: Bindings, x: Any) -> Any:
    """The inverse of the hyperbolic tangent."""
    a = let(absolute(x))
    return with_sign(log1p(let, let(real(2, x) * a / (real(1, x) - a))) * real(0.5, x), x)
