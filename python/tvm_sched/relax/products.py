"""Matrix products of which each piece makes some of the columns: their kernels, and those that join the pieces again."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import tvm
import tvm_ffi
from tvm import relax

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
        shape = [int(extent) for extent in self.weights.shape.values]
        shape[self.axis] = columns or shape[self.axis]
        weights = relax.TensorType(shape, str(self.weights.dtype.dtype))
        return _kernel([self.first, weights], self._call)

    def _call(self, builder: relax.BlockBuilder, first: relax.Expr, weights: relax.Expr) -> relax.Expr:
        if self.transposed:
            weights = builder.emit(relax.op.permute_dims(weights))
        return relax.op.matmul(first, weights)


def as_product(function: tvm.tirx.PrimFunc, first: relax.Expr, weights: relax.Expr) -> Product | None:
    """The product that a kernel is, of these operands; None where it is another computation, or no pieces are worth while.

    A kernel is a product if it is what TVM makes of one, statement for statement.
    """
    if not _is_static(first.ty) or not _is_static(weights.ty) or len(weights.ty.shape.values) != 2:
        return None
    shape = [int(extent) for extent in weights.ty.shape.values]
    if shape[0] * shape[1] * tvm.DataType(str(weights.ty.dtype.dtype)).bits // 8 < LEAST_WEIGHTS:
        return None
    depth = int(first.ty.shape.values[-1])
    for transposed in (True, False):
        if shape[1 if transposed else 0] == depth:
            product = Product(transposed, first.ty, weights.ty)
            if tvm_ffi.structural_equal(product.kernel(), function, map_free_vars=True):
                return product
    return None


def concatenation(parts: Sequence[relax.TensorType]) -> tvm.tirx.PrimFunc:
    """The kernel that puts pieces beside each other, along their last axis."""
    return _kernel(list(parts), lambda builder, *pieces: relax.op.concat(list(pieces), axis=-1))


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


def _is_static(ty: Any) -> bool:
    known = isinstance(ty, relax.TensorType) and isinstance(ty.shape, relax.ShapeExpr)
    return known and len(ty.shape.values) > 0 and all(isinstance(d, tvm.tirx.IntImm) for d in ty.shape.values)
