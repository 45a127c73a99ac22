"""The table of elementary functions and their accuracy."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tvm import tirx

from .arithmetic import Bindings, real
from .exponential import erf, exp, exp2, exp10, log, log1p, logarithm, sigmoid, tanh
from .hyperbolic import acosh, asinh, atanh, cosh, sinh
from .power import constant_power, power
from .trigonometric import acos, asin, atan, cos, sin, tan

__all__ = ["FUNCTIONS", "MOST_ULP", "power_of"]

MOST_ULP = {
    "exp": 2, "exp2": 2, "exp10": 3, "log": 2, "log2": 3, "log10": 3, "log1p": 4, "tanh": 6, "sigmoid": 4, "erf": 6,
    "pow": 1, "sin": 2, "cos": 2, "tan": 4, "sinh": 4, "cosh": 3, "atan": 4, "asin": 4, "acos": 4, "asinh": 4,
    "acosh": 4, "atanh": 4, "rsqrt": 2,
}  # fmt: skip
"""Largest error of each function, in units of the last place of the right result, over all of float32."""


def _rsqrt(let: Bindings, x: Any) -> Any:
    return real(1, x) / tirx.sqrt(x)


FUNCTIONS: dict[str, Callable[[Bindings, Any], Any]] = {
    "exp": exp, "exp2": exp2, "exp10": exp10, "log": log, "log2": logarithm(2), "log10": logarithm(10), "log1p": log1p,
    "tanh": tanh, "sigmoid": sigmoid, "erf": erf, "sin": sin, "cos": cos, "tan": tan, "sinh": sinh, "cosh": cosh,
    "atan": atan, "asin": asin, "acos": acos, "asinh": asinh, "acosh": acosh, "atanh": atanh, "rsqrt": _rsqrt,
}  # fmt: skip
"""Formulas of one float32 argument, by the name of TVM's intrinsic."""


def power_of(let: Bindings, x: Any, y: Any) -> Any:
    """``x ** y`` of variables of type float32; ``y`` may be a constant."""
    scalar = y.value if isinstance(y, tirx.Broadcast) else y
    if isinstance(scalar, tirx.FloatImm) and (known := constant_power(let, x, float(scalar.value))) is not None:
        return known
    return power(let, x, let(y))
