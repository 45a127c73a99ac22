"""Cut products and convolutions into pieces by columns or channels, and make the kernels that join the pieces."""

from __future__ import annotations

import functools
import operator
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import tvm
import tvm_ffi
from tvm import relax, te

from ..ir.tensor_types import dtype_of, known_shape, static_shape, tensor_bytes
from .kernel_slicing import slice_result

LEAST_WEIGHTS = 1 << 20
"""Fewest bytes of weights for which pieces pay."""

ALIGNED = 16
"""Unequal pieces begin at multiples of this number of columns."""


@dataclass(frozen=True)
class Product:
    """A matrix product of an activation and a matrix of weights."""

    transposed: bool  # the weights have the shape (columns, depth), else (depth, columns)
    first: relax.TensorType  # the activation
    weights: relax.TensorType
    name: ClassVar[str] = "columns"

    @property
    def result_axis(self) -> int:
        """Axis of the result along which its columns lie."""
        return max(len(self.first.shape.values) - 1, 0)

    def allows(self, count: int) -> bool:
        """Whether it can be cut into ``count`` pieces."""
        return self.columns >= count

    @property
    def axis(self) -> int:
        """Axis of the weights along which columns of the result lie."""
        return 0 if self.transposed else 1

    @property
    def columns(self) -> int:
        """Columns of the result."""
        return int(self.weights.shape.values[self.axis])

    def pieces(self, count: int) -> list[tuple[int, int]]:
        """Return the first column of each of ``count`` pieces, and the one after its last.

        If ``count`` does not divide the columns (GPT-2 has 50257 tokens) and there are enough of them, every piece begins
        at a multiple of `ALIGNED` columns.
        """
        if self.columns % count and self.columns > count * count * ALIGNED:
            width = -(-self.columns // (count * ALIGNED)) * ALIGNED
            return [(k * width, min((k + 1) * width, self.columns)) for k in range(count)]
        return [(k * self.columns // count, (k + 1) * self.columns // count) for k in range(count)]

    def kernel(self, columns: int | None = None) -> tvm.tirx.PrimFunc:
        """Make the kernel for a number of columns; default: all."""
        shape = list(known_shape(self.weights))
        shape[self.axis] = columns or shape[self.axis]
        weights = relax.TensorType(shape, dtype_of(self.weights))
        return _kernel([self.first, weights], self._call)

    def _call(self, builder: relax.BlockBuilder, first: relax.Expr, weights: relax.Expr) -> relax.Expr:
        if self.transposed:
            weights = builder.emit(relax.op.permute_dims(weights))
        return relax.op.matmul(first, weights)


def as_product(function: tvm.tirx.PrimFunc, first: relax.Expr, weights: relax.Expr) -> Product | None:
    """Return the product that a kernel computes; None for another computation, or if pieces do not pay.

    A kernel is a product if it equals TVM's kernel of one, statement for statement.
    """
    shape, first_shape = static_shape(weights), static_shape(first)
    if shape is None or len(shape) != 2 or not first_shape or tensor_bytes(weights) < LEAST_WEIGHTS:
        return None
    if dtype_of(first) != dtype_of(weights):  # weights are the places of a gather, for one
        return None
    depth = first_shape[-1]
    for transposed in (True, False):
        if shape[1 if transposed else 0] == depth:
            product = Product(transposed, first.ty, weights.ty)
            if tvm_ffi.structural_equal(product.kernel(), function, map_free_vars=True):
                return product
    return None


@dataclass(frozen=True)
class Channels:
    """A kernel of an activation and weights, other than a product, that is cut along an axis of its result."""

    function: tvm.tirx.PrimFunc
    axis: int  # of the weights
    result_axis: int
    columns: int  # size of the result along its axis
    name: ClassVar[str] = "channels"

    def allows(self, count: int) -> bool:
        """Whether it can be cut into ``count`` pieces."""
        return self.columns % count == 0

    def pieces(self, count: int) -> list[tuple[int, int]]:
        """Return the first channel of each piece, and the one after its last."""
        width = self.columns // count
        return [(k * width, (k + 1) * width) for k in range(count)]

    def kernel(self, columns: int) -> tvm.tirx.PrimFunc:
        """Make the kernel for a number of channels."""
        piece = slice_result(self.function, self.result_axis, self.columns // columns)
        assert piece is not None  # as for two pieces
        return piece.kernel


def as_channels(function: tvm.tirx.PrimFunc, first: relax.Expr, weights: relax.Expr) -> Channels | None:
    """Cut a kernel along an axis of its result whose parts need only parts of the weights (output channels).

    Return None if it has no such axis, or if pieces do not pay.
    """
    if not static_shape(first) or not static_shape(weights) or tensor_bytes(weights) < LEAST_WEIGHTS:
        return None
    for axis, extent in enumerate(function.params[-1].shape):
        cut = slice_result(function, axis, 2)
        if cut is not None and cut.axes[0] is None and cut.axes[1] is not None:
            return Channels(function, cut.axes[1], axis, int(extent))
    return None


def concatenation(parts: Sequence[relax.TensorType], axis: int = -1) -> tvm.tirx.PrimFunc:
    """Make the kernel that concatenates tensors along an axis."""
    return _kernel(list(parts), lambda builder, *pieces: relax.op.concat(list(pieces), axis=axis))


def part_of(whole: relax.TensorType, axis: int, begin: int, end: int) -> tvm.tirx.PrimFunc:
    """Make the kernel that copies a tensor's part from ``begin`` up to ``end`` along an axis."""
    return _kernel([whole], lambda builder, a: relax.op.strided_slice(a, [axis], [begin], [end]))


def shares_of(whole: relax.TensorType, axis: int, parts: int) -> tvm.tirx.PrimFunc:
    """Make the kernel that splits a tensor into equal shares along an axis."""
    return _kernel([whole], lambda builder, a: relax.op.split(a, parts, axis))


def addition(parts: Sequence[relax.TensorType]) -> tvm.tirx.PrimFunc:
    """Make the kernel that adds tensors of one type, in order."""
    shape = list(parts[0].shape.values)
    terms = [te.placeholder(shape, dtype_of(part), f"a{k}") for k, part in enumerate(parts)]
    result = te.compute(shape, lambda *i: functools.reduce(operator.add, (a(*i) for a in terms)), "add")
    return te.create_prim_func([*terms, result]).without_attr("global_symbol").with_attr("op_pattern", 0)


def _kernel(types: Sequence[relax.TensorType], compute: Any) -> tvm.tirx.PrimFunc:
    """Make TVM's kernel of a computation that lowers to one."""
    builder = relax.BlockBuilder()
    arguments = [relax.Var(f"a{k}", ty) for k, ty in enumerate(types)]
    with builder.function("main", arguments):
        with builder.dataflow():
            result = builder.emit_output(compute(builder, *arguments))
        builder.emit_func_output(result)
    transform = relax.transform
    passes = [
        transform.FuseTransposeMatmul(), transform.InlinePrivateFunctions(), transform.LegalizeOps(),
        transform.AnnotateTIROpPattern(), transform.DeadCodeElimination(),
    ]  # fmt: skip
    lowered = tvm.transform.Sequential(passes)(builder.get())
    (function,) = (f for _, f in lowered.functions_items() if isinstance(f, tvm.tirx.PrimFunc))
    return function
