"""Operators of torch.export programs that TVM's frontend converts with the operands' own dtypes, where torch promotes."""

from __future__ import annotations

from typing import Any

import tvm
from tvm import relax


def _promoted(node: Any, importer: Any, position: int) -> relax.Expr:
    """An operand in the dtype of the node's result."""
    dtype = str(node.meta["val"].dtype).removeprefix("torch.")
    value = importer.retrieve_args(node)[position]
    return _as_dtype(value, importer, dtype) if isinstance(value, relax.Expr) else relax.const(value, dtype)


def _as_dtype(value: relax.Expr, importer: Any, dtype: str) -> relax.Expr:
    if str(value.ty.dtype.dtype) == dtype:
        return value
    return importer.block_builder.emit(relax.op.astype(value, dtype))


def _divide(node: Any, importer: Any) -> relax.Expr:
    """``div.Tensor``: true division, of whole numbers and of mixed dtypes, too."""
    operands = [_promoted(node, importer, position) for position in (0, 1)]
    return importer.block_builder.emit(relax.op.divide(*operands))


def _logarithm(node: Any, importer: Any) -> relax.Expr:
    """``log.default``, of whole numbers, too."""
    return importer.block_builder.emit(relax.op.log(_promoted(node, importer, 0)))


def _concatenate(node: Any, importer: Any) -> relax.Expr:
    """``cat.default``: a tensor of shape (0,) goes with any others, as an empty key-value cache does, and adds nothing."""
    parts, *rest = importer.retrieve_args(node)
    axis = rest[0] if rest else node.kwargs.get("dim", 0)
    kept = [k for k, part in enumerate(parts) if not _is_nothing(part)] or [0]
    dtype = str(node.meta["val"].dtype).removeprefix("torch.")
    values = [_as_dtype(parts[k], importer, dtype) for k in kept]
    if len(values) == 1:
        return values[0]
    return importer.block_builder.emit(relax.op.concat(values, axis=axis))


def _is_zero(size: Any) -> bool:
    return isinstance(size, tvm.tirx.IntImm) and int(size) == 0


def _is_nothing(part: relax.Expr) -> bool:
    shape = part.ty.shape
    return isinstance(shape, relax.ShapeExpr) and len(shape.values) == 1 and _is_zero(shape.values[0])


CONVERTERS = {"cat.default": _concatenate, "div.Tensor": _divide, "log.default": _logarithm}
"""By the operator's name; they take the place of TVM's."""
