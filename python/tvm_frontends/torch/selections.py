"""Converters of torch's operators whose result has a size that data decide; later operators have it as a symbol."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from tvm import relax, te, tirx

from ..kernels.bounded import compress_kernel, emit_count, emit_leading, nonzero_kernel
from ..tensor_types import dtype_of
from .node_calls import Call, converter


@converter("nonzero.default")
def nonzero(call: Call) -> relax.Expr:
    """Convert ``nonzero``: a row for each element that is not zero."""
    x = call.tensor("self")
    shape = _sizes(x)
    kernel = nonzero_kernel(shape, dtype_of(x))
    rank = max(len(shape), 1)
    leading = _leading(call, kernel, [x], ((rank, math.prod(shape)), "int64"), 1)
    rows = call.emit(relax.op.permute_dims(leading))
    return rows if shape else call.emit(relax.op.strided_slice(rows, [1], [0], [0]))


@converter("masked_select.default")
def masked_select(call: Call) -> relax.Expr:
    """Convert ``masked_select``: the elements at which a mask is true, in the order of memory."""
    x, mask = call.tensor("self"), call.tensor("mask")
    shape = call.emit(relax.op.logical_or(call.emit(relax.op.equal(x, x)), mask)).ty.shape
    flat = [relax.op.reshape(call.emit(relax.op.broadcast_to(each, shape)), (-1,)) for each in (x, mask)]
    return masked(call, *map(call.emit, flat))


def masked(call: Call, x: relax.Expr, mask: relax.Expr) -> relax.Expr:
    """Emit ``x[mask]``; the mask has the first dimensions of ``x``."""
    shape, rank = _sizes(x), len(mask.ty.shape)
    if rank != 1:
        shape = [math.prod(shape[:rank]), *shape[rank:]]
        x = call.emit(relax.op.reshape(x, shape))
        mask = call.emit(relax.op.reshape(mask, shape[:1]))
    mask = call.cast(mask, "bool")
    return _leading(call, compress_kernel(shape, dtype_of(x), 0, shape[0]), [x, mask], (shape, dtype_of(x)), 0)


@converter("repeat_interleave.Tensor")
def repeat_interleave(call: Call) -> relax.Expr:
    """Convert ``repeat_interleave`` of counts: each position as often as its count says."""
    counts = call.cast(call["repeats"], "int64")
    ends = call.emit(relax.op.cumsum(counts, 0))
    total = call.emit(relax.op.sum(counts, [0], keepdims=True))
    least = call.emit(relax.op.min(counts, [0], keepdims=True))
    negative = call.emit(relax.op.less(least, relax.const(0, "int64")))
    total = call.emit(relax.op.where(negative, relax.const(-1, "int64"), total))  # an error in torch, too
    n = emit_count(call.importer.block_builder, total, "repeated")

    def compute(last: te.Tensor, size: Any) -> te.Tensor:
        k = te.reduce_axis((0, last.shape[0]), "k")
        return te.compute(
            (size,), lambda i: te.sum(tirx.Select(last[k] <= i, tirx.const(1, "int64"), tirx.const(0, "int64")), axis=k)
        )

    places = call.importer.block_builder.emit_te(compute, ends, n, primfunc_name_hint="repeat_interleave")
    return call.cast(places, call.dtype)


def _sizes(x: relax.Expr) -> list[Any]:
    return [int(size) if isinstance(size, tirx.IntImm) else size for size in x.ty.shape.values]


def _leading(
    call: Call, kernel: tirx.PrimFunc, arguments: list[relax.Expr], result: tuple[Sequence[Any], str], axis: int
) -> relax.Expr:
    """Emit a kernel that fills a buffer and counts, and cut its result to the count."""
    builder = call.importer.block_builder
    types = [relax.TensorType(tuple(result[0]), result[1]), relax.TensorType((1,), "int64")]
    buffers = call.emit(relax.call_tir(builder.add_func(kernel, "select"), arguments, types))
    value, count = (call.emit(relax.TupleGetItem(buffers, k)) for k in range(2))
    return emit_leading(builder, value, axis, emit_count(builder, count))
