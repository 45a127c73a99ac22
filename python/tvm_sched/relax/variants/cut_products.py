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
"""Bytes of the second operand from which on a product is worth splitting."""


ALIGNED = 16
"""Columns at whose multiples pieces begin that are not equal."""


@dataclass(frozen=True)
class Product:
    """A matrix product of an activation and a matrix of weights.

    Attributes
    ----------
    transposed : bool
        Whether the weights are of shape (columns, depth), else (depth, columns).
    first, weights : relax.TensorType
        Types of the operands.
    """

    transposed: bool
    first: relax.TensorType
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
        """The columns, from and up to, of each of ``count`` pieces.

        Where they cannot be divided evenly, as the 50257 tokens of GPT-2, all pieces but the last begin at a multiple of
        `ALIGNED` columns if they have enough of them.
        """
        if self.columns % count and self.columns > count * count * ALIGNED:
            width = -(-self.columns // (count * ALIGNED)) * ALIGNED
            return [(k * width, min((k + 1) * width, self.columns)) for k in range(count)]
        return [(k * self.columns // count, (k + 1) * self.columns // count) for k in range(count)]

    def kernel(self, columns: int | None = None) -> tvm.tirx.PrimFunc:
        """The kernel of this number of columns; of all, where none is given."""
        shape = list(known_shape(self.weights))
        shape[self.axis] = columns or shape[self.axis]
        weights = relax.TensorType(shape, dtype_of(self.weights))
        return _kernel([self.first, weights], self._call)

    def _call(self, builder: relax.BlockBuilder, first: relax.Expr, weights: relax.Expr) -> relax.Expr:
        if self.transposed:
            weights = builder.emit(relax.op.permute_dims(weights))
        return relax.op.matmul(first, weights)


def as_product(function: tvm.tirx.PrimFunc, first: relax.Expr, weights: relax.Expr) -> Product | None:
    """The product that a kernel is, of these operands; None where it is another computation, or no pieces are worth while.

    A kernel is a product if it is what TVM makes of one, statement for statement.
    """
    shape, given = static_shape(weights), static_shape(first)
    if shape is None or len(shape) != 2 or not given or tensor_bytes(weights) < LEAST_WEIGHTS:
        return None
    depth = given[-1]
    for transposed in (True, False):
        if shape[1 if transposed else 0] == depth:
            product = Product(transposed, first.ty, weights.ty)
            if tvm_ffi.structural_equal(product.kernel(), function, map_free_vars=True):
                return product
    return None


@dataclass(frozen=True)
class Channels:
    """A kernel of an activation and weights, other than a product, in equal pieces of its result along an axis.

    Attributes
    ----------
    function : tvm.tirx.PrimFunc
    axis, result_axis : int
        Axes of the weights and of the result along which the pieces lie.
    columns : int
        Size of the result along that axis.
    """

    function: tvm.tirx.PrimFunc
    axis: int
    result_axis: int
    columns: int
    name: ClassVar[str] = "channels"

    def allows(self, count: int) -> bool:
        """Whether it can be cut into ``count`` pieces."""
        return self.columns % count == 0

    def pieces(self, count: int) -> list[tuple[int, int]]:
        """The channels, from and up to, of each piece."""
        width = self.columns // count
        return [(k * width, (k + 1) * width) for k in range(count)]

    def kernel(self, columns: int) -> tvm.tirx.PrimFunc:
        """The kernel of ``columns`` channels."""
        found = slice_result(self.function, self.result_axis, self.columns // columns)
        assert found is not None  # as for two pieces
        return found.kernel


def as_channels(function: tvm.tirx.PrimFunc, first: relax.Expr, weights: relax.Expr) -> Channels | None:
    """The axis along which a kernel's result needs parts of the weights alone: a convolution's output channels.

    None where no axis is one, or no pieces are worth while.
    """
    if not static_shape(first) or not static_shape(weights) or tensor_bytes(weights) < LEAST_WEIGHTS:
        return None
    for axis, extent in enumerate(function.params[-1].shape):
        cut = slice_result(function, axis, 2)
        if cut is not None and cut.axes[0] is None and cut.axes[1] is not None:
            return Channels(function, cut.axes[1], axis, int(extent))
    return None


def concatenation(parts: Sequence[relax.TensorType], axis: int = -1) -> tvm.tirx.PrimFunc:
    """The kernel that puts pieces beside each other along an axis."""
    return _kernel(list(parts), lambda builder, *pieces: relax.op.concat(list(pieces), axis=axis))


def part_of(whole: relax.TensorType, axis: int, begin: int, end: int) -> tvm.tirx.PrimFunc:
    """The kernel that takes the part of a tensor from ``begin`` up to ``end`` along an axis."""
    return _kernel([whole], lambda builder, a: relax.op.strided_slice(a, [axis], [begin], [end]))


def addition(parts: Sequence[relax.TensorType]) -> tvm.tirx.PrimFunc:
    """The kernel that adds tensors of one type, in order."""
    shape = list(parts[0].shape.values)
    given = [te.placeholder(shape, dtype_of(part), f"a{k}") for k, part in enumerate(parts)]
    result = te.compute(shape, lambda *i: functools.reduce(operator.add, (a(*i) for a in given)), "add")
    return te.create_prim_func([*given, result]).without_attr("global_symbol").with_attr("op_pattern", 0)


def _kernel(types: Sequence[relax.TensorType], compute: Any) -> tvm.tirx.PrimFunc:
    """The one kernel to which TVM lowers a computation."""
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
