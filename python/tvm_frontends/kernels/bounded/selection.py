"""Kernels that select elements by a condition, or copy the first ``count`` entries of a buffer."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import tvm
from tvm import relax, tirx
from tvm.tirx.script import builder as T  # noqa: N812

from ...tensor_types import dtype_of
from .writing import Kernel, add_one, counter, least, long, loops, when


def emit_count(builder: relax.BlockBuilder, count: relax.Expr, name: str = "n") -> tirx.Var:
    """Return a tensor of one int64 as a size for shapes, a symbol of this name."""
    size = tirx.Var(name, "int64")
    # What tensor_to_shape is decomposed to, which would replace the symbol in types but not in arguments of calls.
    call = relax.call_pure_packed("vm.builtin.tensor_to_shape", count, ty_args=relax.ShapeType(ndim=1))
    shape = builder.emit(call)
    builder.match_cast(shape, relax.ShapeType([size]))
    return size


def emit_leading(builder: relax.BlockBuilder, value: relax.Expr, axis: int, size: tirx.Var) -> relax.Expr:
    """Emit a copy of the first ``size`` entries of a tensor along an axis; ``size`` comes from `emit_count`."""
    shape = [int(d) if isinstance(d, tirx.IntImm) else d for d in value.ty.shape.values]
    dtype = dtype_of(value)
    function = builder.add_func(_leading_kernel(shape, dtype, axis), "leading_part")
    return builder.emit(relax.call_tir(function, [value], relax.TensorType(_with(shape, axis, size), dtype)))


def _leading_kernel(given: list[Any], dtype: str, axis: int) -> tvm.tirx.PrimFunc:
    kernel = Kernel()
    with kernel.write("leading_part"):
        size, shape = T.int64(), kernel.sizes(given)
        whole = kernel.argument("whole", shape, dtype)
        part = kernel.argument("part", _with(shape, axis, size), dtype)
        with loops(_with(shape, axis, size)) as place:
            T.buffer_store(part, whole[tuple(place)], place)
    return kernel.function


def _with(shape: list[Any], axis: int, size: tirx.Var) -> list[Any]:
    return [size if k == axis else d for k, d in enumerate(shape)]


def nonzero_kernel(given: Sequence[Any], dtype: str) -> tirx.PrimFunc:
    """Build the kernel for the positions of the elements that are not zero, in the order of memory.

    It takes the tensor, and writes positions ``(rank, elements)`` and their count ``(1,)``, both int64. A scalar has one
    position, 0.
    """
    kernel = Kernel()
    with kernel.write("nonzero"):
        shape, (elements,) = kernel.sizes(given), kernel.sizes([math.prod(given)])
        rank = max(len(shape), 1)
        x = kernel.argument("x", shape, dtype)
        positions = kernel.argument("places", (rank, elements), "int64")
        count = kernel.argument("count", (1,), "int64")
        filled = counter()
        with loops(shape) as place, when(_is_true(x[tuple(place)], dtype)):
            for axis, position in enumerate(place or [0]):
                T.buffer_store(positions, long(position), [long(axis), filled[0]])
            add_one(filled)
        T.buffer_store(count, filled[0], [0])
    return kernel.function


def compress_kernel(given: Sequence[Any], dtype: str, axis: int, number: Any) -> tirx.PrimFunc:
    """Build the kernel for the slices along an axis for which a condition holds.

    It takes the tensor and the conditions ``(number,)`` (bool; slices behind the last condition are dropped). It
    writes the selected slices at the front of a buffer, and their count.
    """
    kernel = Kernel()
    with kernel.write("compress"):
        shape, (conditions,) = kernel.sizes(given), kernel.sizes([number])
        others = [d for k, d in enumerate(shape) if k != axis]
        kept = least(conditions, shape[axis])
        x = kernel.argument("x", shape, dtype)
        condition = kernel.argument("condition", (conditions,), "bool")
        y = kernel.argument("y", [*shape[:axis], *kernel.sizes([kept]), *shape[axis + 1 :]], dtype)
        count = kernel.argument("count", (1,), "int64")
        filled = counter()
        with loops([kept]) as (k,), when(condition[k]):
            with loops(others) as place:
                source, target = ([*place[:axis], at, *place[axis:]] for at in (k, filled[0]))
                T.buffer_store(y, x[tuple(source)], target)
            add_one(filled)
        T.buffer_store(count, filled[0], [0])
    return kernel.function


def _is_true(value: tirx.Expr, dtype: str) -> tirx.Expr:
    return value if dtype == "bool" else value != tirx.const(0, dtype)
