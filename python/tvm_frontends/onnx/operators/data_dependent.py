"""Converters of operators whose result size depends on the values.

A kernel fills a buffer of the largest possible size and counts the elements. Cutting the result out of the buffer, and
all operators that follow, have shapes that are known only when the model runs.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from tvm import relax, tirx

from ...kernels.bounded import (
    Suppression,
    compress_kernel,
    emit_count,
    emit_leading,
    least,
    nonzero_kernel,
    suppression_kernel,
    unique_kernel,
)
from ...tensor_types import dtype_of
from .nodes import Node, converter


@converter("NonZero")
def nonzero(node: Node) -> relax.Expr:
    """Convert NonZero: positions as columns; a scalar counts as a tensor of one axis."""
    x = node.input(0)
    shape = node.sizes(x, "its input X")
    rank = max(len(shape), 1)
    if _has_none(shape):
        return _empty((rank, 0), "int64")
    kernel = nonzero_kernel(shape, dtype_of(x))
    positions, count = _call(node, kernel, [x], [((rank, math.prod(shape)), "int64")])
    return emit_leading(node.builder, positions, 1, emit_count(node.builder, count))


@converter("Compress")
def compress(node: Node) -> relax.Expr:
    """Convert Compress; a constant condition gives a ``take`` of static size, another one a bounded kernel."""
    x, condition = node.input(0), node.input(1)
    shape = node.sizes(x, "its input")
    axis = node.attribute("axis")
    (conditions,) = node.sizes(condition, "its condition")
    if axis is None:
        shape, axis = (math.prod(shape),), 0
        x = node.emit(relax.op.reshape(x, shape))
    axis %= len(shape)
    result = [least(conditions, d) if k == axis else d for k, d in enumerate(shape)]
    constant_condition = node.constant(1)
    if constant_condition is not None and isinstance(shape[axis], int):
        chosen = np.flatnonzero(constant_condition[: shape[axis]])
        return relax.op.take(x, relax.const(chosen, "int64"), axis, mode="clip")
    if _has_none(result):
        if not _has_none([result[axis]]):
            raise node.unsupported(f"its input of shape {shape} may be empty along axis {axis} only")
        return _empty(result, dtype_of(x))
    kernel = compress_kernel(shape, dtype_of(x), axis, conditions)
    kept, count = _call(node, kernel, [x, condition], [(result, dtype_of(x))])
    return emit_leading(node.builder, kept, axis, emit_count(node.builder, count))


@converter("Unique")
def unique(node: Node) -> list[relax.Expr]:
    """Convert Unique of elements or slices, with first positions, inverse and counts."""
    x = node.input(0)
    shape, axis, dtype = node.sizes(x, "its input X"), node.attribute("axis"), dtype_of(x)
    if axis is None:
        shape, axis = (math.prod(shape),), 0
        x = node.emit(relax.op.reshape(x, shape))
    axis %= len(shape)
    items, others = shape[axis], [d for k, d in enumerate(shape) if k != axis]
    width = math.prod(others)
    if _has_none([items, width]):
        if not _has_none([items]):
            raise node.unsupported(f"its input of shape {shape} may be empty along axis {axis} only")
        return [_empty(shape, dtype), *(_empty((0,), "int64") for _ in range(3))]
    front = [axis, *(k for k in range(len(shape)) if k != axis)]
    matrix = node.emit(relax.op.reshape(node.emit(relax.op.permute_dims(x, front)), (items, width)))
    inner = "float32" if dtype in ("float16", "bfloat16") else dtype  # compilers lack some comparisons of half types
    if inner != dtype:
        matrix = node.emit(relax.op.astype(matrix, inner))
    kernel = unique_kernel(items, width, inner, bool(node.attribute("sorted", 1)))
    vectors: list[Any] = [((items,), "int64")] * 3
    rows, first, inverse, counts, count = _call(node, kernel, [matrix], [((items, width), inner), *vectors])
    if inner != dtype:
        rows = node.emit(relax.op.astype(rows, dtype))
    size = emit_count(node.builder, count)
    stacked = node.emit(relax.op.reshape(rows, (items, *others)))
    values = node.emit(relax.op.permute_dims(stacked, [front.index(k) for k in range(len(shape))]))
    leading = [emit_leading(node.builder, value, at, size) for value, at in ((values, axis), (first, 0), (counts, 0))]
    return [leading[0], leading[1], inverse, leading[2]]


@converter("NonMaxSuppression")
def non_max_suppression(node: Node) -> relax.Expr:
    """Convert NonMaxSuppression: rows of batch, class and box; without a largest number of boxes it selects none."""
    boxes, scores = node.input(0), node.input(1)
    batch, count, _ = node.sizes(boxes, "its boxes")
    _, classes, _ = node.sizes(scores, "its scores")
    if node.input(2) is None:
        return _empty((0, 3), "int64")
    known = node.constant(2)
    most = count if known is None else max(int(known.reshape(())), 0)
    case = Suppression(
        batch, classes, count, most, bool(node.attribute("center_point_box", 0)), node.input(4) is not None
    )
    if _has_none([batch, classes, count, most]):
        return _empty((0, 3), "int64")
    numbers = [_number(node, 2, "int64"), _number(node, 3, "float32"), _number(node, 4, "float32")]
    rows, selected = _call(node, suppression_kernel(case), [boxes, scores, *numbers], [((case.bound, 3), "int64")])
    return emit_leading(node.builder, rows, 0, emit_count(node.builder, selected))


def _number(node: Node, position: int, dtype: str) -> relax.Expr:
    """Return an optional input of one number as a vector; 0 if it is left out."""
    value = node.input(position)
    if value is None:
        return relax.const(np.zeros(1, dtype))
    return node.emit(relax.op.reshape(value, (1,)))


def _has_none(shape: Sequence[Any]) -> bool:
    """Whether a shape has no elements for all sizes."""
    return any(isinstance(size, int) and size == 0 for size in shape)


def _empty(shape: Sequence[Any], dtype: str) -> relax.Expr:
    return relax.op.zeros(tuple(shape), dtype)


def _call(
    node: Node, kernel: tirx.PrimFunc, arguments: Sequence[relax.Expr], results: Sequence[tuple[Sequence[int], str]]
) -> list[relax.Expr]:
    """Emit a kernel that writes these results and a count."""
    function = node.builder.add_func(kernel, node.operator.lower())
    types = [relax.TensorType(tuple(shape), dtype) for shape, dtype in (*results, ((1,), "int64"))]
    buffers = node.emit(relax.call_tir(function, list(arguments), types))
    return [node.emit(relax.TupleGetItem(buffers, k)) for k in range(len(types))]
