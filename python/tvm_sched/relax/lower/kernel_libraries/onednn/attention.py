"""Attention on CPUs by our kernel on oneDNN (``cpp/kernels/onednn/attention.h``), which reads q, k and v in place."""

from __future__ import annotations

from typing import Any

from ..attention_pattern import AttentionClaimer, AttentionMatch
from ..memory_views import View, strides_of

FEWEST_SCORES = 64 * 64
"""With fewer scores per head, separate kernels are as fast unless queries, keys or values are copied or scaled for them."""


class OneDnnAttention(AttentionClaimer):
    """Replaces attention in float32."""

    def leads(self, batch: int, heads: int) -> list[tuple[int, ...]]:
        """Return (batch, heads), and for batch 1 the divisions of the heads into groups that share keys and values."""
        shared = [(heads // k, k) for k in range(2, heads + 1) if heads % k == 0] if batch == 1 else []
        return [(batch, heads), *shared]

    def takes(self, match: AttentionMatch) -> bool:
        """Whether the kernel pays, and each head's matrices are stored by rows or by columns."""
        operands = (match.query, match.key, match.value)
        few = match.query.shape[2] * match.key.shape[2] < FEWEST_SCORES
        # The products' own factor costs nothing, that of the queries is one of several kernels' (PyTorch scales keys, too).
        if few and match.query.scale == 1.0 and all(_is_whole(view) for view in operands):
            return False
        return all(view.has_matrices for view in operands)

    def call(self, match: AttentionMatch) -> Any:
        """Return the call of the kernel."""
        mask, lead = match.mask, match.query.shape[:2]
        if mask is not None and mask.shape[1] not in (1, lead[1]):
            shape = (*lead, *mask.shape[2:])
            mask = View(mask.base, shape, strides_of(shape))
        views = [v for v in (match.query, match.key, match.value, mask) if v is not None]
        kernel = {
            "primitive": "attention",
            "algorithm": "safe" if match.safe else "plain",
            "numbers": [match.query.scale * match.key.scale],
            "operands": [view.described() for view in (*views, match.result)],
        }
        batch, heads, rows, width = match.query.shape
        keys, out = match.value.shape[2:]
        flops = batch * heads * rows * keys * (2 * width + 2 * out + 8)
        return self.kernels.call("attention", kernel, [self.value(v.base) for v in views], match.end.ty, flops)


def _is_whole(view: View) -> bool:
    """Whether a view is a tensor as it lies in memory."""
    strides = zip(view.shape, view.strides, strides_of(view.shape), strict=True)
    return not view.partial and all(extent == 1 or stride == plain for extent, stride, plain in strides)
