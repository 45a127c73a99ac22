"""Converters of torch's batch, group and layer normalisation with all their results, and of softmax.

Corrections of TVM 0.27.0, ``relax/frontend/torch/exported_program_translator.py``:

- ``_native_group_norm``: fails without weights.
"""

from __future__ import annotations

import math

import numpy as np
from tvm import relax

from ..tensor_types import dtype_of
from .elementwise import constant
from .node_calls import Call, converter


def _scale_and_shift(call: Call, x: relax.Expr, channels: int) -> list[relax.Expr]:
    """Return weight and bias, shape (channels,); a missing one is 1 or 0."""
    return [
        relax.const(np.full(channels, value), dtype_of(x)) if call[name] is None else call.tensor(name, dtype_of(x))
        for name, value in (("weight", 1.0), ("bias", 0.0))
    ]


def _moments(call: Call, x: relax.Expr, axes: list[int]) -> tuple[relax.Expr, relax.Expr]:
    """Return mean and variance over ``axes``, which stay with length 1."""
    mean = call.emit(relax.op.mean(x, axes, keepdims=True))
    difference = call.emit(relax.op.subtract(x, mean))
    return mean, call.emit(relax.op.mean(call.emit(relax.op.multiply(difference, difference)), axes, keepdims=True))


def _inverse_deviation(call: Call, variance: relax.Expr, eps: float) -> relax.Expr:
    return call.emit(relax.op.rsqrt(call.emit(relax.op.add(variance, constant(eps, variance)))))


@converter(
    "_native_batch_norm_legit_functional.default",
    "_native_batch_norm_legit.default",
    "_native_batch_norm_legit.no_stats",
    "_batch_norm_with_update_functional.default",
    "native_batch_norm.default",
)
def batch_norm(call: Call) -> relax.Expr:
    """Convert batch normalisation in training mode, or in inference with the running statistics.

    Results as in torch: the normalised tensor, mean and inverse deviation; functional forms add the new running statistics.
    """
    x, eps = call.tensor("input"), float(call["eps"])
    kind, rank = dtype_of(x), len(x.ty.shape)
    shape = [int(size) for size in x.ty.shape]
    channels, axes = shape[1], [0, *range(2, rank)]
    training = bool(call.arguments.get("training", True))
    weight, bias = _scale_and_shift(call, x, channels)
    running = [None if call.arguments.get(f"running_{of}") is None else call.tensor(f"running_{of}", kind)
               for of in ("mean", "var")]  # fmt: skip
    channel_shape = [1, channels, *[1] * (rank - 2)]
    if training or running[0] is None or running[1] is None:
        mean, variance = _moments(call, x, axes)
    else:
        mean, variance = (call.emit(relax.op.reshape(value, channel_shape)) for value in running)
    inverse = _inverse_deviation(call, variance, eps)
    weight, bias = (call.emit(relax.op.reshape(value, channel_shape)) for value in (weight, bias))
    normalized = call.emit(
        relax.op.multiply(call.emit(relax.op.subtract(x, mean)), call.emit(relax.op.multiply(inverse, weight)))
    )
    results = [call.emit(relax.op.add(normalized, bias))]
    wanted = call.node.meta["val"]
    saved = (
        [
            relax.op.reshape(value, tuple(expected.shape))
            for value, expected in zip((mean, inverse), wanted[1:3], strict=True)
        ]
        if training
        else [relax.op.zeros(tuple(expected.shape), kind) for expected in wanted[1:3]]
    )
    results += [call.emit(value) for value in saved]
    name = call.node.target.__name__
    if name == "_batch_norm_with_update_functional.default":
        results.append(call.emit(relax.op.zeros(tuple(wanted[3].shape), "uint8")))
    if "functional" in name:
        count = math.prod(shape[axis] for axis in axes)
        unbiased = call.emit(relax.op.multiply(variance, constant(count / max(1, count - 1), variance)))
        for old, new in zip(running, (mean, unbiased), strict=True):
            results.append(_updated_statistic(call, old, new, channels) if training else old)
    return relax.Tuple(results)


def _updated_statistic(call: Call, old: relax.Expr, new: relax.Expr, channels: int) -> relax.Expr:
    """Update a running statistic: ``(1 - momentum) * old + momentum * new``."""
    momentum = float(call["momentum"])
    kept = call.emit(relax.op.multiply(old, constant(1 - momentum, old)))
    new = call.emit(relax.op.reshape(new, (channels,)))
    return call.emit(relax.op.add(kept, call.emit(relax.op.multiply(new, constant(momentum, new)))))


@converter("native_group_norm.default")
def group_norm(call: Call) -> relax.Expr:
    """Convert group normalisation, weights optional; mean and inverse deviation are computed if the program reads them."""
    x, groups, eps = call.tensor("input"), int(call["group"]), float(call["eps"])
    shape = x.ty.shape
    weight, bias = _scale_and_shift(call, x, int(shape[1]))
    axes = list(range(2, len(shape)))
    if (kind := dtype_of(x)) == "bfloat16":  # Relax's group_norm refuses bfloat16
        wide = [call.emit(relax.op.astype(value, "float32")) for value in (x, weight, bias)]
        normalized = call.emit(relax.op.nn.group_norm(*wide, groups, 1, axes, epsilon=eps))
        normalized = call.emit(relax.op.astype(normalized, kind))
    else:
        normalized = call.emit(relax.op.nn.group_norm(x, weight, bias, groups, 1, axes, epsilon=eps))
    if not _statistics_are_read(call):
        return relax.Tuple([normalized])
    grouped = call.emit(relax.op.reshape(x, (shape[0], groups, -1)))
    return relax.Tuple([normalized, *_statistics(call, grouped, [2], eps)])


@converter("native_layer_norm.default")
def layer_norm(call: Call) -> relax.Expr:
    """Convert layer normalisation by TVM's converter; mean and inverse deviation are computed if the program reads them."""
    normalized = call.upstream()
    if not _statistics_are_read(call):
        return relax.Tuple([normalized])
    x = call.tensor("input")
    rank = len(x.ty.shape)
    axes = list(range(rank - len(call["normalized_shape"]), rank))
    return relax.Tuple([normalized, *_statistics(call, x, axes, float(call["eps"]))])


def _statistics_are_read(call: Call) -> bool:
    return any(user.args[1] for user in call.node.users)


def _statistics(call: Call, x: relax.Expr, axes: list[int], eps: float) -> list[relax.Expr]:
    mean, variance = _moments(call, x, axes)
    values = (mean, _inverse_deviation(call, variance, eps))
    sizes = [tuple(expected.shape) for expected in call.node.meta["val"][1:3]]
    return [call.emit(relax.op.reshape(value, size)) for value, size in zip(values, sizes, strict=True)]


@converter("_softmax.default", "_log_softmax.default", "softmax.int", "log_softmax.int")
def softmax(call: Call) -> relax.Expr:
    """Convert softmax and log_softmax, also of scalars."""
    x = call.tensor("self", call.dtype)
    function = relax.op.nn.log_softmax if "log" in call.node.target.__name__ else relax.op.nn.softmax
    if x.ty.shape:
        return call.emit(function(x, call["dim"]))
    return call.emit(relax.op.reshape(call.emit(function(call.emit(relax.op.reshape(x, (1,))), 0)), ()))
