"""Converters of com.microsoft's layers of transformers and diffusion models, as ONNX Runtime's optimiser fuses them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from tvm import relax

from ...tensor_types import dtype_of
from .nodes import Node, converter
from .normalization import group_normalization, layer_normalization, rms_normalization
from .quantized_arithmetic import cast

_DOMAIN = "com.microsoft"
_UNWANTED = "its outputs mean and deviation are used, which only training does; export the model for inference"


@converter("SkipLayerNormalization", domain=_DOMAIN)
def skip_layer_normalization(node: Node) -> list[relax.Expr]:
    """Convert SkipLayerNormalization: outputs the normalised sum, mean, deviation, and the sum.

    Inputs: x, skip, scale, shift, bias. Refused if mean or deviation is used.
    """
    scale, shift = node.input(2), node.input(3)
    return _skip(node, [node.input(1), node.input(4)], layer_normalization, (scale, shift), 1e-12)


@converter("SkipSimplifiedLayerNormalization", domain=_DOMAIN)
def skip_rms_normalization(node: Node) -> list[relax.Expr]:
    """Convert SkipSimplifiedLayerNormalization: as SkipLayerNormalization, by the root mean square, without a shift."""
    return _skip(node, [node.input(1), node.input(3)], rms_normalization, (node.input(2),), 1e-6)


@converter("SimplifiedLayerNormalization")
@converter("SimplifiedLayerNormalization", domain=_DOMAIN)
def simplified_layer_normalization(node: Node) -> relax.Expr:
    """Convert SimplifiedLayerNormalization, ONNX Runtime's name of RMSNormalization."""
    if node.wants(1):
        raise node.unsupported(_UNWANTED)
    return rms_normalization(node)


def _skip(
    node: Node, added: Sequence[Any], normalize: Any, scales: tuple[Any, ...], epsilon: float
) -> list[relax.Expr]:
    if node.wants(1) or node.wants(2):
        raise node.unsupported(_UNWANTED)
    total = node.input(0)
    for value in added:
        total = total if value is None else node.emit(relax.op.add(total, value))
    normal = _normalized(node, normalize, total, scales, epsilon)
    return [normal, total, total, total]  # nothing reads the second and third


def _normalized(node: Node, normalize: Any, x: relax.Expr, scales: tuple[Any, ...], epsilon: float) -> relax.Expr:
    attributes = {"axis": -1, "epsilon": float(node.attribute("epsilon", epsilon))}
    normalized = normalize(replace(node, inputs=(x, *scales), attributes=attributes, outputs=node.outputs[:1]))
    return node.emit(normalized if isinstance(normalized, relax.Expr) else normalized[0])


@converter("EmbedLayerNormalization", domain=_DOMAIN)
def embed_layer_normalization(node: Node) -> list[relax.Expr]:
    """Convert EmbedLayerNormalization: add embeddings of words, positions and segments, and normalise the sum.

    Inputs: tokens, segments, tables of words, positions and segments, scale, shift, mask, positions.
    """
    tokens, segments, word_table, position_table, segment_table, scale, shift, mask, positions = (
        node.input(k) for k in range(9)
    )
    batch, length = node.sizes(tokens, "its input input_ids")
    if positions is None:
        positions = node.emit(relax.op.reshape(node.positions(0, length, "int64"), (1, length)))
    total = node.emit(relax.op.add(rows_of(node, word_table, tokens), rows_of(node, position_table, positions)))
    if segments is not None:
        total = node.emit(relax.op.add(total, rows_of(node, segment_table, segments)))
    counts = relax.op.zeros((batch,), "int32")
    if mask is not None:
        counts = node.emit(relax.op.sum(cast(node, mask, "int32"), 1))
    return [_normalized(node, layer_normalization, total, (scale, shift), 1e-12), counts, total]


def rows_of(node: Node, table: relax.Expr, numbers: relax.Expr) -> relax.Expr:
    """Return the row of a table for each index."""
    shape = (*node.sizes(numbers, "an input of numbers"), node.size(table, -1, "an embedding"))
    flat = node.emit(relax.op.take(table, node.emit(relax.op.reshape(numbers, (-1,))), axis=0))
    return node.emit(relax.op.reshape(flat, shape))


@converter("Gelu", "BiasGelu", domain=_DOMAIN)
def gelu(node: Node) -> relax.Expr:
    """Convert Gelu and BiasGelu to ``gelu``, after adding the bias if there is one."""
    return node.emit(relax.op.nn.gelu(_with_bias(node)))


@converter("FastGelu", domain=_DOMAIN)
def fast_gelu(node: Node) -> relax.Expr:
    """Convert FastGelu to ``gelu_tanh``, after adding the bias if there is one."""
    return node.emit(relax.op.nn.gelu_tanh(_with_bias(node)))


@converter("QuickGelu", domain=_DOMAIN)
def quick_gelu(node: Node) -> relax.Expr:
    """Convert QuickGelu: ``x * sigmoid(alpha * x)``."""
    x = node.inputs[0]
    alpha = relax.const(float(node.attribute("alpha", 1.702)), dtype_of(x))
    gate = node.emit(relax.op.sigmoid(node.emit(relax.op.multiply(x, alpha))))
    return node.emit(relax.op.multiply(x, gate))


