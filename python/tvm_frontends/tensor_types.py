"""Shapes and element types of tensors."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from tvm import relax


def numpy_dtype(name: str) -> np.dtype[Any]:
    """Return the dtype of a name; ml_dtypes has the types that NumPy lacks (bfloat16, float8)."""
    try:
        return np.dtype(name)
    except TypeError:
        import ml_dtypes

        return np.dtype(getattr(ml_dtypes, name))


def dtype_of(value: relax.Expr) -> str:
    """Return the element type of a tensor."""
    return str(value.ty.dtype.dtype)


def known_sizes(value: relax.Expr) -> list[int | None] | None:
    """Return the sizes of a tensor, None for each symbolic one; None if not even the rank is known."""
    from tvm import relax, tirx

    if not isinstance(value.ty, relax.TensorType) or not isinstance(value.ty.shape, relax.ShapeExpr):
        return None
    return [int(size) if isinstance(size, tirx.IntImm) else None for size in value.ty.shape.values]


def static_shape(value: relax.Expr) -> tuple[int, ...] | None:
    """Return the shape of a tensor; None if a size is symbolic."""
    sizes = known_sizes(value)
    known = [size for size in sizes or () if size is not None]
    return tuple(known) if sizes is not None and len(known) == len(sizes) else None
