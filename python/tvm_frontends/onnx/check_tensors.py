"""Checks of an ONNX tensor: its type, its shape, and the number of bytes or elements that it holds."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from ..errors import ModelError

if TYPE_CHECKING:
    import onnx

_PER_ELEMENT = {"COMPLEX64": 2, "COMPLEX128": 2}
"""Numbers in a tensor's list for each element, where it is not one."""


def check_tensor(tensor: onnx.TensorProto, where: str, place: str = "") -> None:
    """Refuse a tensor whose data do not fit its shape and type; data in another file are not read.

    Raises
    ------
    ModelError
        The type is unknown, a size is negative, or there are too few or too many data.
    """
    subject = f"{where}: tensor {tensor.name!r}{place}"
    needed = tensor_bytes(tensor, subject)
    if tensor.data_location == tensor.EXTERNAL:
        return
    if tensor.HasField("raw_data") and needed is not None:
        found, wanted, unit = len(tensor.raw_data), needed, "bytes"
    else:
        found, wanted, unit = _listed(tensor, needed)
    if found != wanted:
        raise ModelError(
            f"{subject} holds {found} {unit}; its shape {list(tensor.dims)} and type {_type_name(tensor)} need {wanted}: "
            "the file is broken, export the model again"
        )


def tensor_bytes(tensor: onnx.TensorProto, subject: str) -> int | None:
    """Return how many bytes a tensor's shape and type need; None for text.

    Raises
    ------
    ModelError
        The type is unknown, or a size is negative; the message begins with ``subject``.
    """
    import onnx_ir as ir

    if any(size < 0 for size in tensor.dims):
        raise ModelError(f"{subject} has the shape {list(tensor.dims)}; sizes are 0 or more: export the model again")
    if tensor.data_type == tensor.STRING:
        return None
    try:
        bits = ir.DataType(tensor.data_type).bitwidth
    except (KeyError, TypeError, ValueError):
        raise ModelError(
            f"{subject} has a type of the number {tensor.data_type}, which this version of onnx does not know: the file is "
            "broken, or needs a newer package: pip install -U onnx onnx-ir"
        ) from None
    return (math.prod(tensor.dims) * bits + 7) // 8


def _listed(tensor: onnx.TensorProto, needed: int | None) -> tuple[int, int, str]:
    """Return how many numbers or texts a tensor lists, how many it needs, and what they are called."""
    count = math.prod(tensor.dims)
    if needed is None:
        return len(tensor.string_data), count, "texts"
    lists = (
        tensor.float_data, tensor.int32_data, tensor.int64_data, tensor.double_data, tensor.uint64_data
    )  # fmt: skip
    name = _type_name(tensor)
    if name in _PACKED:
        count = needed
    return sum(map(len, lists)), count * _PER_ELEMENT.get(name, 1), "numbers"


_PACKED = ("INT4", "UINT4", "INT2", "UINT2", "FLOAT4E2M1")
"""Types of which one listed number holds a byte, that is several elements."""


def _type_name(tensor: onnx.TensorProto) -> str:
    return str(tensor.DataType.Name(tensor.data_type))
