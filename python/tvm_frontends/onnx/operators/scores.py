"""Scores and class labels, shared by classifiers and regressors of ai.onnx.ml."""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt
from tvm import relax

from .elementwise import scalar
from .nodes import Node

DOMAIN = "ai.onnx.ml"
POST_TRANSFORMS = ("NONE", "SOFTMAX", "LOGISTIC", "SOFTMAX_ZERO", "PROBIT")
_ERF = 0.147
"""Constant of the approximation to the inverse error function in ONNX's reference and in ONNX Runtime."""
_ZERO = 1e-7
"""Scores up to this magnitude count as 0 for SOFTMAX_ZERO."""


def post_transform(node: Node, scores: relax.Expr, kind: str) -> relax.Expr:
    """Apply a post_transform, by its ONNX name, to scores (rows, outputs)."""
    if kind == "NONE":
        return scores
    if kind == "LOGISTIC":
        return node.emit(relax.op.sigmoid(scores))
    if kind == "SOFTMAX":
        return node.emit(relax.op.nn.softmax(scores, -1))
    if kind == "SOFTMAX_ZERO":
        return _softmax_zero(node, scores)
    if kind == "PROBIT":
        return _probit(node, scores)
    raise node.unsupported(f"post_transform is {kind!r}; allowed are {', '.join(POST_TRANSFORMS)}")


def class_labels(node: Node, name: str) -> npt.NDArray[np.int64]:
    """Return the integers that name the classes.

    Raises
    ------
    UnsupportedNode
        The names of the classes are text.
    """
    if node.attribute("classlabels_strings"):
        raise node.unsupported(
            "its classes have names of text, which TVM has no type for: export it with whole numbers as labels, and look "
            "the names up outside"
        )
    labels = node.attribute(name)
    if not labels:
        raise node.unsupported(f"its attribute {name} is missing")
    return np.asarray(labels, np.int64)


def one_class(
    node: Node, score: relax.Expr, labels: npt.NDArray[np.int64], kind: str, probability: bool
) -> list[relax.Expr]:
    """Return label and scores of two classes from the score of the second class, shape (rows, 1).

    The rule is ONNX Runtime's; the standard specifies none.

    Parameters
    ----------
    probability : bool
        Whether the score is a probability p: the second class wins above 1/2, and the first class has the score 1 - p.
        Otherwise the second class wins above 0, and the first class has the negative score.
    """
    if kind not in ("NONE", "LOGISTIC"):
        raise node.unsupported(
            f"its post_transform is {kind}, and its leaves refer to one of two classes: the scores then differ between "
            "ONNX Runtime and ONNX's reference; NONE and LOGISTIC are allowed"
        )
    score = node.emit(score)
    wins = relax.op.greater(score, scalar(0.5 if probability else 0.0, score))
    first, second = (relax.const(label, "int64") for label in labels)
    chosen = node.emit(relax.op.where(wins, second, first))
    label = node.emit(relax.op.reshape(chosen, (-1,)))
    sums_to_one = probability and kind == "NONE"
    other = relax.op.subtract(scalar(1.0, score), score) if sums_to_one else relax.op.negative(score)
    both = node.emit(relax.op.concat([node.emit(other), score], 1))
    return [label, relax.op.astype(post_transform(node, both, kind), "float32")]


def _softmax_zero(node: Node, scores: relax.Expr) -> relax.Expr:
    """Emit the softmax of the scores that are not 0; the others stay close to 0."""
    largest = node.emit(relax.op.max(scores, -1, keepdims=True))
    counts = relax.op.greater(relax.op.abs(scores), scalar(_ZERO, scores))
    kept = relax.op.exp(relax.op.subtract(scores, largest))
    near_zero = relax.op.multiply(scores, relax.op.exp(relax.op.negative(largest)))
    powers = node.emit(relax.op.where(counts, kept, near_zero))
    total = relax.op.sum(relax.op.where(counts, powers, scalar(0.0, scores)), -1, keepdims=True)
    return node.emit(relax.op.divide(powers, total))


def _probit(node: Node, scores: relax.Expr) -> relax.Expr:
    """Emit ``sqrt(2) * erfinv(2 * scores - 1)``."""
    x = node.emit(relax.op.subtract(relax.op.multiply(scores, scalar(2.0, scores)), scalar(1.0, scores)))
    one = scalar(1.0, scores)
    log = node.emit(relax.op.log(relax.op.multiply(relax.op.subtract(one, x), relax.op.add(one, x))))
    v = node.emit(relax.op.add(scalar(2 / (math.pi * _ERF), scores), relax.op.multiply(log, scalar(0.5, scores))))
    square = relax.op.subtract(relax.op.multiply(v, v), relax.op.multiply(log, scalar(1 / _ERF, scores)))
    size = relax.op.sqrt(relax.op.subtract(relax.op.sqrt(square), v))
    return node.emit(relax.op.multiply(relax.op.multiply(relax.op.sign(x), size), scalar(math.sqrt(2), scores)))
