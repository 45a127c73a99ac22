"""Operators of torch.export programs that TVM's frontend converts with the operands' own dtypes, where torch promotes."""

from __future__ import annotations

from typing import Any

from tvm import relax


def _promoted(node: Any, importer: Any, position: int) -> relax.Expr:
    """An operand in the dtype of the node's result."""
    dtype = str(node.meta["val"].dtype).removeprefix("torch.")
    value = importer.retrieve_args(node)[position]
    if not isinstance(value, relax.Expr):
        return relax.const(value, dtype)
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


CONVERTERS = {"div.Tensor": _divide, "log.default": _logarithm}
"""By the operator's name; they take the place of TVM's."""