@converter("BiasSplitGelu", domain=_DOMAIN)
def bias_split_gelu(node: Node) -> relax.Expr:
    """Convert BiasSplitGelu: add the bias, multiply the first half of the last axis by the Gelu of the second."""
    x = _with_bias(node)
    halves = node.emit(relax.op.split(x, 2, axis=-1))
    first, second = (node.emit(relax.TupleGetItem(halves, k)) for k in range(2))
    return node.emit(relax.op.multiply(first, node.emit(relax.op.nn.gelu(second))))


@converter("BiasAdd", domain=_DOMAIN)
def bias_add(node: Node) -> relax.Expr:
    """Convert BiasAdd: the sum of input, bias and skip."""
    return node.emit(relax.op.add(_with_bias(node), node.inputs[2]))


def _with_bias(node: Node) -> relax.Expr:
    bias = node.input(1)
    return node.inputs[0] if bias is None else node.emit(relax.op.add(node.inputs[0], bias))


@converter("GroupNorm", domain=_DOMAIN)
def group_norm(node: Node) -> relax.Expr:
    """Convert GroupNorm: GroupNormalization, channels last by default, and then SiLU if ``activation`` is 1."""
    last = bool(node.attribute("channels_last", 1))
    x = node.emit(relax.op.permute_dims(node.inputs[0], [0, 3, 1, 2])) if last else node.inputs[0]
    attributes = {"num_groups": node.attribute("groups"), "epsilon": float(node.attribute("epsilon", 1e-5))}
    scales = tuple(cast(node, each, dtype_of(x)) for each in node.inputs[1:3])
    plain = replace(node, inputs=(x, *scales), attributes=attributes, opset=21)
    result = node.emit(group_normalization(plain))
    if node.attribute("activation", 0):
        result = node.emit(relax.op.nn.silu(result))
    return node.emit(relax.op.permute_dims(result, [0, 2, 3, 1])) if last else result


@converter("RotaryEmbedding", domain=_DOMAIN)
def rotary_embedding(node: Node) -> relax.Expr:
    """Convert RotaryEmbedding, whose positions precede its tables; packed batches and a scale are refused."""
    x, positions, cosine, sine = node.inputs[:4]
    if node.attribute("is_packed_batching", 0) or float(node.attribute("scale", 1.0)) != 1:
        raise node.unsupported("it is packed or scaled; export the model without that")
    shape = (*node.sizes(x, "its input")[:-1], node.size(x, -1, "its input"))
    batch, length = (shape[0], shape[-2])
    if len(node.sizes(positions, "its position_ids")) == 1:
        steps = node.emit(relax.op.reshape(node.positions(0, length, "int64"), (1, length)))
        positions = node.emit(relax.op.add(cast(node, positions, "int64"), steps))
        positions = node.emit(relax.op.broadcast_to(positions, (batch, length)))
    width = node.size(cosine, -1, "its cos_cache")
    rotated = int(node.attribute("rotary_embedding_dim", 0)) or 2 * width
    heads = int(node.attribute("num_heads", 0)) or (shape[-1] // rotated if len(shape) == 3 else shape[1])
    by_head = x if len(shape) == 4 else split_heads(node, x, (batch, length, heads, shape[-1] // heads))
    cosine, sine = (
        node.emit(relax.op.reshape(rows_of(node, table, positions), (batch, 1, length, width)))
        for table in (cosine, sine)
    )
    result = rotate(node, by_head, (cosine, sine), rotated, bool(node.attribute("interleaved", 0)))
    if len(shape) == 4:
        return result
    return node.emit(relax.op.reshape(node.emit(relax.op.permute_dims(result, [0, 2, 1, 3])), shape))


def split_heads(node: Node, x: relax.Expr, shape: tuple[Any, ...]) -> relax.Expr:
    """Reshape (batch, tokens, width) to (batch, heads, tokens, size); ``shape`` is (batch, tokens, heads, size)."""
    return node.emit(relax.op.permute_dims(node.emit(relax.op.reshape(x, shape)), [0, 2, 1, 3]))


def rotate(
    node: Node, x: relax.Expr, tables: tuple[relax.Expr, relax.Expr], rotated: int, interleaved: bool
) -> relax.Expr:
    """Rotate pairs of numbers by the angles in ``tables`` (cosine, sine); elements behind ``rotated`` are unchanged."""
    cosine, sine = tables
    size = node.size(x, -1, "its input")

    def part(start: int, end: int, step: int = 1) -> relax.Expr:
        return node.emit(relax.op.strided_slice(x, [3], [start], [end], [step]))

    half = rotated // 2
    first = part(0, rotated, 2) if interleaved else part(0, half)
    second = part(1, rotated, 2) if interleaved else part(half, rotated)
    op = relax.op
    real = node.emit(op.subtract(op.multiply(first, cosine), op.multiply(second, sine)))
    imaginary = node.emit(op.add(op.multiply(first, sine), op.multiply(second, cosine)))
    if interleaved:
        pairs = [node.emit(op.expand_dims(each, -1)) for each in (real, imaginary)]
        shape = (*node.sizes(real, "a half")[:3], rotated)
        rotated_part = node.emit(op.reshape(node.emit(op.concat(pairs, -1)), shape))
    else:
        rotated_part = node.emit(op.concat([real, imaginary], -1))
    return rotated_part if rotated == size else node.emit(op.concat([rotated_part, part(rotated, size)], -1))
