"""Kernels that copy the first ``count`` entries of a buffer."""

from __future__ import annotations

import tvm
from tvm import relax, tirx
from tvm.tirx.script import builder as T  # noqa: N812

from ...tensor_types import dtype_of
from .writing import Kernel, loops


def emit_count(builder: relax.BlockBuilder, count: relax.Expr) -> tirx.Var:
    """A tensor of one int64 as a size that shapes can have."""
    size = tirx.Var("n", "int64")
    shape = builder.emit(relax.op.tensor_to_shape(count))
    builder.match_cast(shape, relax.ShapeType([size]))
    return size


def emit_leading(builder: relax.BlockBuilder, value: relax.Expr, axis: int, size: tirx.Var) -> relax.Expr:
    """The first ``size`` entries of a tensor along an axis; ``size`` comes from `emit_count`."""
    shape, dtype = [int(d) for d in value.ty.shape.values], dtype_of(value)
    function = builder.add_func(_leading_kernel(tuple(shape), dtype, axis), "leading_part")
    return builder.emit(relax.call_tir(function, [value], relax.TensorType(_with(shape, axis, size), dtype)))


def _leading_kernel(shape: tuple[int, ...], dtype: str, axis: int) -> tvm.tirx.PrimFunc:
    kernel = Kernel()
    with kernel.write("leading_part"):
        size = T.int64()
        whole = kernel.argument("whole", shape, dtype)
        part = kernel.argument("part", _with(list(shape), axis, size), dtype)
        with loops(_with(list(shape), axis, size)) as place:
            T.buffer_store(part, whole[tuple(place)], place)
    return kernel.function


def _with(shape: list[int], axis: int, size: tirx.Var) -> list[int | tirx.Var]:
    return [size if k == axis else d for k, d in enumerate(shape)]
