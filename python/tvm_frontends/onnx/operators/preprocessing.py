"""Converters of preprocessing operators of ai.onnx.ml."""

from __future__ import annotations

import math

from tvm import relax

from ...tensor_types import dtype_of
from ...vector_norms import normalized
from .elementwise import scalar
from .nodes import Node, converter
from .scores import DOMAIN


@converter("ArrayFeatureExtractor", domain=DOMAIN)
def array_feature_extractor(node: Node) -> relax.Expr:
    """Convert ArrayFeatureExtractor: a ``take`` of columns along the last axis."""
    x, at = node.input(0), node.input(1)
    shape = node.shape(x, "its input X")
    count = 1
    for size in node.shape(at, "its input Y"):
        count *= size
    if len(shape) == 1:
        x = node.emit(relax.op.reshape(x, (1, shape[0])))
    return relax.op.take(x, node.emit(relax.op.reshape(at, (count,))), max(len(shape), 2) - 1)


@converter("Binarizer", domain=DOMAIN)
def binarizer(node: Node) -> relax.Expr:
    """Convert Binarizer: 1 above the threshold, else 0."""
    x = node.input(0)
    return relax.op.astype(relax.op.greater(x, scalar(node.attribute("threshold", 0.0), x)), dtype_of(x))


@converter("Scaler", domain=DOMAIN)
def scaler(node: Node) -> relax.Expr:
    """Convert Scaler: ``(x - offset) * scale`` in float32."""
    x = relax.op.astype(node.input(0), "float32")
    offset, scale = (relax.const(list(node.attribute(name, (default,))), "float32")
                     for name, default in (("offset", 0.0), ("scale", 1.0)))  # fmt: skip
    return relax.op.multiply(relax.op.subtract(x, offset), scale)


@converter("Normalizer", domain=DOMAIN)
def normalizer(node: Node) -> relax.Expr:
    """Convert Normalizer: divide rows by their maximum, L1 or L2 norm, in float32; rows of norm 0 are divided by 1."""
    x = node.emit(relax.op.astype(node.input(0), "float32"))
    kind = node.attribute("norm", "MAX")
    if kind in ("L1", "L2"):
        return normalized(node.emit, x, int(kind[1]), -1)
    if kind != "MAX":
        raise node.unsupported(f"norm is {kind!r}; allowed are MAX, L1 and L2")
    size = node.emit(relax.op.max(x, -1, keepdims=True))
    nothing = relax.op.equal(size, scalar(0.0, size))
    return relax.op.divide(x, node.emit(relax.op.where(nothing, scalar(1.0, size), size)))


@converter("Imputer", domain=DOMAIN)
def imputer(node: Node) -> relax.Expr:
    """Convert Imputer: replace one value, which may be NaN, by a number or by one number for each column."""
    x = node.emit(node.input(0))
    is_float = dtype_of(x).startswith("float")
    names = (
        ("imputed_value_floats", "replaced_value_float")
        if is_float
        else ("imputed_value_int64s", "replaced_value_int64")
    )
    values, replaced = list(node.attribute(names[0], ())), node.attribute(names[1], 0)
    columns = node.shape(x, "its input X")[-1]
    if len(values) not in (1, columns):
        raise node.unsupported(
            f"{names[0]} has {len(values)} numbers for an input of {dtype_of(x)} with {columns} columns; 1 or {columns} are "
            "allowed"
        )
    missing = relax.op.isnan(x) if math.isnan(replaced) else relax.op.equal(x, scalar(replaced, x))
    return relax.op.where(node.emit(missing), relax.const(values, dtype_of(x)), x)
