"""Match attention, ``softmax(scale * q @ k.T + mask) @ v``, for one kernel that reads q, k and v in place."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np

from ...ir.sizes import sizes_of
from .kernel_library import KernelSet
from .memory_views import View, ViewRewriter, is_open, strides_of
from .rewrite import constant_value, operation


@dataclass(frozen=True)
class AttentionMatch:
    """Attention in a graph."""

    query: View
    key: View
    value: View
    """(*lead, rows, width) each, with a ``lead`` of `AttentionClaimer.leads`."""
    mask: View | None
    """(batch or 1, heads or 1, rows or 1, keys or 1)."""
    safe: bool
    """Whether rows whose keys are all masked give 0 instead of NaN."""
    end: Any
    """The value that the kernel returns."""
    result: View
    """(*lead, rows, width) in that value."""


class AttentionClaimer(ViewRewriter, ABC):
    """Replaces attention by kernels; the replaced operators lose their users.

    A library's subclass restricts the matches (`leads`, `takes`) and emits the kernel (`call`).
    """

    operators = ("nn.softmax", "nn.attention", "nn.attention_bias")
    grouped = False
    """Whether views have an additional axis for heads that share keys and values."""

    def __init__(self, mod: Any, kernels: KernelSet) -> None:
        super().__init__(mod)
        self.kernels = kernels
        self.matches: dict[Any, AttentionMatch] | None = None

    @abstractmethod
    def leads(self, batch: int, heads: int) -> list[tuple[int, ...]]:
        """Return the leading extents into which batch and heads can be divided, the simplest first."""

    @abstractmethod
    def takes(self, match: AttentionMatch) -> bool:
        """Whether the library has a kernel that pays."""

    @abstractmethod
    def call(self, match: AttentionMatch) -> Any:
        """Return the call of the kernel."""

    def find(self, variable: Any, value: Any) -> AttentionMatch | None:
        """Return the attention that computes a variable, or None."""
        if operation(value) in ("nn.attention", "nn.attention_bias"):
            return self._operator(variable, value)
        match = self.written_out(variable, value) if operation(value) == "matmul" else None
        return match if match is not None and self.takes(match) else None

    def visit(self, variable: Any, value: Any) -> Any:
        """Rewrite one binding."""
        if self.matches is None:
            each = (self.find(v, c) for v, c in self.definitions.items())
            self.matches = {match.end: match for match in each if match is not None}
        if variable in self.matches:
            return self.emit(self.call(self.matches[variable]))
        return super().visit(variable, value)

    def written_out(self, variable: Any, product: Any) -> AttentionMatch | None:
        """Return the attention whose last operator is a product of probabilities and values, or None."""
        if not all(self.accepts(e) for e in (*product.args, product)):
            return None
        softmax, safe = self._probabilities(product.args[0])
        shape = sizes_of(softmax) if softmax is not None else None
        if softmax is None or shape is None or len(shape) not in (2, 3, 4):
            return None
        scores = self._scores(softmax.args[0])
        if scores is None:
            return None
        first, mask, scale = scores
        lead, out = (sizes_of(product) or ())[:-1], (sizes_of(product) or ())[-1]
        if (
            len(shape) == 2 and len(lead) in (2, 3) and mask is None
        ):  # softmax of older ONNX opsets: all rows in one matrix
            shape = (*lead, shape[-1])
        full: tuple[Any, ...] = (*(1,) * (4 - len(shape)), *shape)
        batch, heads, rows, keys = full
        if not isinstance(heads, int):
            return None
        width = (sizes_of(first.args[0]) or ())[-1]
        sizes = (rows * width, width * keys, keys * out)
        operands = (*first.args, product.args[1])
        if any(
            prod(sizes_of(e) or ()) != batch * heads * size or len(sizes_of(e) or ()) < 2
            for e, size in zip(operands, sizes, strict=True)
        ):
            return None
        lead, query, turned, value = self._operands(operands, (batch, heads, rows, width, keys, out))
        key = View(turned.base, _swapped(turned.shape), _swapped(turned.strides), turned.scale * scale, turned.offset)
        if value.scale != 1.0:
            return None
        end, result = self.result(variable, (*lead, rows, out))
        return AttentionMatch(query, key, value, mask, safe, end, result)

    def _operator(self, variable: Any, call: Any) -> AttentionMatch | None:
        """Match `relax.op.nn.attention`, with queries, keys and values as (batch, rows, heads, width)."""
        q, k, v = call.args[:3]
        if call.attrs.window_size is not None or not all(self.accepts(e) for e in (*call.args, call)):
            return None
        (batch, rows, heads, width), (_, keys, kept, _) = sizes_of(q) or (), sizes_of(k) or ()
        out = (sizes_of(v) or ())[-1]
        if is_open((heads, kept, width)) or (call.attrs.causal_mask and is_open((rows, keys))):
            return None
        if heads % kept or (rows > keys and call.attrs.causal_mask) or (heads > kept and not self.grouped):
            return None
        share = heads // kept

        def view(expr: Any, count: int, columns: int, *, query: bool = False) -> View:
            whole = (batch, count, kept, share if query else 1, columns)
            batch_, row, group, head, column = strides_of(whole)
            if not self.grouped:
                return View(self.resolve(expr), (batch, kept, count, columns), (batch_, group, row, column))
            shape = (batch, kept, share, count, columns)
            return View(self.resolve(expr), shape, (batch_, group, head if query else 0, row, column))

        query, key, value = view(q, rows, width, query=True), view(k, keys, width), view(v, keys, out)
        scale = float(call.attrs.scale.value) if call.attrs.scale is not None else width**-0.5
        key = View(key.base, key.shape, key.strides, scale)
        mask = self._causal(str(call.attrs.causal_mask or ""), rows, keys)
        if len(call.args) == 4:
            if mask is not None:
                return None
            mask = self._mask(call.args[3], 4)
        result = view(variable, rows, out, query=True)
        match = AttentionMatch(query, key, value, mask, False, variable, View(None, result.shape, result.strides))
        return match if self.takes(match) else None

    def _causal(self, which: str, rows: int, keys: int) -> View | None:
        if not which:
            return None
        shift = 0 if which == "TopLeft" else keys - rows
        visible = np.tri(rows, keys, shift, dtype=bool)
        constant = self.kernels.constant(np.where(visible, np.float32(0), np.float32(-np.inf)), None, {})
        return View(constant, (1, 1, rows, keys), strides_of((1, 1, rows, keys)))

    def _operands(self, operands: Any, sizes: tuple[int, ...]) -> tuple[tuple[int, ...], View, View, View]:
        """Return the leading extents, and the views of queries, transposed keys and values."""
        batch, heads, rows, width, keys, out = sizes
        shapes = ((rows, width), (width, keys), (keys, out))
        leads = self.leads(batch, heads)
        for lead in leads:
            query, turned, value = (self.view(e, (*lead, *shape)) for e, shape in zip(operands, shapes, strict=True))
            if query is not None and turned is not None and value is not None:
                return lead, query, turned, value
        lead = leads[0]
        query, turned, value = (
            self.view_or_whole(e, (*lead, *shape)) for e, shape in zip(operands, shapes, strict=True)
        )
        return lead, query, turned, value

    def _probabilities(self, expr: Any) -> tuple[Any, bool]:
        """Return the softmax, and whether rows without a key give 0."""
        call: Any = self._before_reshapes_and_casts(expr)
        safe = False
        if operation(call) == "where":
            softmax: Any = self._before_reshapes_and_casts(call.args[2])
            if not self._is_zero(call.args[1]) or operation(softmax) != "nn.softmax":
                return None, False
            if not self._no_key(call.args[0], softmax.args[0]):
                return None, False
            call, safe = softmax, True
        if operation(call) != "nn.softmax" or not self.accepts(call):
            return None, False
        rank = len(sizes_of(call) or ())
        return (call, safe) if int(call.attrs.axis) % rank == rank - 1 else (None, False)

    def _is_zero(self, expr: Any) -> bool:
        filled: Any = self.defined(expr)
        if operation(filled) in ("full", "full_like"):  # small tensors are folded to constants
            return bool(self.number(filled.args[1]) == 0)
        value = constant_value(self.resolve(expr))
        return value is not None and not value.any()

    def _no_key(self, expr: Any, scores: Any) -> bool:
        """Whether an expression is ``not any(not (scores == -inf))`` for each row, as PyTorch writes it."""
        names = []
        call: Any = self.defined(expr)
        while operation(call) in ("logical_not", "astype", "max"):
            if operation(call) == "max":
                rank = len(sizes_of(call) or ())
                if [int(a) % rank for a in call.attrs.axis or []] != [rank - 1] or not call.attrs.keepdims:
                    return False
            names.append(operation(call))
            call = self.defined(call.args[0])
        order = [name for name in names if name != "astype"]
        if order != ["logical_not", "max", "logical_not"] or operation(call) != "equal":
            return False
        same = self.resolve(call.args[0]).same_as(self.resolve(scores))
        return same and self.number(call.args[1]) == -np.inf

    def _scores(self, expr: Any) -> tuple[Any, View | None, float] | None:
        """Return the product of queries and keys, the mask added to it, and the factor of the product."""
        mask, scale = None, 1.0
        shape = sizes_of(expr) or ()
        call: Any = self._before_reshapes_and_casts(expr)
        while operation(call) in ("add", "multiply", "divide"):
            positions = (0, 1) if operation(call) != "divide" else (0,)
            number = next((n for k in (1, 0) if (n := self.number(call.args[k])) is not None), None)
            if operation(call) == "add":
                inner = next((k for k in positions if self._is_product(call.args[k])), None)
                if mask is not None or scale != 1.0 or inner is None or sizes_of(call) != shape:
                    return None
                mask = self._mask(call.args[1 - inner], len(shape))
                if mask is None:
                    return None
                call = self._before_reshapes_and_casts(call.args[inner])
                continue
            if number is None or number == 0 or not np.isfinite(number):
                return None
            if operation(call) == "divide" and self.number(call.args[1]) is None:
                return None
            scale *= 1 / number if operation(call) == "divide" else number
            inner = 0 if self.number(call.args[0]) is None else 1
            call = self._before_reshapes_and_casts(call.args[inner])
        return (call, mask, scale) if operation(call) == "matmul" and self.accepts(call.args[0]) else None

    def _is_product(self, expr: Any) -> bool:
        call: Any = self._before_reshapes_and_casts(expr)
        while operation(call) in ("multiply", "divide"):
            scalar = self.number(call.args[1]) is not None
            call = self._before_reshapes_and_casts(call.args[0 if scalar else 1])
        return operation(call) == "matmul"

    def _mask(self, expr: Any, rank: int) -> View | None:
        shape = sizes_of(expr)
        if shape is None or len(shape) > rank or not self.accepts(expr):
            return None
        full = (*(1,) * (4 - len(shape)), *shape)
        return View(self.resolve(expr), full, strides_of(full))

    def _before_reshapes_and_casts(self, expr: Any) -> Any:
        """Return the call that computes a value before reshapes and casts."""
        call = self.defined(expr)
        while operation(call) == "reshape" or self.is_cast(call):
            call = self.defined(call.args[0])
        return call


def _swapped(extents: tuple[int, ...]) -> tuple[int, ...]:
    return (*extents[:-2], extents[-1], extents[-2])
