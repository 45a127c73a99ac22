"""Activation functions of recurrent cells, as TIR expressions."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tvm import tirx

_ALPHA = {
    "affine": None,
    "leakyrelu": 0.01,
    "thresholdedrelu": 1.0,
    "scaledtanh": None,
    "hardsigmoid": 0.2,
    "elu": 1.0,
}
_BETA = {"affine": None, "scaledtanh": None, "hardsigmoid": 0.5}
"""Defaults of the functions that take a constant; None if ONNX has no default."""


@dataclass(frozen=True)
class Activation:
    """A function of one number."""

    name: str
    """ONNX's name in lower case."""
    alpha: float = 0.0
    beta: float = 0.0
    """Unused if the function does not take it."""

    def __call__(self, x: Any) -> Any:
        """The function's value at an expression."""
        return _FUNCTIONS[self.name](x, *(tirx.const(value, x.ty.dtype) for value in (self.alpha, self.beta)))


def make_activation(name: str, alpha: float | None = None, beta: float | None = None) -> Activation:
    """Return an activation by its ONNX name in any case; alpha and beta default to those of ONNX's operator.

    Raises
    ------
    ValueError
        ONNX has no such function, or no default for a missing constant.
    """
    key = name.lower()
    if key not in _FUNCTIONS:
        raise ValueError(f"the activation {name!r} is unknown; allowed are {', '.join(_FUNCTIONS)}")
    alpha = _ALPHA.get(key, 0.0) if alpha is None else alpha
    beta = _BETA.get(key, 0.0) if beta is None else beta
    if alpha is None or beta is None:
        raise ValueError(f"the activation {name!r} needs alpha and beta: ONNX has no default for them")
    return Activation(key, alpha, beta)


def takes_alpha(name: str) -> bool:
    """Whether a function takes alpha."""
    return name.lower() in _ALPHA


def takes_beta(name: str) -> bool:
    """Whether a function takes beta."""
    return name.lower() in _BETA


def _zero(x: Any) -> Any:
    return tirx.const(0, x.ty.dtype)


def _one(x: Any) -> Any:
    return tirx.const(1, x.ty.dtype)


def _hard_sigmoid(x: Any, alpha: Any, beta: Any) -> Any:
    return tirx.max(_zero(x), tirx.min(_one(x), alpha * x + beta))


def _softplus(x: Any, alpha: Any, beta: Any) -> Any:
    # log(1 + exp(x)) without an exponential that overflows
    return tirx.max(x, _zero(x)) + tirx.log(_one(x) + tirx.exp(-tirx.abs(x)))


def _elu(x: Any, alpha: Any, beta: Any) -> Any:
    return tirx.Select(x >= _zero(x), x, alpha * (tirx.exp(tirx.min(x, _zero(x))) - _one(x)))


_FUNCTIONS: dict[str, Callable[..., Any]] = {
    "relu": lambda x, alpha, beta: tirx.max(x, _zero(x)),
    "tanh": lambda x, alpha, beta: tirx.tanh(x),
    "sigmoid": lambda x, alpha, beta: tirx.sigmoid(x),
    "affine": lambda x, alpha, beta: alpha * x + beta,
    "leakyrelu": lambda x, alpha, beta: tirx.Select(x >= _zero(x), x, alpha * x),
    "thresholdedrelu": lambda x, alpha, beta: tirx.Select(x > alpha, x, _zero(x)),
    "scaledtanh": lambda x, alpha, beta: alpha * tirx.tanh(beta * x),
    "hardsigmoid": _hard_sigmoid,
    "elu": _elu,
    "softsign": lambda x, alpha, beta: x / (_one(x) + tirx.abs(x)),
    "softplus": _softplus,
}
