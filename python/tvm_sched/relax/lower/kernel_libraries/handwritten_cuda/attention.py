"""Attention as one kernel on GPUs: float32, float16 or bfloat16, masked or causal, with heads that may share keys."""

from __future__ import annotations

from typing import Any

import numpy as np

from ....ir.tensor_types import dtype_of
from ..attention_pattern import AttentionClaimer, AttentionMatch
from ..kernel_library import KernelSet
from ..memory_views import View
from ..rewrite import constant_value, operation
from .attention_source import ELEMENTS, MOST_WIDTH, flops

_NOTHING = -1e4
"""Largest summand of a score that masks it."""


class CudaAttention(AttentionClaimer):
    """Replaces attention, including casts between floating-point types; the kernel computes in float32."""

    types = tuple(ELEMENTS)
    casts = True
    grouped = True

    def __init__(self, mod: Any, kernels: KernelSet, settings: dict[str, Any]) -> None:
        super().__init__(mod, kernels)
        self.settings = settings

    def leads(self, batch: int, heads: int) -> list[tuple[int, ...]]:
        """Return (batch, groups, heads per group); the heads of a group share keys and values."""
        shared = [(batch, heads // k, k) for k in range(2, heads) if heads % k == 0]
        return [(batch, heads, 1), *shared]

    def find(self, variable: Any, value: Any) -> AttentionMatch | None:
        """Return the attention that computes a variable, decomposed or as one operator, or None."""
        match = super().find(variable, value)
        if match is None and operation(value) == "matmul":
            self.casts = False  # operands of different types are read after their casts
            match = super().find(variable, value)
            self.casts = True
        return match

    def takes(self, match: AttentionMatch) -> bool:
        """Whether a row fits into registers, and the operands have one type."""
        operands = (match.query, match.key, match.value)
        few = max(match.query.shape[-1], match.value.shape[-1]) <= MOST_WIDTH
        return few and len({dtype_of(view.base) for view in operands}) == 1

    def call(self, match: AttentionMatch) -> Any:
        """Return the call of the kernel."""
        batch, groups, heads, rows, width = match.query.shape
        keys, out = match.value.shape[-2:]
        mask = match.mask
        shift = None if mask is None or match.safe else causal_shift(constant_value(mask.base), rows, keys)
        causal = shift is not None
        operands = [match.query, match.key, match.value]
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
            "dtype": dtype_of(match.query.base),
            "result_dtype": dtype_of(match.end),
            "mask_dtype": dtype_of(mask.base) if mask is not None and not causal else None,
            **sizes,
            "scale": match.query.scale * match.key.scale,
            "causal": causal,
            "shift": shift or 0,
            "safe": match.safe,
            "query": _strides(match.query),
            "key": _strides(match.key),
            "value": _strides(match.value),
            "mask": _mask_strides(mask, groups, heads) if mask is not None and not causal else None,
            "result": _strides(match.result),
        }
        arguments = [self.value(view.base) for view in operands]
        return self.kernels.call("attention", {**kernel, **self.settings}, arguments, match.end.ty, flops(kernel))


def causal_shift(mask: Any, rows: int, keys: int) -> int | None:
    """Return the offset from row ``i`` to the last key that it sees if a constant mask is causal, else None.

    Every row must see a key: a large negative number added to all scores of a row would not mask any of them.
    """
    if mask is None or mask.size != rows * keys:
        return None
    mask = mask.reshape(rows, keys).astype(np.float32)
    shift = int((mask[0] == 0).sum()) - 1
    visible = np.tri(rows, keys, shift, dtype=bool)
    if shift < 0 or not (mask[visible] == 0).all() or not (mask[~visible] <= _NOTHING).all():
        return None
    return shift


def _strides(view: View) -> list[int]:
    return [view.offset, *view.strides]


def _mask_strides(mask: View, groups: int, heads: int) -> list[int]:
    """Return the offset and the strides of (batch, group, head, row, key), 0 along broadcast dimensions."""
    batch, head, row, key = (0 if size == 1 else stride for size, stride in zip(mask.shape, mask.strides, strict=True))
    return [mask.offset, batch, head * heads if groups > 1 else 0, head if heads > 1 else 0, row, key]
