"""Vector norms whose squares and sums neither overflow nor vanish."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from tvm import relax

from .tensor_types import dtype_of

Emit = Callable[[relax.Expr], relax.Expr]

WIDER = {"float16": "float32", "bfloat16": "float64", "float32": "float64"}
"""The type in which powers up to `LARGEST_POWER` of a type's numbers, and sums of them, are in range."""
LARGEST_POWER = 6
"""float64 holds the powers of float32's numbers from -6 to 6: 3.4e38 and 1.4e-45 to the 6th are 1.5e231 and 7.5e-270."""


@dataclass(frozen=True)
class ScaledNorm:
    """The norms of vectors as products of two factors, either of which is in range; all in a wide type."""

    values: relax.Expr
    """The vectors divided by `scale`."""
    norm: relax.Expr
    """The norms of `values`; the reduced axes have length 1."""
    scale: relax.Expr | None
    """The divisor; None for 1."""


def scaled_norm(emit: Emit, x: relax.Expr, order: float, axes: list[int]) -> ScaledNorm:
    """Emit the norms of a floating-point tensor along axes; orders other than 0 and infinity.

    Powers are computed in a wider type. Where there is none, vectors are divided by their largest magnitude first, or by
    the least one if the order is negative.
    """
    wide = WIDER.get(kind := dtype_of(x), kind)
    values = emit(relax.op.astype(x, wide)) if wide != kind else x
    scale = None
    if wide == kind or abs(order) > LARGEST_POWER:
        extremum = relax.op.max if order > 0 else relax.op.min
        scale = emit(extremum(emit(relax.op.abs(values)), axes, keepdims=True))
        usable = relax.op.logical_and(relax.op.isfinite(scale), relax.op.greater(scale, relax.const(0, wide)))
        scale = emit(relax.op.where(emit(usable), scale, relax.const(1, wide)))
        values = emit(relax.op.divide(values, scale))
    if order == 2:
        norm = relax.op.sqrt(emit(relax.op.sum(emit(relax.op.multiply(values, values)), axes, keepdims=True)))
    elif order == 1:
        norm = relax.op.sum(emit(relax.op.abs(values)), axes, keepdims=True)
    else:
        powers = emit(relax.op.power(emit(relax.op.abs(values)), relax.const(order, wide)))
        total = emit(relax.op.sum(powers, axes, keepdims=True))
        norm = relax.op.power(total, relax.const(1 / order, wide))
    return ScaledNorm(values, emit(norm), scale)


def vector_norm(emit: Emit, x: relax.Expr, order: float, axes: list[int], keep: bool) -> relax.Expr:
    """Emit the norms of a floating-point tensor along axes, in its type.

    Parameters
    ----------
    order : float
        Any number; 0 counts the elements that are not 0, and an infinity gives the extremum of the magnitudes.
    keep : bool
        Whether the reduced axes stay, with length 1.
    """
    kind = dtype_of(x)
    if order in (float("inf"), -float("inf")):
        norm = (relax.op.max if order > 0 else relax.op.min)(emit(relax.op.abs(x)), axes, keepdims=True)
    elif order == 0:
        wide = "float64" if kind == "float64" else "float32"
        norm = relax.op.sum(
            emit(relax.op.astype(relax.op.not_equal(x, relax.const(0, kind)), wide)), axes, keepdims=True
        )
    else:
        found = scaled_norm(emit, x, order, axes)
        norm = found.norm if found.scale is None else relax.op.multiply(found.norm, found.scale)
    norm = emit(norm)
    norm = norm if dtype_of(norm) == kind else emit(relax.op.astype(norm, kind))
    return norm if keep else emit(relax.op.squeeze(norm, axes))


def normalized(emit: Emit, x: relax.Expr, order: float, axis: int) -> relax.Expr:
    """Emit the vectors of a floating-point tensor along an axis, divided by their norms; zeros where the norm is 0."""
    found = scaled_norm(emit, x, order, [axis])
    nothing = relax.op.equal(found.norm, relax.const(0, dtype_of(found.norm)))
    norm = emit(relax.op.where(nothing, relax.const(1, dtype_of(found.norm)), found.norm))
    result = emit(relax.op.divide(found.values, norm))
    return result if dtype_of(result) == dtype_of(x) else emit(relax.op.astype(result, dtype_of(x)))
