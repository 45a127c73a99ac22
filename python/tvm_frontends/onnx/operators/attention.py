"""Converters of attention of com.microsoft, as ONNX Runtime's optimiser fuses it, to products and softmax."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from tvm import relax
from tvm.sym import Analyzer

from ...tensor_types import dtype_of
from .nodes import Node, converter
from .quantized import float_product
from .quantized_arithmetic import cast
from .transformers import split_heads

_DOMAIN = "com.microsoft"
_REFUSED = ("do_rotary", "past_present_share_buffer")


@dataclass(frozen=True)
class _Heads:
    """Queries, keys and values as (batch, heads, tokens, size of a head), and how many of the keys are past."""

    query: relax.Expr
    key: relax.Expr
    value: relax.Expr
    past: Any = 0


@converter("Attention", domain=_DOMAIN)
def attention(node: Node) -> list[relax.Expr]:
    """Convert Attention: X, packed weights and bias of q, k and v, mask, past keys and values, bias of scores.

    Rotary embeddings and shared past buffers are refused.
    """
    x, weights, bias, mask, past, score_bias = (node.input(k) for k in range(6))
    product = node.emit(relax.op.matmul(x, weights))
    return _self_attention(node, product, bias, mask, past, score_bias)


@converter("QAttention", domain=_DOMAIN)
def quantized_attention(node: Node) -> list[relax.Expr]:
    """Convert QAttention: Attention with quantised X and weights, multiplied as integers."""
    x, weights, bias, x_scale, scale, mask, x_zero, zero, past = (node.input(k) for k in range(9))
    product = float_product(node, (x, x_scale, x_zero), (weights, scale, zero), None)
    return _self_attention(node, product, bias, mask, past, None)


def _self_attention(
    node: Node, product: relax.Expr, bias: Any, mask: Any, past: Any, score_bias: Any
) -> list[relax.Expr]:
    _check(node)
    if bias is not None:
        product = node.emit(relax.op.add(product, bias))
    width = node.size(product, -1, "its product")
    sizes = node.attribute("qkv_hidden_sizes") or (width // 3,) * 3
    ends = [sizes[0], sizes[0] + sizes[1]]
    parts = node.emit(relax.op.split(product, ends, axis=-1))
    query, key, value = (_heads(node, node.emit(relax.TupleGetItem(parts, k))) for k in range(3))
    length = 0
    if past is not None:
        length = node.sizes(past, "its input past")[3]
        key, value = (_after_past(node, past, k, now) for k, now in enumerate((key, value)))
    heads = _Heads(query, key, value, length)
    results = [_attend(node, heads, mask, score_bias)]
    if node.wants(1):
        pair = [node.emit(relax.op.expand_dims(each, 0)) for each in (key, value)]
        results.append(node.emit(relax.op.concat(pair, 0)))
    return results


def _after_past(node: Node, past: relax.Expr, which: int, now: relax.Expr) -> relax.Expr:
    """Append keys (0) or values (1) to those of the past."""
    shape = node.sizes(past, "its input past")
    part = node.emit(relax.op.strided_slice(past, [0], [which], [which + 1]))
    return node.emit(relax.op.concat([node.emit(relax.op.reshape(part, shape[1:])), now], 2))


@converter("MultiHeadAttention", domain=_DOMAIN)
def multi_head_attention(node: Node) -> list[relax.Expr]:
    """Convert MultiHeadAttention: q, k and v or packed forms, bias, key mask, bias of scores, past k and v.

    The output of scores and buffers shared with the past are refused.
    """
    _check(node)
    query, key, value, bias, mask, score_bias, past_key, past_value = (node.input(k) for k in range(8))
    if node.input(8) is not None or node.input(9) is not None or node.wants(3):
        raise node.unsupported("it shares a buffer with its past or outputs its scores; export the model without that")
    query, key, value = _unpacked(node, query, key, value)
    if bias is not None:
        query, key, value = _with_bias(node, bias, [query, key, value])
    query, key, value = (_heads(node, each) for each in (query, key, value))
    length = 0
    if past_key is not None:
        length = node.sizes(past_key, "its input past_key")[2]
        key = node.emit(relax.op.concat([past_key, key], 2))
        value = node.emit(relax.op.concat([past_value, value], 2))
    result = _attend(node, _Heads(query, key, value, length), mask, score_bias)
    return [result, key, value]


def _check(node: Node) -> None:
    for name in _REFUSED:
        if node.attribute(name, 0):
            raise node.unsupported(f"its attribute {name} is set; export the model without it")


def _unpacked(node: Node, query: Any, key: Any, value: Any) -> list[relax.Expr]:
    """Separate packed q, k and v: (batch, tokens, heads, 3, size), or k and v: (batch, tokens, heads, 2, size)."""
    packed = query if key is None else key
    if value is not None or packed is None:
        return [query, key, value]
    shape = node.sizes(packed, "its packed input")
    if len(shape) != 5:
        raise node.unsupported(f"it has no values, and its keys have shape {shape}; packed keys and values have 5 axes")
    parts = []
    for k in range(shape[3]):
        part = node.emit(relax.op.strided_slice(packed, [3], [k], [k + 1]))
        parts.append(node.emit(relax.op.reshape(part, (*shape[:2], shape[2] * shape[4]))))
    return parts if key is None else [query, *parts]


def _with_bias(node: Node, bias: relax.Expr, tensors: Sequence[relax.Expr]) -> list[relax.Expr]:
    """Add the concatenated biases of q, k and v; keys and values that are split by heads have none."""
    results, start = [], 0
    for tensor in tensors:
        if len(node.sizes(tensor, "an input")) != 3:
            results.append(tensor)
            continue
        end = start + node.size(tensor, -1, "an input")
        part = node.emit(relax.op.strided_slice(bias, [0], [start], [end]))
        results.append(node.emit(relax.op.add(tensor, part)))
        start = end
    return results


def _heads(node: Node, x: relax.Expr) -> relax.Expr:
    """Reshape (batch, tokens, width) to (batch, heads, tokens, size); a tensor of four axes has that form already."""
    shape = node.sizes(x, "an input")
    if len(shape) == 4:
        return x
    heads, width = int(node.attribute("num_heads")), node.size(x, -1, "an input")
    if width % heads:
        raise node.unsupported(f"its width {width} cannot be divided into {heads} heads")
    return split_heads(node, x, (*shape[:2], heads, width // heads))


def _attend(node: Node, heads: _Heads, mask: Any, score_bias: Any) -> relax.Expr:
    """Emit ``softmax(scale * q @ k.T + masks) @ v`` as (batch, tokens, width)."""
    batch, count, tokens, _ = node.sizes(heads.query, "its queries")
    keys, value_size = (node.sizes(each, "its keys")[k] for each, k in ((heads.key, 2), (heads.value, 3)))
    dtype = dtype_of(heads.query)
    scale = float(node.attribute("scale", 0.0)) or 1 / math.sqrt(node.size(heads.query, -1, "its queries"))
    transposed_keys = node.emit(relax.op.permute_dims(heads.key, [0, 1, 3, 2]))
    scores = node.emit(relax.op.matmul(heads.query, transposed_keys))
    scores = node.emit(relax.op.multiply(scores, relax.const(scale, dtype)))
    masks = [] if mask is None else _key_mask(node, mask, (batch, tokens, keys), dtype)
    if node.attribute("unidirectional", 0):
        masks.append(_causal(node, tokens, keys, heads.past, dtype))
    if score_bias is not None:
        masks.append(score_bias)
    if masks:
        total = masks[0]
        for each in masks[1:]:
            total = node.emit(relax.op.add(total, each))
        scores = node.emit(relax.op.add(scores, total))
    result = node.emit(relax.op.matmul(node.emit(relax.op.nn.softmax(scores, -1)), heads.value))
    result = node.emit(relax.op.permute_dims(result, [0, 2, 1, 3]))
    return node.emit(relax.op.reshape(result, (batch, tokens, count * value_size)))


def _causal(node: Node, tokens: Any, keys: Any, past: Any, dtype: str) -> relax.Expr:
    """Return a mask with the least number of the type for each key after its query."""
    least = np.finfo(dtype).min
    if all(isinstance(size, int) for size in (tokens, keys, past)):
        later = np.arange(keys) > np.arange(tokens)[:, None] + past
        return relax.const(np.where(later, least, 0).astype(dtype).reshape(1, 1, tokens, keys))
    queries = node.emit(relax.op.reshape(node.positions(past, tokens, "int64"), (1, 1, tokens, 1)))
    after = node.emit(relax.op.greater(node.positions(0, keys, "int64"), queries))
    return node.emit(relax.op.where(after, relax.const(least, dtype), relax.const(0, dtype)))


def _are(shape: tuple[Any, ...], *wanted: Any) -> bool:
    """Whether sizes are these for all values of open ones."""
    return len(shape) == len(wanted) and all(map(Analyzer().can_prove_equal, shape, wanted))


def _key_mask(node: Node, mask: relax.Expr, sizes: tuple[Any, Any, Any], dtype: str) -> list[relax.Expr]:
    """Return what is added to the scores: mask_filter_value for hidden keys."""
    batch, tokens, keys = sizes
    shape = node.sizes(mask, "its mask")
    open_ = len(shape) == 2 and not all(isinstance(each, int) for each in shape)
    if open_ and not any(_are(shape, *each) for each in ((batch, keys), (1, 1), (batch, 1))):
        mask = node.emit(relax.op.broadcast_to(mask, relax.ShapeExpr([batch, keys])))  # compared when the model runs
        shape = (batch, keys)
    if _are(shape, batch) or _are(shape, 2 * batch):
        visible = _visible_keys(node, mask, 1 if _are(shape, batch) else 2, batch, keys)
    elif _are(shape, batch, keys) or _are(shape, batch, tokens, keys):
        visible = node.emit(relax.op.greater(mask, relax.const(0, dtype_of(mask))))
        visible = node.emit(relax.op.reshape(visible, (batch, 1, *(shape[1:-1] or (1,)), keys)))
    elif _are(shape, 1, 1) or _are(shape, batch, 1):
        return []  # ONNX Runtime's placeholder for no mask
    else:
        raise node.unsupported(
            f"its mask has shape {shape}; ({batch},), ({2 * batch},), ({batch}, {keys}) and ({batch}, {tokens}, {keys}) "
            "are allowed"
        )
    hidden = float(node.attribute("mask_filter_value", -10000.0))
    return [node.emit(relax.op.where(visible, relax.const(0, dtype), relax.const(hidden, dtype)))]


def _visible_keys(node: Node, mask: relax.Expr, ends: int, batch: Any, keys: Any) -> relax.Expr:
    """Return which keys lie before the end of each sequence, and from its start on if the mask has two ``ends``."""
    bounds = node.emit(relax.op.reshape(cast(node, mask, "int32"), (ends, batch, 1, 1, 1)))
    positions = node.positions(0, keys, "int32")
    end = node.emit(relax.op.strided_slice(bounds, [0], [0], [1]))
    visible = node.emit(relax.op.less(positions, node.emit(relax.op.reshape(end, (batch, 1, 1, 1)))))
    if ends == 1:
        return visible
    start = node.emit(relax.op.strided_slice(bounds, [0], [1], [2]))
    after = node.emit(relax.op.greater_equal(positions, node.emit(relax.op.reshape(start, (batch, 1, 1, 1)))))
    return node.emit(relax.op.logical_and(visible, after))
