"""Converters of com.microsoft's MoE and QMoE: a mixture of experts, with weights in floats or packed into 2, 4 or 8 bits."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
from tvm import relax

from .nodes import Node, constant_of, converter
from .quantized_arithmetic import unpack


@converter("MoE", domain="com.microsoft")
def mixture_of_experts(node: Node) -> relax.Expr:
    """Convert MoE: inputs are tokens, logits of the experts, then weights and bias of each layer."""
    weights, biases = [node.input(2), node.input(4)], [node.input(3), node.input(5)]
    if node.input(6) is not None:
        raise node.unsupported("it has a third layer (FC3), which ONNX Runtime computes on no CPU")
    return _mixture(
        node, [_columns(node, each) for each in weights], biases, bool(node.attribute("normalize_routing_weights", 0))
    )


@converter("QMoE", domain="com.microsoft")
def quantized_mixture_of_experts(node: Node) -> relax.Expr:
    """Convert QMoE: dequantise the constant weights, then compute as for MoE with normalised weights of the experts.

    ONNX Runtime rounds the tokens to 8 bits for some block sizes; here they are never rounded.
    """
    kind = node.attribute("quant_type", "int")
    if kind != "int" or node.attribute("weights_prepacked", -1) > 0:
        raise node.unsupported(
            f"its weights are of type {kind!r}, or packed for one processor; plain integers are allowed"
        )
    extra = [k for k in (8, 9, 10, 13, *range(14, len(node.inputs))) if node.input(k) is not None]
    if extra:
        raise node.unsupported(f"it has input {extra[0]} (a third layer, router weights or scales of activations)")
    weights = [
        relax.const(np.ascontiguousarray(_dequantized(node, position, scales, zeros, name).transpose(0, 2, 1)))
        for position, scales, zeros, name in ((2, 3, 11, "fc1"), (5, 6, 12, "fc2"))
    ]
    return _mixture(node, weights, [node.input(4), node.input(7)], True)


def _columns(node: Node, weights: relax.Expr | None) -> relax.Expr:
    """Return weights of shape (experts, outputs, inputs) as (experts, inputs, outputs)."""
    return node.emit(relax.op.permute_dims(weights, [0, 2, 1]))


def _dequantized(node: Node, position: int, scales: int, zeros: int, name: str) -> npt.NDArray[np.float32]:
    """Return the weights of a layer, of shape (experts, outputs, inputs), in float32."""
    bits = int(node.attribute(f"{name}_expert_weight_bits", node.attribute("expert_weight_bits", 4)))
    packed, scale, zero = (constant_of(node.input(k)) for k in (position, scales, zeros))
    if packed is None or scale is None or (zero is None and node.input(zeros) is not None):
        raise node.unsupported("its weights are known only when the model runs")
    if bits not in (2, 4, 8):
        raise node.unsupported(f"its weights have {bits} bits; 2, 4 and 8 are allowed")
    whole = unpack(packed, bits).astype("float32")
    experts, outputs, inputs = whole.shape
    scale = scale.reshape(experts, outputs, -1).astype("float32")
    blocks = scale.shape[-1]
    if zero is None:
        middle: Any = np.float32(1 << (bits - 1))
    else:
        packed_zeros = zero.reshape(experts, -1) if blocks == 1 else zero.reshape(experts, outputs, -1)
        points = unpack(packed_zeros, bits)
        points = points[..., :outputs, None] if blocks == 1 else points[..., :blocks]
        middle = np.repeat(points, inputs // blocks, axis=-1).astype("float32")
    return (whole - middle) * np.repeat(scale, inputs // blocks, axis=-1)


def _mixture(node: Node, weights: list[relax.Expr], biases: list[relax.Expr | None], normalised: bool) -> relax.Expr:
    """Compute every expert for every token, and add the results with the weights of the chosen experts."""
    tokens, logits = node.input(0), node.input(1)
    shape = node.shape(tokens, "its input")
    experts = node.shape(logits, "its router_probs")[-1]
    rows = relax.op.reshape(tokens, (1, -1, shape[-1]))
    hidden = _layer(node, node.emit(rows), weights[0], biases[0])
    found = _layer(node, _activated(node, hidden), weights[1], biases[1])
    shares = _shares(node, node.emit(relax.op.reshape(logits, (-1, experts))), normalised)
    weighted = relax.op.multiply(found, node.emit(relax.op.expand_dims(node.emit(relax.op.permute_dims(shares)), 2)))
    return relax.op.reshape(node.emit(relax.op.sum(node.emit(weighted), axis=0)), shape)


def _layer(node: Node, rows: relax.Expr, weights: relax.Expr, bias: relax.Expr | None) -> relax.Expr:
    result = node.emit(relax.op.matmul(rows, weights))
    return result if bias is None else node.emit(relax.op.add(result, node.emit(relax.op.expand_dims(bias, 1))))


def _shares(node: Node, logits: relax.Expr, normalised: bool) -> relax.Expr:
    """Return the weight of each expert for each token, 0 for all but the k experts of the largest logits."""
    count, experts = int(node.attribute("k", 1)), node.shape(logits, "its router_probs")[-1]
    chosen = node.emit(relax.op.topk(logits, count, -1, "indices", True, "int64"))
    numbers = relax.const(np.arange(experts, dtype="int64").reshape(1, 1, -1))
    same = node.emit(relax.op.equal(node.emit(relax.op.expand_dims(chosen, 2)), numbers))
    picked = node.emit(relax.op.sum(node.emit(relax.op.astype(same, "float32")), axis=1))
    shares = node.emit(relax.op.multiply(node.emit(relax.op.nn.softmax(logits, -1)), picked))
    if not normalised:
        return shares
    return node.emit(relax.op.divide(shares, node.emit(relax.op.sum(shares, axis=-1, keepdims=True))))


def _activated(node: Node, value: relax.Expr) -> relax.Expr:
    name = str(node.attribute("activation_type", "relu"))
    if name == "swiglu":
        return _gated(node, value)
    made = {
        "relu": relax.op.nn.relu, "gelu": relax.op.nn.gelu_tanh, "silu": relax.op.nn.silu, "identity": lambda same: same,
    }.get(name)  # fmt: skip
    if made is None:
        raise node.unsupported(f"its activation is {name!r}; relu, gelu, silu, identity and swiglu are allowed")
    return node.emit(made(value))


def _gated(node: Node, value: relax.Expr) -> relax.Expr:
    """Apply SwiGLU to gates and values that alternate in each row (``swiglu_fusion`` 1)."""
    if node.attribute("swiglu_fusion", 0) != 1 or node.attribute("swiglu_limit_after_activation", 0):
        raise node.unsupported("its swiglu_fusion is not 1, or its limit comes after the activation")
    shape = node.shape(value, "its first layer")
    pairs = node.emit(relax.op.reshape(value, (*shape[:-1], shape[-1] // 2, 2)))
    gate, linear = (
        node.emit(relax.op.squeeze(node.emit(relax.op.strided_slice(pairs, [3], [k], [k + 1])), [3])) for k in (0, 1)
    )
    limit = node.attribute("swiglu_limit")
    if limit is not None:
        gate = node.emit(relax.op.minimum(gate, relax.const(np.float32(limit))))
        linear = node.emit(relax.op.clip(linear, -float(limit), float(limit)))
    alpha = relax.const(np.float32(node.attribute("activation_alpha", 1.0)))
    beta = relax.const(np.float32(node.attribute("activation_beta", 0.0)))
    opened = node.emit(relax.op.sigmoid(node.emit(relax.op.multiply(gate, alpha))))
    return node.emit(
        relax.op.multiply(node.emit(relax.op.multiply(gate, opened)), node.emit(relax.op.add(linear, beta)))
    )
