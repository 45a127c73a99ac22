"""Weights as the kernels of ``cpp/kernels/language`` read them; ``docs/formats/language_model.md`` has the layouts."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from .checkpoint import widen

COLUMNS, GROUP = 16, 32
_ALIGNMENT = 64

Array = npt.NDArray[Any]


def pack(weight: npt.NDArray[np.float32], number_format: str) -> list[Array]:
    """Pack a matrix (outputs, inputs), or several (experts, outputs, inputs), in tiles of 16 outputs.

    Returns
    -------
    list of numpy.ndarray
        The tiles; for integers the scales, as bits of bfloat16; for ``int4-zeros`` the zero points.
    """
    if weight.ndim == 3:
        parts = [pack(one, number_format) for one in weight]
        return [aligned(np.concatenate(kind)) for kind in zip(*parts, strict=True)]
    outputs, terms = weight.shape
    more = -outputs % COLUMNS
    fill = 0 if number_format == "float32" else -terms % GROUP
    tiles = np.pad(weight, ((0, more), (0, fill))).reshape(-1, COLUMNS, terms + fill)
    if number_format == "float32":
        return [aligned(tiles.transpose(0, 2, 1))]
    if number_format == "bfloat16":
        return [aligned(halves(tiles).reshape(*tiles.shape[:2], -1, 2).transpose(0, 2, 1, 3))]
    groups = tiles.reshape(tiles.shape[0], COLUMNS, -1, GROUP)
    numbers, scales, zeros = _QUANTIZE[number_format](groups)
    beside = [aligned(values.transpose(0, 2, 1)) for values in (scales, *([] if zeros is None else [zeros]))]
    # (tiles, groups, fours of terms, columns, 4)
    quads = numbers.reshape(*groups.shape[:3], GROUP // 4, 4).transpose(0, 2, 3, 1, 4)
    if number_format == "int8":
        return [aligned(quads), *beside]
    low, high = quads[:, :, : GROUP // 8], quads[:, :, GROUP // 8 :]
    return [aligned((low | high << 4).astype(np.uint8)), *beside]


def dequantized(weight: npt.NDArray[np.float32], number_format: str) -> npt.NDArray[np.float32]:
    """Return the numbers that a packed matrix stands for, (outputs, inputs)."""
    if number_format == "float32":
        return weight
    if number_format == "bfloat16":
        return widen(halves(weight))
    outputs, terms = weight.shape
    groups = np.pad(weight, ((0, 0), (0, -terms % GROUP))).reshape(1, outputs, -1, GROUP)
    numbers, scales, zeros = _QUANTIZE[number_format](groups)
    centre = np.float32(0 if number_format == "int8" else 8) if zeros is None else zeros[..., None].astype(np.float32)
    values = (numbers.astype(np.float32) - centre) * widen(scales)[..., None]
    return np.ascontiguousarray(values.reshape(outputs, -1)[:, :terms])


def halves(values: npt.NDArray[np.float32]) -> npt.NDArray[np.uint16]:
    """Round to bfloat16, halves to even; the result holds the bits."""
    bits = np.ascontiguousarray(values, np.float32).view(np.uint32)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)


def _scales(wanted: npt.NDArray[np.float32]) -> tuple[npt.NDArray[np.uint16], npt.NDArray[np.float32]]:
    """Scales as bits of bfloat16, and what to divide by: 1 where the scale is 0."""
    bits = halves(wanted)
    values = widen(bits)
    return bits, np.where(values == 0, np.float32(1), values)


def _int8(groups: npt.NDArray[np.float32]) -> tuple[Array, Array, None]:
    bits, scales = _scales(np.abs(groups).max(-1) / np.float32(127))
    return np.clip(np.rint(groups / scales[..., None]), -127, 127).astype(np.int8), bits, None


def _int4(groups: npt.NDArray[np.float32]) -> tuple[Array, Array, None]:
    """The number of the largest size becomes -8, as in llama.cpp's Q4_0."""
    place = np.abs(groups).argmax(-1)[..., None]
    bits, scales = _scales(np.take_along_axis(groups, place, -1)[..., 0] / np.float32(-8))
    return np.clip(np.rint(groups / scales[..., None]) + 8, 0, 15).astype(np.uint8), bits, None


def _int4_zeros(groups: npt.NDArray[np.float32]) -> tuple[Array, Array, Array]:
    low, high = np.minimum(groups.min(-1), 0), np.maximum(groups.max(-1), 0)
    bits, scales = _scales((high - low) / np.float32(15))
    zeros = np.clip(np.rint(-low / scales), 0, 15)
    return (
        np.clip(np.rint(groups / scales[..., None]) + zeros[..., None], 0, 15).astype(np.uint8),
        bits,
        zeros.astype(np.uint8),
    )


_QUANTIZE: dict[str, Any] = {"int8": _int8, "int4": _int4, "int4-zeros": _int4_zeros}


def aligned(values: Array) -> Array:
    """A compact copy at an address that the compiler takes without copying it again."""
    memory = np.empty(values.nbytes + _ALIGNMENT, np.uint8)
    first = -memory.ctypes.data % _ALIGNMENT
    result = memory[first : first + values.nbytes].view(values.dtype).reshape(values.shape)
    result[...] = values
    return result
