"""Recognise activation functions by their values, whatever operators a model writes them with.

A model may write SiLU as ``x * sigmoid(x)``, ``x / (1 + exp(-x))`` or ``x * 0.5 * (1 + tanh(x / 2))``. The operators that
follow a value are evaluated as a function of one number at fixed points in float64, and compared with oneDNN's functions.
Parameters (the slope of a leaky ReLU, the bounds of a clip) are solved from a few points and checked at all.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import erf as _erf
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float64]
Step = tuple[str, float, float]
"""An elementwise function of oneDNN: its name in descriptions, alpha and beta."""

_NEAR: Array = np.concatenate([np.linspace(-12, 12, 97), [-80.0, -40.0, -20.0, 20.0, 40.0, 80.0], [-0.01, 0.01]])
_OUTERMOST = 1e30
_BEYOND: Array = np.array([-_OUTERMOST, -1e6, -1e3, -200.0, 200.0, 1e3, 1e6, _OUTERMOST])
POINTS: Array = np.concatenate([_NEAR, _BEYOND])
"""Points of comparison: dense where activations bend, sparse to 80, where exp fits into float32, and `_BEYOND`.

`_BEYOND` reveals bounds such as 100. Forms with exp may overflow there, so values that are not finite are ignored.
"""
TOLERANCE = 3e-6
"""Relative error, and absolute error near 0: models write constants such as 1 / sqrt(2) with about seven digits."""
_FAR = 80.0
LARGEST_FLOAT32 = float(np.finfo(np.float32).max)
"""As a bound of a clip it stands for infinity."""


def sigmoid(x: Array) -> Array:
    """Compute the logistic function."""
    return 1 / (1 + np.exp(-x))


def _softplus(x: Array) -> Array:
    return np.logaddexp(0, x)


def gelu(x: Array) -> Array:
    """Compute GELU with the error function."""
    return 0.5 * x * (1 + erf(x / np.sqrt(2)))


def gelu_tanh(x: Array) -> Array:
    """Compute GELU with the hyperbolic tangent."""
    return 0.5 * x * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3)))


def erf(x: Any) -> Any:
    """Compute the error function of each element."""
    return np.vectorize(_erf, otypes=[float])(x)


_FUNCTIONS: dict[str, Callable[[Array, float, float], Array]] = {
    "linear": lambda x, a, b: a * x + b,
    "relu": lambda x, a, b: np.where(x > 0, x, a * x),
    "clip": lambda x, a, b: np.clip(x, a, b),
    "sigmoid": lambda x, a, b: sigmoid(x),
    "tanh": lambda x, a, b: np.tanh(x),
    "exp": lambda x, a, b: np.exp(x),
    "log": lambda x, a, b: np.log(x),
    "sqrt": lambda x, a, b: np.sqrt(x),
    "abs": lambda x, a, b: np.abs(x),
    "square": lambda x, a, b: x * x,
    "gelu": lambda x, a, b: gelu(x),
    "gelu_tanh": lambda x, a, b: gelu_tanh(x),
    "silu": lambda x, a, b: x * sigmoid(a * x),
    "mish": lambda x, a, b: x * np.tanh(_softplus(x)),
    "softplus": lambda x, a, b: _softplus(a * x) / a,
    "elu": lambda x, a, b: np.where(x > 0, x, a * np.expm1(x)),
    "hard_sigmoid": lambda x, a, b: np.clip(a * x + b, 0, 1),
    "hard_swish": lambda x, a, b: x * np.clip(a * x + b, 0, 1),
}
"""The functions of oneDNN by their name in descriptions (docs/formats/kernels.md), of ``x``, alpha and beta."""

_WITHOUT_PARAMETERS = ("tanh", "sigmoid", "exp", "gelu", "gelu_tanh", "mish", "square", "sqrt", "log")
_known: dict[bytes, list[Step] | None] = {}
_SCALES = (1.0, 0.5, 2.0)
"""Factors by which a model's function may differ from one without parameters, such as a missing half of GELU."""


