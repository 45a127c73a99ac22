"""Shape, data type and bytes of tensors, from their types."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import tvm
from tvm import relax


def static_shape(value: Any) -> tuple[int, ...] | None:
    """Return the sizes of a tensor, an expression or a type; None if one is unknown or it is not a tensor."""
    ty = _type_of(value)
    if not isinstance(ty, relax.TensorType) or not isinstance(ty.shape, relax.ShapeExpr):
        return None
    sizes = list(ty.shape.values)  # read once: each access calls TVM
    return tuple(size.value for size in sizes) if all(isinstance(size, tvm.tirx.IntImm) for size in sizes) else None


def known_shape(value: Any) -> tuple[int, ...]:
    """Return the sizes of a tensor that is known to have a static shape."""
    shape = static_shape(value)
    assert shape is not None, f"the shape of {value} is not static"
    return shape


def dtype_of(value: Any) -> str:
    """Return the data type of the elements of a tensor, an expression or a type; "" if it is unknown."""
    ty = _type_of(value)
    # TVM represents long strings by a subclass of str, which file writers refuse.
    return str(ty.dtype.dtype) if isinstance(ty, relax.TensorType) and ty.dtype is not None else ""


def tensor_bytes(value: Any) -> int:
    """Return the bytes of a dense tensor of a static shape, an expression or a type."""
    return bytes_of(known_shape(value), dtype_of(value))


def bytes_of(shape: Sequence[int], dtype: str) -> int:
    """Return the bytes of a dense tensor; elements of less than a byte are packed, except booleans."""
    kind = tvm.DataType(dtype)
    bits = 8 if dtype == "bool" else int(kind.bits) * int(kind.lanes)
    return (math.prod(shape) * bits + 7) // 8


def _type_of(value: Any) -> Any:
    return value if isinstance(value, tvm.ir.Type) else value.ty
