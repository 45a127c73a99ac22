"""Operators of the domain ai.onnx.ml that work on numbers."""

from __future__ import annotations

from tvm import relax

from .elementwise import scalar
from .registry import Node, converter, dtype_of

_DOMAIN = "ai.onnx.ml"


@converter("ArrayFeatureExtractor", domain=_DOMAIN)
def array_feature_extractor(node: Node) -> relax.Expr:
    """Columns of the last axis, by number."""
    x, at = node.input(0), node.input(1)
    shape = node.shape(x, "its input X")
    count = 1
    for size in node.shape(at, "its input Y"):
        count *= size
    if len(shape) == 1:
        x = node.emit(relax.op.reshape(x, (1, shape[0])))
    return relax.op.take(x, node.emit(relax.op.reshape(at, (count,))), max(len(shape), 2) - 1)


@converter("Binarizer", domain=_DOMAIN)
def binarizer(node: Node) -> relax.Expr:
    """1 above the threshold, else 0."""
    x = node.input(0)
    return relax.op.astype(relax.op.greater(x, scalar(node.attribute("threshold", 0.0), x)), dtype_of(x))


@converter("Scaler", domain=_DOMAIN)
def scaler(node: Node) -> relax.Expr:
    """``(x - offset) * scale``, in float32."""
    x = relax.op.astype(node.input(0), "float32")
    offset, scale = (relax.const(list(node.attribute(name, (default,))), "float32")
                     for name, default in (("offset", 0.0), ("scale", 1.0)))  # fmt: skip
    return relax.op.multiply(relax.op.subtract(x, offset), scale)
