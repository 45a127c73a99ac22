"""Converters of linear models and LabelEncoder of ai.onnx.ml, as scikit-learn's models are exported."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
from onnx import numpy_helper
from tvm import relax

from ...tensor_types import dtype_of
from .nodes import Node, converter
from .scores import DOMAIN, class_labels, one_class, post_transform


@converter("LinearRegressor", domain=DOMAIN)
def linear_regressor(node: Node) -> relax.Expr:
    """Convert LinearRegressor: ``post_transform(x @ coefficients.T + intercepts)``.

    With one target, the only allowed post_transform is NONE.
    """
    targets, kind = int(node.attribute("targets", 1)), node.attribute("post_transform", "NONE")
    if targets == 1 and kind != "NONE":
        raise node.unsupported(
            f"its post_transform is {kind}, which ONNX Runtime ignores with one target; apply it behind the node"
        )
    return relax.op.astype(post_transform(node, _scores(node, targets), kind), "float32")


@converter("LinearClassifier", domain=DOMAIN)
def linear_classifier(node: Node) -> list[relax.Expr]:
    """Convert LinearClassifier with integer labels: the label of the largest score, and the scores.

    With one score for two classes, its sign decides, and post_transform must be LOGISTIC.
    """
    labels, kind = class_labels(node, "classlabels_ints"), node.attribute("post_transform", "NONE")
    count = len(labels)
    single = count == 2 and len(node.attribute("intercepts", ())) == 1
    scores = _scores(node, 1 if single else count)
    if single and kind == "NONE":
        raise node.unsupported(
            "it has one score for two classes, and post_transform NONE: the score of the first class then differs between "
            "ONNX Runtime and ONNX's reference; LOGISTIC is allowed, and a score for each class"
        )
    if single:
        return one_class(node, scores, labels, kind, False)
    if count < 2:
        raise node.unsupported(
            "it has 1 class; at least 2 are needed for a choice: cut the node, its label is constant"
        )
    best = node.emit(relax.op.argmax(scores, axis=1))
    transformed = relax.op.astype(post_transform(node, scores, kind), "float32")
    return [relax.op.take(relax.const(labels, "int64"), best, 0), transformed]


def _scores(node: Node, targets: int) -> relax.Expr:
    """Return the linear scores, shape (rows, targets)."""
    x = node.input(0)
    shape, wide = node.sizes(x, "its input X"), "float64" if dtype_of(x) == "float64" else "float32"
    rows, features = (1 if len(shape) == 1 else shape[0]), node.size(x, -1, "its input X")
    weights, bias = (np.asarray(node.attribute(name, ()), wide) for name in ("coefficients", "intercepts"))
    if weights.size != targets * features or bias.size not in (0, targets):
        raise node.unsupported(
            f"it has {weights.size} coefficients and {bias.size} intercepts; {targets} results of {features} features need "
            f"{targets * features} and {targets}"
        )
    x = node.emit(relax.op.astype(node.emit(relax.op.reshape(x, (rows, features))), wide))
    scores = node.emit(relax.op.matmul(x, relax.const(weights.reshape(targets, features).T.copy(), wide)))
    return node.emit(relax.op.add(scores, relax.const(bias, wide))) if bias.size else scores


@converter("LabelEncoder", domain=DOMAIN)
def label_encoder(node: Node) -> relax.Expr:
    """Convert LabelEncoder between tables of numbers; NaN is a key from version 4 on. Tables of text are refused."""
    x = node.input(0)
    keys, values = _table(node, "keys"), _table(node, "values")
    if len(keys) != len(values):
        raise node.unsupported(f"it has {len(keys)} keys and {len(values)} values")
    values = np.concatenate([np.array([_default(node, values)], values.dtype), values])
    keys, first = np.unique(keys, return_index=True)  # the first of equal keys counts
    entries = relax.const(first + 1, "int64")
    expanded = node.emit(relax.op.expand_dims(relax.op.astype(x, keys.dtype.name), -1))
    same = relax.op.equal(expanded, relax.const(keys, keys.dtype.name))
    if node.opset >= 4 and keys.dtype.kind == "f" and np.isnan(keys).any():
        same = relax.op.logical_or(
            same, relax.op.logical_and(relax.op.isnan(expanded), relax.const(np.isnan(keys), "bool"))
        )
    matches = relax.op.where(node.emit(same), entries, relax.const(0, "int64"))
    return relax.op.take(relax.const(values, values.dtype.name), node.emit(relax.op.max(node.emit(matches), -1)), 0)


def _table(node: Node, what: str) -> npt.NDArray[Any]:
    """Return keys or values from the attribute that holds them."""
    for name, kind in ((f"{what}_int64s", "int64"), (f"{what}_floats", "float32")):
        if node.attribute(name):
            return np.asarray(node.attribute(name), kind)
    tensor = node.attribute(f"{what}_tensor")
    table = None if tensor is None else numpy_helper.to_array(tensor)
    if table is None or table.dtype.kind not in "if":
        raise node.unsupported(
            f"its {what} are text, which TVM has no type for: look labels up outside, and use whole numbers in the model"
        )
    return table.reshape(-1)


def _default(node: Node, values: npt.NDArray[Any]) -> Any:
    """Return the value for numbers without an entry."""
    tensor = node.attribute("default_tensor")
    if tensor is not None:
        return numpy_helper.to_array(tensor).reshape(-1)[0]
    return node.attribute("default_float", -0.0) if values.dtype.kind == "f" else node.attribute("default_int64", -1)
