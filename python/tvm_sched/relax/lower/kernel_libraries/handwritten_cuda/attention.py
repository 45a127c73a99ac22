"""Attention as one kernel on GPUs: in float32, float16 and bfloat16, with masks, causal, with heads that share keys."""

from __future__ import annotations

from typing import Any

import numpy as np

from ....ir.tensor_types import dtype_of
from ..attention import AttentionClaimer, AttentionMatch
from ..kernel_library import KernelSet
from ..rewrite import constant_value, operation
from ..views import View
from .attention_source import ELEMENTS, MOST_WIDTH, flops

_NOTHING = -1e4
"""What is added to a score so that nothing remains of it, or less."""


class CudaAttention(AttentionClaimer):
    """Replaces attention; casts between floating-point types are part of the kernel, which computes in float32."""

    types = tuple(ELEMENTS)
    casts = True

    grouped = True

    def __init__(self, mod: Any, kernels: KernelSet, settings: dict[str, Any]) -> None:
        super().__init__(mod, kernels)
        self.settings = settings

    def leads(self, batch: int, heads: int) -> list[tuple[int, ...]]:
        """Batch, groups, and heads of a group, which share keys and values."""
        shared = [(batch, heads // k, k) for k in range(2, heads) if heads % k == 0]
        return [(batch, heads, 1), *shared]

    def find(self, variable: Any, value: Any) -> AttentionMatch | None:
        """The attention that ends in a variable: written out, or an operator of its own."""
        found = super().find(variable, value)
        if found is None and operation(value) == "matmul":
            self.casts = False  # operands of several types are read as they have been cast
            found = super().find(variable, value)
            self.casts = True
        return found

    def takes(self, found: AttentionMatch) -> bool:
        """Whether registers hold a row, and the operands are of one type."""
        operands = (found.query, found.key, found.value)
        few = max(found.query.shape[-1], found.value.shape[-1]) <= MOST_WIDTH
        return few and len({dtype_of(view.base) for view in operands}) == 1

    def call(self, found: AttentionMatch) -> Any:
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


def causal_shift(mask: Any, rows: int, keys: int) -> int | None:
    """The offset from row ``i`` to the last key that it sees, if a constant mask is a causal one.

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
