"""Converters of activations to Relax operators, which can be fused into products.

Corrections of TVM 0.27.0, ``relax/frontend/onnx/onnx_frontend.py``:

- ``Clip``: emits each bound as a kernel of ``topi``, which passes cannot fuse into a product.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from tvm import relax

from ...tensor_types import dtype_of
from .nodes import Node, constant_of, converter
from .upstream import convert_upstream


@converter("Clip")
def clip(node: Node) -> relax.Expr:
    """Convert Clip to ``maximum`` and ``minimum``; bounds are inputs from opset 11, attributes before.

    A bound that is missing or NaN does not apply; NaN inputs stay NaN.
    """
    x: Any = node.inputs[0]
    for name, position, bound in (("min", 1, relax.op.maximum), ("max", 2, relax.op.minimum)):
        limit = node.input(position)
        if node.opset < 11:
            limit = relax.const(node.attributes[name], dtype_of(x)) if name in node.attributes else None
        if limit is not None:
            x = _bounded(node, x, limit, bound)
    return x


def _bounded(node: Node, x: relax.Expr, limit: relax.Expr, bound: Callable[..., relax.Expr]) -> relax.Expr:
    value = constant_of(limit)
    if value is not None and value.dtype.kind != "f":
        return node.emit(bound(x, limit))
    if value is not None:
        return x if np.isnan(value).any() else node.emit(bound(x, limit))
    if "float" in dtype_of(limit):
        none = relax.const(-np.inf if bound is relax.op.maximum else np.inf, limit.ty.dtype.dtype)
        limit = node.emit(relax.op.where(node.emit(relax.op.isnan(limit)), none, limit))
        return node.emit(bound(limit, x))  # the second operand if either is NaN
    return node.emit(bound(x, limit))


@converter("Softmax")
def softmax(node: Node) -> relax.Expr:
    """Convert Softmax; half precision is computed in float32, since sums of small terms lose most digits in 16 bits."""
    x = node.inputs[0]
    kind = dtype_of(x)
    if kind not in ("float16", "bfloat16"):
        return convert_upstream(node)
    wide = node.convert_as("Softmax", [node.emit(relax.op.astype(x, "float32"))], node.attributes, node.opset)
    return relax.op.astype(wide, kind)
