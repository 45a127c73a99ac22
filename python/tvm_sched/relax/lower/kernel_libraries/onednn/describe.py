"""Descriptions of kernels for ``cpp/kernels/onednn/description.h`` (docs/formats/kernels.md)."""

from __future__ import annotations

from math import prod
from typing import Any


def to_first(rank: int) -> tuple[int, ...]:
    """Return the positions of (N, C, H, W) in a tensor with channels last."""
    return (0, rank - 1, *range(1, rank - 1))


def to_last(rank: int) -> tuple[int, ...]:
    """Return the positions of (N, H, W, C) in a tensor with channels first."""
    return (0, *range(2, rank), 1)


def dense(shape: tuple[int, ...], parameter: bool = False) -> dict[str, Any]:
    """Describe a dense tensor."""
    result: dict[str, Any] = {"dims": list(shape), "strides": [prod(shape[k + 1 :]) for k in range(len(shape))]}
    return {**result, "parameter": True} if parameter else result


def permuted(shape: tuple[int, ...], order: tuple[int, ...]) -> dict[str, Any]:
    """Describe a dense tensor with its dimensions in another order for oneDNN."""
    plain = dense(shape)
    return {"dims": [plain["dims"][k] for k in order], "strides": [plain["strides"][k] for k in order]}


def channels_last(shape: tuple[int, ...]) -> dict[str, Any]:
    """Describe a tensor (N, H, W, C) as oneDNN's (N, C, H, W); likewise for other numbers of image dimensions."""
    return permuted(shape, to_first(len(shape)))


def window(
    call_strides: Any, padding: Any, dilation: Any, kernel: tuple[int, ...], size: tuple[int, ...], out: tuple[int, ...]
) -> dict[str, list[int]]:
    """Describe strides, dilation and padding of a convolution or pooling.

    Relax gives the padding as (top, left, bottom, right). In ceil mode the padding at the end grows to cover the last
    window, unless its size is open: then the kernel grows the padding when it is called.
    """
    count = len(kernel)
    strides, dilations = [int(s) for s in call_strides], [int(d) for d in dilation]
    low, high = [int(p) for p in padding[:count]], [int(p) for p in padding[count:]]
    for k in range(count):
        reach = (out[k] - 1) * strides[k] + (kernel[k] - 1) * dilations[k] + 1 - size[k] - low[k]
        high[k] = max(high[k], reach) if isinstance(reach, int) else high[k]
    return {"strides": strides, "dilation": [d - 1 for d in dilations], "padding_low": low, "padding_high": high}


def transposed_window(
    call_strides: Any, padding: Any, dilation: Any, kernel: tuple[int, ...], size: tuple[int, ...], out: tuple[int, ...]
) -> dict[str, list[int]]:
    """Describe strides, dilation and padding of a transposed convolution; output padding reduces the padding at the end."""
    count = len(kernel)
    strides, dilations = [int(s) for s in call_strides], [int(d) for d in dilation]
    low = [int(p) for p in padding[:count]]
    reach = [(size[k] - 1) * strides[k] + (kernel[k] - 1) * dilations[k] + 1 for k in range(count)]
    high = [reach[k] - low[k] - out[k] for k in range(count)]
    return {"strides": strides, "dilation": [d - 1 for d in dilations], "padding_low": low, "padding_high": high}
