"""Descriptions of kernels, as ``cpp/kernels/onednn/description.h`` reads them (docs/formats/kernels.md)."""

from __future__ import annotations

from math import prod
from typing import Any


def to_first(rank: int) -> tuple[int, ...]:
    """Positions of oneDNN's dimensions (N, C, H, W) in a tensor with channels last."""
    return (0, rank - 1, *range(1, rank - 1))


def to_last(rank: int) -> tuple[int, ...]:
    """Positions of the dimensions of a channels-last tensor in one with channels first."""
    return (0, *range(2, rank), 1)


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
    """A tensor (N, H, W, C) as oneDNN's (N, C, H, W), or with another number of dimensions between."""
    return permuted(shape, to_first(len(shape)))


def window(
    call_strides: Any, padding: Any, dilation: Any, kernel: tuple[int, ...], size: tuple[int, ...], out: tuple[int, ...]
) -> dict[str, list[int]]:
    """Strides, dilation and padding of convolution or pooling.

    Relax gives the padding as (top, left, bottom, right). Padding at the end is as much as the last window needs, which
    is more than given with ceil mode.
    """
    count = len(kernel)
    strides, dilations = [int(s) for s in call_strides], [int(d) for d in dilation]
    low, high = [int(p) for p in padding[:count]], [int(p) for p in padding[count:]]
    for k in range(count):
        reach = (out[k] - 1) * strides[k] + (kernel[k] - 1) * dilations[k] + 1 - size[k] - low[k]
        high[k] = max(high[k], reach)
    return {
        "strides": strides,
        "dilation": [d - 1 for d in dilations],
        "padding_low": low,
        "padding_high": high,
    }


def transposed_window(
    call_strides: Any, padding: Any, dilation: Any, kernel: tuple[int, ...], size: tuple[int, ...], out: tuple[int, ...]
) -> dict[str, list[int]]:
    """Strides, dilation and padding of a transposed convolution; padding at the end takes output padding off again."""
    count = len(kernel)
    strides, dilations = [int(s) for s in call_strides], [int(d) for d in dilation]
    low = [int(p) for p in padding[:count]]
    reach = [(size[k] - 1) * strides[k] + (kernel[k] - 1) * dilations[k] + 1 for k in range(count)]
    return {
        "strides": strides,
        "dilation": [d - 1 for d in dilations],
        "padding_low": low,
        "padding_high": [reach[k] - low[k] - out[k] for k in range(count)],
    }