def evaluate(step: Step, x: Array) -> Array:
    """Compute a step."""
    name, alpha, beta = step
    with np.errstate(all="ignore"):
        return _FUNCTIONS[name](x, alpha, beta)


def recognise(function: Callable[[Array], Array]) -> list[Step] | None:
    """Return the steps of oneDNN that compute a function, which takes and returns an array of float64.

    There are one or two consecutive steps, or none for the identity. The result is None if no steps are known.
    """
    with np.errstate(all="ignore"):
        values = np.broadcast_to(function(POINTS), POINTS.shape)
        key = values.tobytes()
        if key not in _known:
            _known[key] = _recognise(values)
    return _known[key]


def _recognise(values: Array) -> list[Step] | None:
    with np.errstate(all="ignore"):
        at = {x: float(y) for x, y in zip(POINTS.tolist(), values.tolist(), strict=True)}
        for steps in _candidates(at):
            if all(np.isfinite([alpha, beta]).all() for _, alpha, beta in steps) and _same(values, steps):
                return [step for step in steps if step != ("linear", 1.0, 0.0)]
    return None


def _same(values: Array, steps: Sequence[Step]) -> bool:
    results = POINTS
    for step in steps:
        results = evaluate(step, results)
    with np.errstate(all="ignore"):  # numpy's allclose is ten times slower, and there are thousands of candidates
        close = np.abs(results - values) <= TOLERANCE + TOLERANCE * np.abs(values)
    close[len(_NEAR) :] |= ~np.isfinite(values[len(_NEAR) :])
    return bool((close | (results == values) | (np.isnan(results) & np.isnan(values))).all())


def _clips(at: dict[float, float]) -> list[list[Step]]:
    """Return a clip with the values at the ends as bounds, of which one may be open; none if 0 is the only bound (ReLU).

    Clips are tried before the ReLU, which would match a bound of 1e-9 although its logarithm differs.
    """
    low, high = at[-_OUTERMOST], at[_OUTERMOST]
    below, above = low > -_OUTERMOST, high < _OUTERMOST
    if not np.isfinite([low, high]).all() or low >= high or not (below or above) or (low == 0 and not above):
        return []
    return [[("clip", low if below else -LARGEST_FLOAT32, high if above else LARGEST_FLOAT32)]]


def _candidates(at: dict[float, float]) -> list[list[Step]]:
    """Return candidate steps, with parameters solved from the function's values at a few points."""
    zero, one, minus_one, low, high = (at[x] for x in (0.0, 1.0, -1.0, -_FAR, _FAR))
    result: list[list[Step]] = [[("linear", one - zero, zero)], [("abs", 0.0, 0.0)]]
    result += _clips(at)
    if np.isfinite([low, high]).all():
        result.append([("relu", -minus_one, 0.0)])
    for name in _WITHOUT_PARAMETERS:
        for scale in _SCALES:
            result.append([(name, 0.0, 0.0), *([("linear", scale, 0.0)] if scale != 1 else [])])
    if 0 < one < 1:
        result.append([("silu", float(np.log(one / (1 - one))), 0.0)])
    result.append([("softplus", float(np.log(2) / zero) if zero > 0 else np.nan, 0.0)])
    result += [[("elu", -low, 0.0)], [("elu", -low / one if one else np.nan, 0.0), ("linear", one, 0.0)]]
    # Near 0, hard_sigmoid is linear and hard_swish quadratic.
    slope = (at[0.01] - at[-0.01]) / 0.02
    curve = (at[0.01] + at[-0.01] - 2 * zero) / (2 * 0.01**2)
    result += [[("hard_sigmoid", slope, zero)], [("hard_swish", curve, slope)]]
    result += [[("hard_sigmoid", slope / high, zero / high), ("linear", high, 0.0)]] if high > 0 else []
    # A leaky ReLU times a number.
    if one > 0 and minus_one < 0:
        result.append([("relu", minus_one / -one, 0.0), ("linear", one, 0.0)])
    return [steps for steps in result if steps]
