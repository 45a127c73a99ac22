"""Converters of reductions that handle infinities, NaN and integers by the standard.

Corrections of TVM 0.27.0, ``relax/frontend/onnx/onnx_frontend.py``:

- ``ReduceMax``: starts from the least finite number, so the maximum of minus infinities is -3.4e38; loses NaN; booleans
  fail. ``ReduceMin`` likewise. The cause is the initial value in ``topi``'s reductions.
- ``ReduceMean``: gives the mean of 32-bit integers the type int64.
- ``ReduceLogSumExp``: is NaN where the maximum is infinite.
- ``ReduceL1``: without axes and with ``noop_with_empty_axes`` gives the input; ``ReduceL2``, ``ReduceLogSum`` and
  ``ReduceSumSquare`` likewise.
- ``ReduceL2``: squares in the type of the input, so the norm of float16 300 and 400, or of float32 3e30, is infinite.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import tvm
from tvm import relax, te

from ...tensor_types import dtype_of
from ...vector_norms import WIDER, vector_norm
from .nodes import Node, converter
from .upstream import convert_upstream


@converter("ReduceMax", "ReduceMin")
def extremum(node: Node) -> relax.Expr:
    """Convert ReduceMax and ReduceMin; the result is NaN if an element is."""
    x = node.input(0)
    kind = dtype_of(x)
    shape = node.sizes(x, "its input")
    axes = _axes(node, len(shape))
    if axes is None:
        return x
    keep = bool(node.attribute("keepdims", 1))
    if not kind.startswith(("float", "bfloat")):
        if kind == "bool":
            if any(isinstance(shape[axis], int) and shape[axis] == 0 for axis in axes):
                fill = relax.op.zeros if node.operator == "ReduceMax" else relax.op.ones
                return fill(relax.ShapeExpr(reduced(shape, axes, keep)), "bool")
            wide = relax.op.astype(x, "int8")
            function = relax.op.max if node.operator == "ReduceMax" else relax.op.min
            # The extremum of no elements is the first number that any other replaces, -128 or 127.
            return relax.op.greater(function(wide, axes, keep), relax.const(0, "int8"))
        return convert_upstream(node)
    if not axes:
        return x
    return largest_or_least(node, x, axes, keep, node.operator == "ReduceMax")


def largest_or_least(node: Node, x: relax.Expr, axes: list[int], keep: bool, largest: bool) -> relax.Expr:
    """Emit the extremum of floating-point numbers along axes, NaN if one of them is.

    Comparisons ignore NaN, so a second sum counts the elements that are not at most infinity.
    """

    def compute(a: te.Tensor) -> te.Tensor:
        shape = [int(size) if isinstance(size, tvm.tirx.IntImm) else size for size in a.shape]
        wide = "float64" if a.dtype == "float64" else "float32"
        join = tvm.tirx.max if largest else tvm.tirx.min
        reducer = te.comm_reducer(
            lambda p, q: (join(p[0], q[0]), p[1] + q[1]),
            lambda kind, counts: (tvm.tirx.const(-np.inf if largest else np.inf, kind), tvm.tirx.const(0, counts)),
            name="largest" if largest else "least",
        )
        inner = {axis: te.reduce_axis((0, shape[axis]), f"k{axis}") for axis in axes}

        def element(*i: tvm.tirx.Var) -> tuple[tvm.tirx.Expr, ...]:
            outer = iter(i)
            index = []
            for axis in range(len(shape)):
                place = next(outer) if keep or axis not in inner else None
                index.append(inner.get(axis, place))
            value = a(*index)
            number = value.astype(wide) <= tvm.tirx.const(np.inf, wide)
            nan_count = tvm.tirx.Select(number, tvm.tirx.const(0, wide), tvm.tirx.const(1, wide))
            return reducer((value, nan_count), axis=list(inner.values()))

        best, nan_count = te.compute(reduced(shape, axes, keep), element, name="extremum")
        nan = tvm.tirx.const(np.nan, a.dtype)
        return te.compute(
            best.shape, lambda *i: tvm.tirx.Select(nan_count(*i) > 0, nan, best(*i)), name="extremum_or_nan"
        )

    return node.builder.emit_te(compute, x, primfunc_name_hint="reduce_max" if largest else "reduce_min")


@converter("ReduceMean")
def mean(node: Node) -> relax.Expr:
    """Convert ReduceMean; the mean of integers has their type, rounded towards zero as NumPy casts.

    The mean of no integers is refused.
    """
    x = node.input(0)
    kind = dtype_of(x)
    if not kind.startswith(("int", "uint")):
        return convert_upstream(node)
    axes = _axes(node, len(node.sizes(x, "its input")))
    if axes is None:
        return x
    count = math.prod(node.size(x, axis, "its input") for axis in axes)
    if count == 0:
        raise node.unsupported("it is the mean of no integers, which is not defined; remove the node")
    wide = "int64" if kind.startswith("int") else "uint64"
    total = node.emit(relax.op.sum(relax.op.astype(x, wide), axes, bool(node.attribute("keepdims", 1))))
    return relax.op.astype(node.convert_as("Div", [total, relax.const(count, wide)], {}), kind)


@converter("ReduceL1", "ReduceL2", "ReduceLogSum", "ReduceSumSquare")
def composite(node: Node) -> relax.Expr:
    """Convert reductions that also compute on each element; over an empty set of axes, only that is left.

    Floating-point numbers are squared and summed in a wider type (`WIDER`), since squares and sums may be out of range
    where the result is not.
    """
    x = node.input(0)
    axes = _axes(node, len(node.sizes(x, "its input")))
    if axes is None:
        if node.operator == "ReduceSumSquare":
            return relax.op.multiply(x, x)
        return node.convert_as("Log" if node.operator == "ReduceLogSum" else "Abs", [x], {})
    kind, keep = dtype_of(x), bool(node.attribute("keepdims", 1))
    if not kind.startswith(("float", "bfloat")) or not axes:
        return convert_upstream(node)
    if node.operator in ("ReduceL1", "ReduceL2"):
        return vector_norm(node.emit, x, int(node.operator[-1]), axes, keep)
    wide = node.emit(relax.op.astype(x, WIDER.get(kind, kind)))
    wide = relax.op.multiply(wide, wide) if node.operator == "ReduceSumSquare" else wide
    total = node.emit(relax.op.sum(wide, axes, keep))
    return relax.op.astype(relax.op.log(total) if node.operator == "ReduceLogSum" else total, kind)


@converter("ReduceLogSumExp")
def log_sum_exp(node: Node) -> relax.Expr:
    """Convert ReduceLogSumExp without overflow; an infinite maximum is not subtracted, since that would give NaN."""
    x = node.input(0)
    kind = dtype_of(x)
    axes = _axes(node, len(node.sizes(x, "its input")))
    if axes is None or not kind.startswith(("float", "bfloat")):
        return convert_upstream(node)
    wide = node.emit(x if kind == "float64" else relax.op.astype(x, "float32"))
    largest = node.emit(relax.op.max(wide, axes, keepdims=True))
    finite = relax.op.isfinite(largest)
    largest = node.emit(relax.op.where(finite, largest, relax.const(0, dtype_of(wide))))
    terms = relax.op.exp(relax.op.subtract(wide, largest))
    logarithm = relax.op.log(node.emit(relax.op.sum(terms, axes, keepdims=True)))
    result = node.emit(relax.op.astype(relax.op.add(logarithm, largest), kind))
    return result if node.attribute("keepdims", 1) else relax.op.squeeze(result, axes)


def reduced(shape: Sequence[Any], axes: list[int], keep: bool) -> list[Any]:
    """Return the shape of a reduced tensor."""
    return [1 if axis in axes else size for axis, size in enumerate(shape) if keep or axis not in axes]


def _axes(node: Node, rank: int) -> list[int] | None:
    """Return the axes, from opset 18 on an input; None if nothing is reduced."""
    axes = node.constant(1) if node.opset >= 18 else node.attribute("axes")
    if axes is None or len(axes) == 0:
        return None if node.attribute("noop_with_empty_axes", 0) else list(range(rank))
    return sorted(int(axis) % rank for axis in axes)
