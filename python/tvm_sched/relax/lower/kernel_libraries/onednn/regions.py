"""Find regions of elementwise operators that compute a function of a single value."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from tvm import relax

from ....ir.sizes import sizes_of
from ..rewrite import Rewriter, is_float32, operation
from .fused_activations import Array, Step, erf, gelu, gelu_tanh, recognise, sigmoid

LARGEST = 24
"""Most operators considered after a value; the longest known form of an activation has eleven."""


def _of_values(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function of a call and its operands' values that ignores the call."""
    return lambda call, *values: function(*values)


_NUMPY = (
    *("add", "subtract", "multiply", "divide", "maximum", "minimum", "power"),
    *("negative", "abs", "exp", "log", "sqrt", "square", "tanh"),
)
_FUNCTIONS: dict[str, Callable[..., Any]] = {
    **{name: _of_values(getattr(np, name)) for name in _NUMPY},
    "rsqrt": lambda call, x: 1 / np.sqrt(x),
    "erf": _of_values(erf),
    "sigmoid": _of_values(sigmoid),
    "clip": lambda call, x: np.clip(x, _number(call.args[1]), _number(call.args[2])),
    "nn.relu": lambda call, x: np.maximum(x, 0),
    "nn.relu6": lambda call, x: np.clip(x, 0, 6),
    "nn.leakyrelu": lambda call, x: np.where(x > 0, x, float(call.attrs.alpha) * x),
    "nn.gelu": _of_values(gelu),
    "nn.gelu_tanh": _of_values(gelu_tanh),
    "nn.silu": lambda call, x: x * sigmoid(x),
    "nn.selu": lambda call, x: 1.0507009873554805 * np.where(x > 0, x, 1.6732632423543772 * np.expm1(x)),
    "nn.softplus": lambda call, x: _softplus(x, float(call.attrs.beta), float(call.attrs.threshold)),
    "nn.prelu": lambda call, x, slope: np.where(x > 0, x, slope * x),
}


def _softplus(x: Array, beta: float, threshold: float) -> Array:
    return np.where(x * beta > threshold, x, np.logaddexp(0, x * beta) / beta)


def _number(expr: Any) -> float:
    value = getattr(expr, "value", expr)
    return float(getattr(value, "value", value))


@dataclass(frozen=True)
class UnaryRegion:
    """Operators that compute a function of one value."""

    end: Any
    """The result."""
    inside: list[Any]
    """Intermediate values, which have no other users."""
    steps: list[Step]
    """The equivalent steps of oneDNN."""


def find_region(rewriter: Rewriter, start: Any, is_claimed: Callable[[Any], bool]) -> UnaryRegion | None:
    """Return the longest region that oneDNN can compute and that has all users of ``start``, or None.

    ``is_claimed`` is whether another kernel computes a variable.
    """
    members = _members(rewriter, start, is_claimed)
    best = None
    for count in range(1, len(members) + 1):
        inside, end = members[: count - 1], members[count - 1]
        needed = _needed(rewriter, end, {start, *inside})
        if any(user not in needed for v in (start, *needed) if not v.same_as(end) for user in rewriter.uses[v]):
            continue
        steps = recognise(lambda x, end=end: _evaluate(rewriter, start, end, x))  # type: ignore[misc]
        if steps is not None:
            best = UnaryRegion(end, [v for v in inside if v in needed], steps)
    return best


def _members(rewriter: Rewriter, start: Any, is_claimed: Callable[[Any], bool]) -> list[Any]:
    """Return values that depend only on ``start`` and numbers, in topological order."""
    shape, known, members = sizes_of(start), {start}, list[Any]()
    position = 0
    queue = [start]
    while position < len(queue) and len(members) < LARGEST:
        for user in rewriter.uses[queue[position]]:
            if user is None or user in known or is_claimed(user):
                continue
            call = rewriter.definitions[user]
            if sizes_of(call) != shape or not is_float32(call) or not _computable(rewriter, call, known):
                continue
            known.add(user)
            members.append(user)
            queue.append(user)
        position += 1
    return members


def _computable(rewriter: Rewriter, call: Any, known: set[Any]) -> bool:
    if isinstance(call, relax.Var):
        return call in known
    if operation(call) not in _FUNCTIONS:
        return False
    return all(a in known or rewriter.number(a) is not None for a in _tensors(call))


def _tensors(call: Any) -> list[Any]:
    return [argument for argument in call.args if isinstance(argument.ty, relax.TensorType)]


def _needed(rewriter: Rewriter, end: Any, known: set[Any]) -> set[Any]:
    """Return ``end`` and the values in ``known`` that it is computed from."""
    needed, queue = {end}, [end]
    while queue:
        call = rewriter.definitions[queue.pop()]
        for argument in [call] if isinstance(call, relax.Var) else _tensors(call):
            if argument in known and argument not in needed:
                needed.add(argument)
                queue += [argument] if argument in rewriter.definitions else []
    return needed


def _evaluate(rewriter: Rewriter, start: Any, end: Any, x: Array) -> Array:
    values = {start: x}

    def value(expr: Any) -> Any:
        if expr in values:
            return values[expr]
        number = rewriter.number(expr)
        if number is not None:
            return number
        call = rewriter.definitions[expr]
        if isinstance(call, relax.Var):
            result = value(call)
        else:
            result = _FUNCTIONS[operation(call)](call, *[value(a) for a in _tensors(call)])
        values[expr] = result
        return result

    return np.asarray(value(end))
