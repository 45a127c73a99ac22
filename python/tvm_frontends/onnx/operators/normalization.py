"""Converters of normalisations by the standard's formulas, with all their outputs.

Corrections of TVM 0.27.0, ``relax/frontend/onnx/onnx_frontend.py``:

- ``LayerNormalization``: gives the constant 0 for its second and third output.
- ``RMSNormalization``: fails if the scale broadcasts and does not have the shape of the normalised axes.
- ``MeanVarianceNormalization``: subtracts the squared mean from the mean square, which loses the digits of inputs far
  from 0.
- ``LRN``: its constants are float32, so other types fail.
- ``BatchNormalization``: in training mode takes the sample variance for the population variance.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

from tvm import relax

from ...tensor_types import dtype_of
from ...vector_norms import normalized
from .elementwise import scalar
from .nodes import Node, converter
from .upstream import convert_upstream


@converter("LayerNormalization")
def layer_normalization(node: Node) -> relax.Expr | list[relax.Expr]:
    """Convert LayerNormalization to ``layer_norm``, or to the formula for its statistics and for types but float32."""
    x, scale, bias = node.input(0), node.input(1), node.input(2)
    shape = node.sizes(x, "its input X")
    axis = node.attribute("axis", -1) % len(shape)
    axes = list(range(axis, len(shape)))
    epsilon = node.attribute("epsilon", 1e-5)
    scale_shape = node.sizes(scale, "its scale")
    usual = scale_shape == shape[axis:] and (bias is None or node.sizes(bias, "its bias") == scale_shape)
    if usual and not node.wants(1) and not node.wants(2) and dtype_of(x) == "float32":
        bias = relax.op.zeros(scale_shape, dtype_of(scale)) if bias is None else bias
        return relax.op.nn.layer_norm(x, scale, bias, axes, epsilon)
    wide = _wide(node, x)
    mean = node.emit(relax.op.mean(wide, axes, keepdims=True))
    centred = node.emit(relax.op.subtract(wide, mean))
    variance = relax.op.mean(relax.op.multiply(centred, centred), axes, keepdims=True)
    inverse = node.emit(_inverse_root(variance, epsilon, wide))
    y = relax.op.multiply(relax.op.astype(relax.op.multiply(centred, inverse), dtype_of(x)), scale)
    return [y if bias is None else relax.op.add(y, bias), mean, inverse]


@converter("RMSNormalization")
def rms_normalization(node: Node) -> relax.Expr:
    """Convert RMSNormalization to ``rms_norm``, or to the formula for other types than float32 and scales that broadcast."""
    x, scale = node.input(0), node.input(1)
    shape = node.sizes(x, "its input X")
    axis = node.attribute("axis", -1) % len(shape)
    axes, epsilon = list(range(axis, len(shape))), node.attribute("epsilon", 1e-5)
    if node.sizes(scale, "its scale") == shape[axis:] and axis > 0 and dtype_of(x) == "float32":
        return relax.op.nn.rms_norm(x, scale, axes, epsilon)
    wide = node.emit(_wide(node, x))
    mean = relax.op.mean(relax.op.multiply(wide, wide), axes, keepdims=True)
    normal = relax.op.multiply(wide, _inverse_root(mean, epsilon, wide))
    return relax.op.multiply(relax.op.astype(normal, dtype_of(scale)), scale)


@converter("LRN")
def local_response_normalization(node: Node) -> relax.Expr:
    """Convert LRN; other types than float32 are computed in float32."""
    x = node.input(0)
    if dtype_of(x) == "float32":
        return convert_upstream(node)
    wide = node.emit(relax.op.astype(x, "float32"))
    return relax.op.astype(convert_upstream(replace(node, inputs=(wide,))), dtype_of(x))


@converter("LpNormalization")
def lp_normalization(node: Node) -> relax.Expr:
    """Convert LpNormalization: ``x / |x|_p`` along an axis, computed so that ``|x|_p`` is in range; 0 if the norm is 0."""
    return normalized(node.emit, node.input(0), node.attribute("p", 2), node.attribute("axis", -1))


@converter("MeanVarianceNormalization")
def mean_variance_normalization(node: Node) -> relax.Expr:
    """Convert MeanVarianceNormalization: ``(x - mean) / (deviation + 1e-9)``, the variance from centred values.

    The standard's formula subtracts the squared mean from the mean square, which loses digits around 1000.
    """
    x = node.input(0)
    axes = [int(axis) for axis in node.attribute("axes", (0, 2, 3))]
    centred = node.emit(_wide(node, x))
    for _ in range(2):  # the second pass removes the rounding error of the first mean
        centred = node.emit(relax.op.subtract(centred, relax.op.mean(centred, axes, keepdims=True)))
    variance = relax.op.mean(relax.op.multiply(centred, centred), axes, keepdims=True)
    deviation = relax.op.add(relax.op.sqrt(variance), scalar(1e-9, centred))
    return relax.op.astype(relax.op.divide(centred, deviation), dtype_of(x))


@converter("GroupNormalization")
def group_normalization(node: Node) -> relax.Expr:
    """Convert GroupNormalization; scale and bias have one value per group before opset 21, per channel from it on."""
    x, scale, bias = node.input(0), node.input(1), node.input(2)
    shape = node.sizes(x, "its input X")
    groups, channels = int(node.attribute("num_groups")), node.size(x, 1, "its input X")
    if groups <= 0 or channels % groups:
        raise node.unsupported(f"{channels} channels cannot be divided into {groups} groups")
    inner = math.prod(shape[2:])
    wide = node.emit(relax.op.reshape(_wide(node, x), (shape[0], groups, channels // groups * inner)))
    mean = node.emit(relax.op.mean(wide, [2], keepdims=True))
    centred = node.emit(relax.op.subtract(wide, mean))
    variance = relax.op.mean(relax.op.multiply(centred, centred), [2], keepdims=True)
    normal = relax.op.multiply(centred, _inverse_root(variance, node.attribute("epsilon", 1e-5), wide))
    normal = relax.op.astype(normal, dtype_of(x))
    if node.opset < 21:
        each: tuple[Any, ...] = (1, groups, 1)
        scaled = relax.op.add(relax.op.multiply(normal, relax.op.reshape(scale, each)), relax.op.reshape(bias, each))
        return relax.op.reshape(scaled, shape)
    each = (1, channels, *[1] * (len(shape) - 2))
    normal = relax.op.reshape(normal, shape)
    return relax.op.add(relax.op.multiply(normal, relax.op.reshape(scale, each)), relax.op.reshape(bias, each))


@converter("BatchNormalization")
def batch_normalization(node: Node) -> relax.Expr | list[relax.Expr]:
    """Convert BatchNormalization to ``batch_norm``, or to the formula in training mode and for other types than float32.

    Training mode uses the population variance, and updates the running statistics.
    """
    x, scale, bias, mean, variance = (node.input(i) for i in range(5))
    shape = node.sizes(x, "its input X")
    epsilon = node.attribute("epsilon", 1e-5)
    training = bool(node.attribute("training_mode", 0))
    if not training:
        kinds = {dtype_of(value) for value in (x, scale, bias, mean, variance)}
        if kinds == {"float32"}:
            normalized = relax.op.nn.batch_norm(x, scale, bias, mean, variance, axis=1, epsilon=epsilon)
            return relax.TupleGetItem(node.emit(normalized), 0)
    running, old = (mean, variance), (mean, variance)
    wide = node.emit(_wide(node, x))
    if training:
        axes = [axis for axis in range(len(shape)) if axis != 1]
        mean = node.emit(relax.op.mean(wide, axes))
        variance = node.emit(relax.op.variance(wide, axes))
        keep = node.attribute("momentum", 0.9)
        running = tuple(
            relax.op.astype(
                relax.op.add(
                    relax.op.multiply(relax.op.astype(before, dtype_of(wide)), scalar(keep, wide)),
                    relax.op.multiply(now, scalar(1 - keep, wide)),
                ),
                dtype_of(before),
            )
            for before, now in zip(old, (mean, variance), strict=True)
        )
    each = (1, shape[1], *[1] * (len(shape) - 2))
    scale, bias, mean, variance = (
        relax.op.reshape(relax.op.astype(value, dtype_of(wide)), each) for value in (scale, bias, mean, variance)
    )
    factor = relax.op.multiply(_inverse_root(variance, epsilon, wide), scale)
    y = relax.op.add(relax.op.multiply(relax.op.subtract(wide, mean), factor), bias)
    return [relax.op.astype(y, dtype_of(x)), *running]


def _wide(node: Node, x: relax.Expr) -> relax.Expr:
    """Return x in the type in which statistics are computed (stash_type)."""
    stash = {1: "float32", 11: "float64"}.get(node.attribute("stash_type", 1))
    if stash is None:
        raise node.unsupported(f"stash_type is {node.attribute('stash_type')}; 1 (float32) is allowed")
    return x if dtype_of(x) in (stash, "float64") else node.emit(relax.op.astype(x, stash))


def _inverse_root(variance: relax.Expr, epsilon: float, like: relax.Expr) -> relax.Expr:
    return relax.op.divide(scalar(1, like), relax.op.sqrt(relax.op.add(variance, scalar(epsilon, like))))
