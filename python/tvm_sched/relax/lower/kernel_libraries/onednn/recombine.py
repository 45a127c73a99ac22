"""Recombine operators that importers decompose, so that oneDNN can claim them."""

from __future__ import annotations

from typing import Any

import numpy as np
from tvm import relax

from ....ir.sizes import sizes_of
from ..rewrite import Rewriter, axis_order, is_float32, operation
from .normalization import Normalization, find_normalization

FUNCTIONS = {"nn.relu", "nn.gelu", "nn.gelu_tanh", "nn.silu", "nn.leakyrelu", "sigmoid", "tanh", "clip", "exp"}
"""Elementwise functions whose first argument is a tensor."""
PRODUCTS = {"matmul", "nn.conv1d", "nn.conv2d", "nn.conv3d", "nn.conv2d_transpose"}


class Simplifier(Rewriter):
    """Removes dropout, broadcasts to the same shape and pairs of reshapes.

    A sum over a stack (ONNX's Sum) becomes additions, and a decomposed normalisation becomes one operator. An elementwise
    function that follows a product after transpositions and reshapes moves before these, so that it can be fused.
    """

    def __init__(self, mod: Any) -> None:
        super().__init__(mod)
        self.normalized: dict[Any, Any] = {}  # old value: the new value in the shape of the normalised tensor

    def visit(self, variable: Any, value: Any) -> Any:
        """Rewrite one binding."""
        if isinstance(value, relax.TupleGetItem) and value.index == 0:
            call = self.defined(value.tuple_value)
            if operation(call) == "nn.dropout":
                return self.value(call.args[0])
        name = operation(value)
        if name in ("broadcast_to", "reshape") and sizes_of(value.args[0]) == sizes_of(value) is not None:
            return self.value(value.args[0])
        if name == "nn.pad" and not any(int(width) for width in value.attrs.pad_width):
            return self.value(value.args[0])
        if name == "permute_dims" and _keeps_order(sizes_of(value.args[0]), axis_order(value)):
            return self.emit(relax.op.reshape(self.value(value.args[0]), sizes_of(value)))
        if name == "reshape":
            before = self.defined(value.args[0])
            if operation(before) == "reshape" and sizes_of(before.args[0]) == sizes_of(value) is not None:
                return self.value(before.args[0])
            inner = self.normalized.get(self.resolve(value.args[0]))
            if inner is not None and sizes_of(inner) == sizes_of(value):
                return inner
            masked = self._masked(variable, value)
            if masked is not None:
                return self.emit(masked)
        if name in ("divide", "multiply") and is_float32(value):
            normalization = find_normalization(self, value)
            if normalization is not None:
                return self._normalization(variable, normalization)
        if name in FUNCTIONS:
            moved = self._before_moves(value)
            if moved is not None:
                return moved
        if name == "sum" and not value.attrs.keepdims and [int(a) for a in value.attrs.axis or []] == [0]:
            parts = self._stacked(value.args[0])
            if parts:
                total = self.value(parts[0])
                for part in parts[1:]:
                    total = self.emit(relax.op.add(total, self.value(part)))
                return total
        return super().visit(variable, value)

    def _before_moves(self, value: Any) -> Any:
        """Apply an elementwise function before the transpositions of a product's result; None if there are none."""
        expr, moves = value.args[0], list[Any]()
        while (call := self._only(expr, "permute_dims", "reshape")) is not None:
            moves.append(call)
            expr = call.args[0]
        before = self._only(expr, "add")
        operands = [expr] if before is None else before.args
        if not any(operation(move) == "permute_dims" for move in moves) or not is_float32(value):
            return None
        if not any(operation(self.defined(operand)) in PRODUCTS for operand in operands):
            return None
        result = self.emit(relax.Call(value.op, [self.value(expr), *value.args[1:]], value.attrs))
        for move in reversed(moves):
            if operation(move) == "reshape":
                result = self.emit(relax.op.reshape(result, sizes_of(move)))
            else:
                result = self.emit(relax.op.permute_dims(result, axis_order(move)))
        return result

    def _normalization(self, variable: Any, normalization: Normalization) -> Any:
        shape = sizes_of(normalization.source) or ()
        one, zero = (relax.const(np.full(shape[1], number, np.float32)) for number in (1, 0))
        source, axes = self.value(normalization.source), list(range(2, len(shape)))
        groups, epsilon = normalization.groups, normalization.epsilon
        result = self.emit(relax.op.nn.group_norm(source, one, zero, groups, 1, axes, epsilon))
        self.normalized[variable] = result
        return result if shape == normalization.shape else self.emit(relax.op.reshape(result, normalization.shape))

    def _masked(self, variable: Any, value: Any) -> Any:
        """Add the two masks of attention with shifted windows to each other first; None for any other value.

        The model computes ``reshape(reshape(scores + bias) + mask)``. The inner reshape splits the first dimension into
        batch and windows, as each window has its own mask.
        """
        shape = sizes_of(value) or ()
        if [operation(self.definitions.get(user)) for user in self.uses[variable]] != ["nn.softmax"]:
            return None
        outer = self._only(value.args[0], "add")
        if outer is None:
            return None
        split = next((s for a in outer.args if (s := self._only(a, "reshape")) is not None), None)
        inner = self._only(split.args[0], "add") if split is not None else None
        if inner is None or sizes_of(inner) != shape or (sizes_of(split) or ())[2:] != shape[1:]:
            return None
        product, bias = sorted(
            inner.args, key=lambda a: sizes_of(a) != shape
        )  # the first operand if both have this shape
        if sizes_of(product) != shape or not is_float32(value):
            return None
        mask = next(a for a in outer.args if not self._is(a, split))
        windows = (sizes_of(split) or ())[:2]
        own = sizes_of(mask) or ()
        if len(own) != len(shape) + 1 or sizes_of(bias) is None:
            return None
        mask = self.emit(relax.op.broadcast_to(self.value(mask), (*windows, *own[2:])))
        mask = self.emit(relax.op.reshape(mask, (shape[0], *own[2:])))
        return relax.op.add(self.value(product), self.emit(relax.op.add(self.value(bias), mask)))

    def _only(self, expr: Any, *names: str) -> Any:
        """Return the call of one of these operators that computes a value with one user, else None."""
        call = self.defined(expr)
        single = isinstance(expr, relax.Var) and len(self.uses[expr]) == 1
        return call if single and operation(call) in names else None

    def _is(self, expr: Any, call: Any) -> bool:
        return self.defined(expr) is not None and self.defined(expr).same_as(call)

    def _stacked(self, expr: Any) -> list[Any]:
        call = self.defined(expr)
        if operation(call) != "stack" or int(call.attrs.axis or 0) != 0:
            return []
        parts = self.resolve(call.args[0])
        if isinstance(parts, relax.Var):
            parts = self.definitions.get(parts)
        return list(parts.fields) if isinstance(parts, relax.Tuple) else []


def _keeps_order(shape: tuple[int, ...] | None, order: tuple[int, ...]) -> bool:
    """Whether a transposition moves dimensions of one element only."""
    return shape is not None and (moved := [k for k in order if shape[k] > 1]) == sorted(moved)
