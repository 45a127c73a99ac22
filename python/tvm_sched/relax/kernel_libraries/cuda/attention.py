"""Attention as one kernel on GPUs: in float32, float16 and bfloat16, with masks, causal, with heads that share keys."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..attention import AttentionClaimer, Found
from ..registry import KernelSet
from ..rewrite import constant_value, dtype_of, operation, shape_of
from ..views import View, strides_of
from .attention_source import ELEMENTS, MOST_WIDTH, flops

_NOTHING = -1e4
"""What is added to a score so that nothing remains of it, or less."""


class CudaAttention(AttentionClaimer):
    """Replaces attention; casts between floating-point types are part of the kernel, which computes in float32."""

    types = tuple(ELEMENTS)
    casts = True

    def __init__(self, mod: Any, kernels: KernelSet, settings: dict[str, Any]) -> None:
        super().__init__(mod, kernels)
        self.settings = settings

    def leads(self, batch: int, heads: int) -> list[tuple[int, ...]]:
        """Batch, groups, and heads of a group, which share keys and values."""
        shared = [(batch, heads // k, k) for k in range(2, heads) if heads % k == 0]
        return [(batch, heads, 1), *shared]

    def find(self, variable: Any, value: Any) -> Found | None:
        """The attention that ends in a variable: written out, or an operator of its own."""
        if operation(value) in ("nn.attention", "nn.attention_bias"):
            return self._operator(variable, value)
        found = super().find(variable, value)
        if found is None and operation(value) == "matmul":
            self.casts = False  # operands of several types are read as they have been cast
            found = super().find(variable, value)
            self.casts = True
        return found

    def takes(self, found: Found) -> bool:
        """Whether registers hold a row, and the operands are of one type."""
        operands = (found.query, found.key, found.value)
        few = max(found.query.shape[-1], found.value.shape[-1]) <= MOST_WIDTH
        return few and len({dtype_of(view.base) for view in operands}) == 1

    def call(self, found: Found) -> Any:
        """The call of the kernel."""
        batch, groups, heads, rows, width = found.query.shape
        keys, out = found.value.shape[-2:]
        mask = found.mask
        shift = None if mask is None or found.safe else causal_shift(constant_value(mask.base), rows, keys)
        causal = shift is not None
        operands = [found.query, found.key, found.value]
        if mask is not None and not causal:
            operands.append(mask)
        sizes = {
            "batch": batch,
            "groups": groups,
            "heads": heads,
            "rows": rows,
            "keys": keys,
            "width": width,
            "out": out,
        }
        kernel: dict[str, Any] = {
            "kind": "attention",
            "dtype": dtype_of(found.query.base),
            "result_dtype": dtype_of(found.end),
            "mask_dtype": dtype_of(mask.base) if mask is not None and not causal else None,
            **sizes,
            "scale": found.query.scale * found.key.scale,
            "causal": causal,
            "shift": shift or 0,
            "safe": found.safe,
            "query": _strides(found.query),
            "key": _strides(found.key),
            "value": _strides(found.value),
            "mask": _mask_strides(mask, groups, heads) if mask is not None and not causal else None,
            "result": _strides(found.result),
        }
        arguments = [self.value(view.base) for view in operands]
        return self.kernels.call("attention", {**kernel, **self.settings}, arguments, found.end.ty, flops(kernel))

    def _operator(self, variable: Any, call: Any) -> Found | None:
        """`relax.op.nn.attention`: queries, keys and values as (batch, rows, heads, width)."""
        q, k, v = call.args[:3]
        if call.attrs.window_size is not None or not all(self.accepts(e) for e in (*call.args, call)):
            return None
        (batch, rows, heads, width), (_, keys, kept, _) = shape_of(q) or (), shape_of(k) or ()
        out = (shape_of(v) or ())[-1]
        if heads % kept or (rows > keys and call.attrs.causal_mask):
            return None
        share = heads // kept

        def view(expr: Any, count: int, columns: int, *, query: bool = False) -> View:
            whole = (batch, count, kept, share if query else 1, columns)
            batch_, row, group, head, column = strides_of(whole)
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
        found = Found(query, key, value, mask, False, variable, View(None, result.shape, result.strides))
        return found if self.takes(found) else None

    def _causal(self, which: str, rows: int, keys: int) -> View | None:
        if not which:
            return None
        shift = 0 if which == "TopLeft" else keys - rows
        seen = np.tri(rows, keys, shift, dtype=bool)
        constant = self.kernels.constant(np.where(seen, np.float32(0), np.float32(-np.inf)), None, {})
        return View(constant, (1, 1, rows, keys), strides_of((1, 1, rows, keys)))


def causal_shift(mask: Any, rows: int, keys: int) -> int | None:
    """What ``i`` is added to for the last key that row ``i`` sees, where a constant mask says no more than that.

    Every row has to see a key: else a large negative number that is added to all scores leaves their order.
    """
    if mask is None or mask.size != rows * keys:
        return None
    mask = mask.reshape(rows, keys).astype(np.float32)
    shift = int((mask[0] == 0).sum()) - 1
    seen = np.tri(rows, keys, shift, dtype=bool)
    if shift < 0 or not (mask[seen] == 0).all() or not (mask[~seen] <= _NOTHING).all():
        return None
    return shift


def _strides(view: View) -> list[int]:
    return [view.offset, *view.strides]


def _mask_strides(mask: View, groups: int, heads: int) -> list[int]:
    """Those of (batch, group, head, row, key): 0 where it is the same for all."""
    batch, head, row, key = (0 if size == 1 else stride for size, stride in zip(mask.shape, mask.strides, strict=True))
    return [mask.offset, batch, head * heads if groups > 1 else 0, head if heads > 1 else 0, row, key]
