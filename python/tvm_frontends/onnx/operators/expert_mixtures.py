"""Converters of com.microsoft's MoE and QMoE: a mixture of experts, with weights in floats or packed into 2, 4 or 8 bits."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import numpy as np
from tvm import relax

from ...kernels.packed_products import PackedProduct, unpack
from .nodes import Node, constant_of, converter
from .packed_weights import FLOATS, expect, packed_product

_Layer = Callable[[relax.Expr], relax.Expr]
"""From rows (1 or experts, rows, inputs) to (experts, rows, outputs)."""


@converter("MoE", domain="com.microsoft")
def mixture_of_experts(node: Node) -> relax.Expr:
    """Convert MoE: inputs are tokens, logits of the experts, then weights and bias of each layer."""
    if node.input(6) is not None:
        raise node.unsupported("it has a third layer (FC3), which ONNX Runtime computes on no CPU")
    layers = [partial(_layer, node, weights=_columns(node, node.input(k)), bias=node.input(k + 1)) for k in (2, 4)]
    return _mixture(node, layers, bool(node.attribute("normalize_routing_weights", 0)))


@converter("QMoE", domain="com.microsoft")
def quantized_mixture_of_experts(node: Node) -> relax.Expr:
    """Convert QMoE as MoE with normalised weights of the experts; the packed weights stay packed.

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
    layers = [
        _packed_layer(node, position, scales, zeros, bias, name)
        for position, scales, zeros, bias, name in ((2, 3, 11, 4, "fc1"), (5, 6, 12, 7, "fc2"))
    ]
    return _mixture(node, layers, True)


def _columns(node: Node, weights: relax.Expr | None) -> relax.Expr:
    """Return weights of shape (experts, outputs, inputs) as (experts, inputs, outputs)."""
    return node.emit(relax.op.permute_dims(weights, [0, 2, 1]))


def _packed_layer(node: Node, position: int, scales: int, zeros: int, bias: int, name: str) -> _Layer:
    """Return a layer whose weights, of shape (experts, outputs, inputs), stay packed."""
    bits = int(node.attribute(f"{name}_expert_weight_bits", node.attribute("expert_weight_bits", 4)))
    packed, scale, zero = (constant_of(node.input(k)) for k in (position, scales, zeros))
    if packed is None or scale is None or (zero is None and node.input(zeros) is not None):
        raise node.unsupported("its weights are known only when the model runs")
    if bits not in (2, 4, 8):
        raise node.unsupported(f"its weights have {bits} bits; 2, 4 and 8 are allowed")
    if packed.ndim != 3 or packed.dtype != np.uint8:
        raise node.unsupported(
            f"the weights of {name} have the type {packed.dtype} and {packed.ndim} dimensions; uint8 and three (experts, "
            "outputs, packed inputs) are needed"
        )
    experts, outputs, inputs = (*packed.shape[:2], packed.shape[2] * 8 // bits)
    rows = experts * outputs
    blocks = max(1, scale.size // max(1, rows))
    why = f"{experts} experts with {outputs} outputs and {inputs} inputs in {blocks} blocks of {bits} bits"
    expect(node, f"the scales of {name}", scale, FLOATS, rows * blocks, why)
    if inputs % blocks or inputs // blocks * bits % 8:
        raise node.unsupported(f"the scales of {name}: {inputs} inputs are no {blocks} blocks of whole bytes")
    scale = scale.reshape(rows, blocks)
    if zero is not None:  # without blocks they are packed along the outputs
        of_group, numbers_of_group = (experts, outputs) if blocks == 1 else (rows, blocks)
        size = of_group * -(-numbers_of_group * bits // 8)
        expect(node, f"the zero points of {name}", zero, ("uint8",), size, why)
        zero = unpack(zero.reshape(of_group, -1), bits)[:, :numbers_of_group].reshape(rows, blocks)
    biases = node.input(bias)
    if biases is not None:
        expect(node, f"the bias of {name}", biases, FLOATS, rows, why)
    about = PackedProduct(bits, inputs // blocks, inputs, outputs, experts, zero is not None, biases is not None)
    numbers = relax.const(packed.reshape(rows, blocks, -1))

    def layer(tokens: relax.Expr) -> relax.Expr:
        size = node.shape(tokens, "its tokens")[-1]
        if size != inputs:
            raise node.unsupported(f"the weights of {name} have {inputs} inputs; {size} are needed")
        flat = None if biases is None else node.emit(relax.op.reshape(biases, (-1,)))
        return packed_product(node, about, tokens, numbers, scale, zero, flat)

    return layer


def _mixture(node: Node, layers: Sequence[_Layer], normalised: bool) -> relax.Expr:
    """Compute every expert for every token, and add the results with the weights of the chosen experts."""
    tokens, logits = node.input(0), node.input(1)
    shape = node.shape(tokens, "its input")
    experts = node.shape(logits, "its router_probs")[-1]
    rows = relax.op.reshape(tokens, (1, -1, shape[-1]))
    found = layers[1](_activated(node, layers[0](node.emit(rows))))
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
