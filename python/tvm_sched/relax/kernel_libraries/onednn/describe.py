"""Descriptions of kernels, as ``cpp/kernels/onednn/description.h`` reads them (docs/formats/kernels.md)."""

from __future__ import annotations

from math import prod
from typing import Any

CHANNELS_LAST = (0, 3, 1, 2)
"""Where oneDNN's dimensions (N, C, H, W) stand in a tensor with channels last."""


def dense(shape: tuple[int, ...], parameter: bool = False) -> dict[str, Any]:
    """A compact tensor."""
    strides = [prod(shape[k + 1 :]) for k in range(len(shape))]
    result: dict[str, Any] = {"dims": list(shape), "strides": strides}
    return {**result, "parameter": True} if parameter else result


def permuted(shape: tuple[int, ...], order: tuple[int, ...]) -> dict[str, Any]:
    """A compact tensor whose dimensions oneDNN sees in another order."""
    plain = dense(shape)
    return {"dims": [plain["dims"][k] for k in order], "strides": [plain["strides"][k] for k in order]}


def channels_last(shape: tuple[int, ...]) -> dict[str, Any]:
    """A tensor (N, H, W, C) as oneDNN's (N, C, H, W)."""
    return permuted(shape, CHANNELS_LAST)


def window(
    call_strides: Any, padding: Any, dilation: Any, kernel: tuple[int, ...], size: tuple[int, ...], out: tuple[int, ...]
) -> dict[str, list[int]]:
    """Strides, dilation and padding of convolution or pooling.

    Relax gives the padding as (top, left, bottom, right). Padding at the end is as much as the last window needs, which
    is more than given with ceil mode.
    """
    strides, dilations = [int(s) for s in call_strides], [int(d) for d in dilation]
    low, high = [int(p) for p in padding[:2]], [int(p) for p in padding[2:]]
    for k in range(2):
        reach = (out[k] - 1) * strides[k] + (kernel[k] - 1) * dilations[k] + 1 - size[k] - low[k]
        high[k] = max(high[k], reach)
    return {
        "strides": strides,
        "dilation": [d - 1 for d in dilations],
        "padding_low": low,
        "padding_high": high,
    }
