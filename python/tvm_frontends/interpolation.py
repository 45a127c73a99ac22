"""Interpolation along an axis with constant positions and weights."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import tvm
from tvm import relax, te

from .tensor_types import dtype_of


def cubic(distance: npt.NDArray[np.float64], a: float) -> npt.NDArray[np.float64]:
    """Return Keys' cubic weights of taps at a distance, with the coefficient ``a``."""
    d = np.abs(distance)
    near = ((a + 2) * d - (a + 3)) * d * d + 1
    far = ((a * d - 5 * a) * d + 8 * a) * d - 4 * a
    return np.where(d <= 1, near, np.where(d < 2, far, 0.0))


def interpolate(
    builder: relax.BlockBuilder,
    value: relax.Expr,
    axis: int,
    indices: npt.NDArray[np.int64] | relax.Expr,
    weights: npt.NDArray[np.float64] | relax.Expr,
) -> relax.Expr:
    """Emit weighted sums of elements along an axis; a single tap is a selection.

    Parameters
    ----------
    indices, weights : ndarray, or tensor of int64 and float32
        Of shape (length of the result's axis, taps).
    """
    if not isinstance(indices, np.ndarray):
        length, taps = indices.ty.shape.values[0], int(indices.ty.shape.values[1])
        if taps == 1:
            return builder.emit_te(lambda x, at: _select(x, at, axis), value, indices, primfunc_name_hint="resize")
    elif indices.shape[1] == 1:
        return relax.op.take(value, relax.const(indices[:, 0], "int64"), axis)
    else:
        length, taps = indices.shape
    value = value if isinstance(value, relax.Var) else builder.emit(value)
    kind = dtype_of(value)
    wide = kind if kind in ("float32", "float64") else "float32"

    def compute(x: te.Tensor, at: te.Tensor, by: te.Tensor) -> te.Tensor:
        tap = te.reduce_axis((0, taps), "tap")

        def element(*i: tvm.tirx.Var) -> tvm.tirx.Expr:
            source = [*i[:axis], at[i[axis], tap], *i[axis + 1 :]]
            element = x[tuple(source)].astype(wide)
            if not isinstance(length, int):
                element = _unless_empty(x, axis, element, wide)
            return te.sum(element * by[i[axis], tap].astype(wide), axis=tap)

        shape = [*x.shape[:axis], length if isinstance(length, int) else at.shape[0], *x.shape[axis + 1 :]]
        return te.compute(shape, element, name="resize")

    resized = builder.emit_te(
        compute,
        value,
        relax.const(indices, "int64") if isinstance(indices, np.ndarray) else indices,
        relax.const(weights.astype(wide), wide) if isinstance(weights, np.ndarray) else weights,
        primfunc_name_hint="resize",
    )
    return resized if wide == kind else builder.emit(relax.op.astype(resized, kind))


def _select(x: te.Tensor, at: te.Tensor, axis: int) -> te.Tensor:
    def element(*i: tvm.tirx.Var) -> tvm.tirx.Expr:
        return _unless_empty(x, axis, x[(*i[:axis], at[i[axis], 0], *i[axis + 1 :])], x.dtype)

    return te.compute([*x.shape[:axis], at.shape[0], *x.shape[axis + 1 :]], element, name="resize")


def _unless_empty(x: te.Tensor, axis: int, element: tvm.tirx.Expr, kind: str) -> tvm.tirx.Expr:
    """Return an element, or 0 where an axis of open size has none."""
    return tvm.tirx.if_then_else(x.shape[axis] > 0, element, tvm.tirx.const(0, kind))
