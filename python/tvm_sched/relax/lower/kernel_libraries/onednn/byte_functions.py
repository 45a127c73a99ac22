"""Elementwise operators between two 8-bit tensors, as a table of the 256 results or, if it changes nothing, as nothing.

A quantised model writes an activation as many operators: each dequantises, computes and quantises again. If everything but
one 8-bit tensor is a constant number, the result depends only on the value of that tensor's element.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from tvm import relax

from ....ir.sizes import sizes_of
from ....ir.tensor_types import dtype_of
from ..rewrite import Rewriter, constant_value, operation
from .integer_products import BYTES

_MOST = 128
"""Operators that a table may replace."""


@dataclass(frozen=True)
class ByteFunction:
    """A function of an 8-bit tensor's elements."""

    end: Any
    """The 8-bit value that it computes."""
    inside: list[Any]
    """The values between the tensor and ``end``."""
    table: np.ndarray[Any, Any]
    """The results, in the order of the argument's bits as an unsigned integer."""


def byte_function(rewriter: Rewriter, start: Any, is_claimed: Callable[[Any], bool]) -> ByteFunction | None:
    """Return the longest function of an 8-bit value after which nothing else reads that value.

    ``is_claimed`` is whether another kernel computes a variable.
    """
    values: dict[Any, Any] = {start: _arguments(start)}
    behind: dict[Any, set[Any]] = {start: set()}  # the values that a value is computed from
    queue = list(rewriter.uses[start])
    while queue and len(values) <= _MOST:
        variable = queue.pop(0)
        if variable is None or variable in values or is_claimed(variable) or sizes_of(variable) != sizes_of(start):
            continue
        value = _evaluate(rewriter, rewriter.definitions[variable], values)
        if value is None:
            continue
        values[variable] = value
        read = {each for each in values if variable in rewriter.uses[each]}
        behind[variable] = read.union(*(behind[each] for each in read))
        queue += rewriter.uses[variable]
    for end in sorted(values, key=lambda each: len(behind[each]), reverse=True):
        inner = behind[end]
        if inner and dtype_of(end) in BYTES and all({*rewriter.uses[each]} <= {*inner, end} for each in inner):
            return ByteFunction(end, [each for each in values if each in inner and each is not start], values[end])
    return None


class WithoutRoundTrips(Rewriter):
    """Leaves out operators between two 8-bit tensors that give each value back.

    A tensor that is dequantised, divided by a number and quantised again with as much smaller a scale is such a case.
    """

    operators = ("round",)

    def __init__(self, mod: Any) -> None:
        super().__init__(mod)
        self.traced: dict[Any, tuple[Any, Any] | None] = {}

    def visit(self, variable: Any, value: Any) -> Any:
        """Rewrite one binding."""
        if operation(value) == "astype" and dtype_of(variable) in BYTES:
            traced = self._traced(value.args[0])
            if traced is not None and _kind(traced[0]) == _kind(variable):
                start, table = traced
                if np.array_equal(table, _arguments(start)):
                    return self.value(start)
        elif operation(value) in _FUNCTIONS:
            self._traced(variable)  # in order, so that long chains are not followed at once
        return super().visit(variable, value)

    def _traced(self, expr: Any) -> tuple[Any, Any] | None:
        """Return the 8-bit tensor that alone decides an elementwise value, and its 256 results; None if there is none."""
        variable = self.resolve(expr)
        if not isinstance(variable, relax.Var):
            return None
        if dtype_of(variable) in BYTES:
            return variable, _arguments(variable)
        if variable not in self.traced:
            self.traced[variable] = self._trace(self.definitions.get(variable))
        return self.traced[variable]

    def _trace(self, definition: Any) -> tuple[Any, Any] | None:
        if operation(definition) not in _FUNCTIONS:
            return None
        traces = {each: self._traced(each) for each in definition.args if isinstance(each, relax.Var)}
        known = {each: trace for each, trace in traces.items() if trace is not None}
        starts = {start for start, _ in known.values()}
        if len(starts) != 1:
            return None
        table = _evaluate(self, definition, {each: table for each, (_, table) in known.items()})
        return None if table is None else (starts.pop(), table)


def _kind(variable: Any) -> tuple[Any, Any]:
    return dtype_of(variable), sizes_of(variable)


def _arguments(variable: Any) -> Any:
    return np.arange(256, dtype="uint8").view(dtype_of(variable))


def _evaluate(rewriter: Rewriter, definition: Any, values: dict[Any, Any]) -> Any:
    """Return the value of a definition from values known so far; None if it is unknown."""
    if isinstance(definition, relax.Var):
        return values.get(definition)
    name = operation(definition)
    if name not in _FUNCTIONS:
        return None
    operands = [_operand(rewriter, each, values) for each in definition.args]
    if any(each is None for each in operands):
        return None
    with np.errstate(all="ignore"):
        result = _FUNCTIONS[name](*operands)
        if name == "astype":
            converted = result.astype(dtype_of(definition))
            return converted if np.array_equal(converted, result) else None
    return result.astype(dtype_of(definition)) if np.isfinite(result).all() else None


def _operand(rewriter: Rewriter, expr: Any, values: dict[Any, Any]) -> Any:
    if isinstance(expr, relax.Var) and expr in values:
        return values[expr]
    if isinstance(getattr(expr, "value", None), int | float):  # bounds of clip
        return np.float32(expr.value)
    known = constant_value(rewriter.resolve(expr))
    return known.reshape(-1)[0] if known is not None and known.size == 1 else None


def _sigmoid(value: Any) -> Any:
    return 1 / (1 + np.exp(-value.astype(np.float64)))


_FUNCTIONS: dict[str, Callable[..., Any]] = {
    "astype": lambda value: value, "add": np.add, "subtract": np.subtract, "multiply": np.multiply,
    "divide": np.divide, "maximum": np.maximum, "minimum": np.minimum, "negative": np.negative, "abs": np.abs,
    "round": np.rint, "floor": np.floor, "ceil": np.ceil, "clip": np.clip, "sqrt": np.sqrt,
    "nn.relu": lambda value: np.maximum(value, 0), "nn.relu6": lambda value: np.clip(value, 0, 6),
    "exp": lambda value: np.exp(value.astype(np.float64)), "tanh": lambda value: np.tanh(value.astype(np.float64)),
    "sigmoid": _sigmoid, "nn.silu": lambda value: value * _sigmoid(value),
}  # fmt: skip
"""Operators as functions of elements: in their own type, or in float64 to round once."""
