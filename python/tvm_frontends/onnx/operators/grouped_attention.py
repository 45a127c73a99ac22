"""Converter of com.microsoft's GroupQueryAttention: decoders that keep keys and values between runs."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import tvm
from tvm import relax, te, tirx
from tvm.sym import Analyzer

from ...tensor_types import dtype_of
from .nodes import Node, converter
from .quantized_arithmetic import cast
from .transformers import rotate, rows_of, split_heads

_FIRST_OPTIONAL = 7
"""Number of the inputs queries, keys, values, past keys and values, last positions, total length."""
_COSINE, _SINE, _POSITIONS, _BIAS, _SINK = 7, 8, 9, 10, 11


@dataclass(frozen=True)
class _Sizes:
    """Sizes: integers, and of ``batch``, ``tokens``, ``past`` and ``total`` also integer expressions of symbols."""

    batch: Any
    tokens: Any
    heads: int
    groups: int
    size: int
    past: Any
    total: Any

    @property
    def present(self) -> Any:
        """Length of the buffers of keys and values after the run."""
        if isinstance(self.past, int) and isinstance(self.total, int):
            return max(self.past, self.total)
        past, total = (tirx.IntImm("int64", n) if isinstance(n, int) else n for n in (self.past, self.total))
        grows = self.past == 0 or Analyzer().can_prove_equal(total - past, self.tokens)
        return total if grows else tirx.max(past, total)


@converter("GroupQueryAttention", domain="com.microsoft")
def group_query_attention(node: Node) -> list[relax.Expr]:
    """Convert GroupQueryAttention; outputs are the result, and all keys and values including the new ones.

    New keys of a sequence follow its past ones, whose number is ``seqlens_k + 1 - tokens``. A first prompt, with as many
    tokens as the total length, has no past. Refused: scales of quantised keys and values, qk_output, and a total length that
    is neither a constant nor computed from sizes.
    """
    for position in range(_SINK + 1, len(node.inputs)):
        if node.input(position) is not None:
            raise node.unsupported(
                f"it has input {position} (scales of quantised keys and values); export the model with a cache in floats"
            )
    if node.attribute("qk_output", 0):
        raise node.unsupported("its attribute qk_output is set; export the model without it")
    query, key, value, sizes = _operands(node)
    start = _start(node, sizes)
    steps = node.emit(relax.op.reshape(node.positions(0, sizes.tokens, "int32"), (1, sizes.tokens)))
    positions = node.emit(relax.op.add(start, steps))
    if node.attribute("do_rotary", 0):
        query, key = (_rotated(node, each, positions, sizes) for each in (query, key))
    keys, values = (_present(node, node.input(3 + k), new, start, sizes) for k, new in enumerate((key, value)))
    return [_attend(node, query, keys, values, positions, sizes), keys, values]


def _operands(node: Node) -> tuple[relax.Expr, relax.Expr, relax.Expr, _Sizes]:
    """Return queries, keys and values by heads; packed ones are split first."""
    heads, groups = int(node.attribute("num_heads")), int(node.attribute("kv_num_heads"))
    query, key, value = (node.input(k) for k in range(3))
    batch, tokens, _ = node.sizes(query, "its queries")
    width = node.size(query, -1, "its queries")
    packed = key is None
    size = width // (heads + 2 * groups if packed else heads)
    if packed:
        ends = [heads * size, (heads + groups) * size]
        parts = node.emit(relax.op.split(query, ends, axis=-1))
        query, key, value = (node.emit(relax.TupleGetItem(parts, k)) for k in range(3))
    past = 0 if node.input(3) is None else node.sizes(node.input(3), "its past keys")[2]
    sizes = _Sizes(batch, tokens, heads, groups, size, past, _total(node))
    if _is_less(sizes.total, tokens) or heads % groups:
        raise node.unsupported(
            f"{heads} heads cannot share {groups}, or {tokens} tokens are more than the total length {sizes.total}"
        )
    split = (
        split_heads(node, each, (batch, tokens, count, size))
        for each, count in ((query, heads), (key, groups), (value, groups))
    )
    query, key, value = split
    return query, key, value, sizes


def _total(node: Node) -> Any:
    """Return the total length of the sequences, an integer or an expression of symbols."""
    value, constant = node.input(_FIRST_OPTIONAL - 1), node.constant(_FIRST_OPTIONAL - 1)
    if constant is not None:
        return int(constant.reshape(-1)[0])
    if isinstance(value, relax.ShapeExpr):
        return value.values[0]
    raise node.unsupported("its total_sequence_length is known only when the model runs; freeze its input shapes")


def _is_less(left: Any, right: Any) -> bool:
    return isinstance(left, int) and isinstance(right, int) and left < right


def _start(node: Node, sizes: _Sizes) -> relax.Expr:
    """Return the number of past keys of each sequence, as (batch, 1).

    A prompt as long as the total length ends at its last token or before, so that it has none by the lower limit, too.
    """
    if isinstance(sizes.batch, int) and isinstance(sizes.tokens, int) and sizes.tokens == sizes.total:
        return relax.const(np.zeros((sizes.batch, 1), "int32"))
    last = node.emit(relax.op.reshape(cast(node, node.input(_FIRST_OPTIONAL - 2), "int32"), (sizes.batch, 1)))
    start = node.emit(relax.op.add(last, node.positions(1 - sizes.tokens, 1, "int32")))
    limits = [node.positions(limit, 1, "int32") for limit in (0, sizes.present - sizes.tokens)]
    return node.emit(relax.op.minimum(node.emit(relax.op.maximum(start, limits[0])), limits[1]))


def _rotated(node: Node, x: relax.Expr, positions: relax.Expr, sizes: _Sizes) -> relax.Expr:
    explicit = node.input(_POSITIONS)
    positions = positions if explicit is None else cast(node, explicit, "int32")
    tables = [node.input(_COSINE), node.input(_SINE)]
    width = node.shape(tables[0], "its cos_cache")[-1]
    shape = (sizes.batch, 1, sizes.tokens, width)
    cosine, sine = (node.emit(relax.op.reshape(rows_of(node, table, positions), shape)) for table in tables)
    return rotate(node, x, (cosine, sine), 2 * width, bool(node.attribute("rotary_interleaved", 0)))


def _present(node: Node, past: relax.Expr | None, new: relax.Expr, start: relax.Expr, sizes: _Sizes) -> relax.Expr:
    """Return the buffer of past keys or values with the new rows written from ``start`` on."""
    if past is None and Analyzer().can_prove_equal(sizes.present, sizes.tokens):
        return new

    def compute(new: te.Tensor, start: te.Tensor, places: te.Tensor, *past: te.Tensor) -> te.Tensor:
        def element(b: tvm.tirx.Var, k: tvm.tirx.Var, j: tvm.tirx.Var, d: tvm.tirx.Var) -> tvm.tirx.Expr:
            row = j - start(b, 0)
            before = tvm.tirx.const(0, new.dtype)
            if past:
                before = tvm.tirx.if_then_else(j < past[0].shape[2], past[0](b, k, j, d), before)
            return tvm.tirx.if_then_else(tvm.tirx.all(row >= 0, row < new.shape[2]), new(b, k, row, d), before)

        return te.compute((*new.shape[:2], places.shape[0], new.shape[3]), element, name="present")

    places = node.positions(0, sizes.present, "int32")  # for its size
    operands = [new, start, places] if past is None else [new, start, places, past]
    return node.builder.emit_te(compute, *operands, primfunc_name_hint="keys_behind_past")


def _attend(
    node: Node, query: relax.Expr, keys: relax.Expr, values: relax.Expr, positions: relax.Expr, sizes: _Sizes
) -> relax.Expr:
    """Emit attention with one product for each group of heads, as (batch, tokens, width)."""
    op, dtype = relax.op, dtype_of(query)
    batch, heads, tokens, size = sizes.batch, sizes.heads, sizes.tokens, sizes.size
    shared = (batch, sizes.groups, heads // sizes.groups * tokens)
    scale = float(node.attribute("scale", 0.0)) or 1 / math.sqrt(size)
    scaled = node.emit(op.multiply(query, relax.const(scale, dtype)))
    transposed_keys = node.emit(op.permute_dims(keys, [0, 1, 3, 2]))
    scores = node.emit(op.matmul(node.emit(op.reshape(scaled, (*shared, size))), transposed_keys))
    scores = node.emit(op.reshape(scores, (batch, heads, tokens, sizes.present)))
    cap = float(node.attribute("softcap", 0.0))
    if cap:
        ratio = node.emit(op.divide(scores, relax.const(cap, dtype)))
        scores = node.emit(op.multiply(node.emit(op.tanh(ratio)), relax.const(cap, dtype)))
    bias = node.input(_BIAS)
    if bias is not None:
        columns = node.sizes(bias, "its attention_bias")[-1]
        if not Analyzer().can_prove_equal(sizes.present, columns):
            if not isinstance(sizes.present, int) or not isinstance(columns, int):
                raise node.unsupported(
                    f"its attention_bias has {columns} columns for {sizes.present} keys; give both sizes"
                )
            bias = node.emit(op.nn.pad(bias, [0] * 7 + [sizes.present - columns]))
        scores = node.emit(op.add(scores, bias))
    key_positions = node.positions(0, sizes.present, "int32")
    position = node.emit(op.reshape(positions, (batch, 1, tokens, 1)))
    visible = node.emit(op.less_equal(key_positions, position))
    window = int(node.attribute("local_window_size", -1))
    if window > 0:
        first = node.emit(op.subtract(position, relax.const(window, "int32")))
        visible = node.emit(op.logical_and(visible, node.emit(op.greater(key_positions, first))))
    hidden = relax.const(float(np.finfo(dtype).min), dtype)
    scores = node.emit(op.where(visible, scores, hidden))
    weights = node.emit(op.reshape(_softmax(node, scores, sizes), (*shared, sizes.present)))
    result = node.emit(op.reshape(node.emit(op.matmul(weights, values)), (batch, heads, tokens, size)))
    return node.emit(op.reshape(node.emit(op.permute_dims(result, [0, 2, 1, 3])), (batch, tokens, heads * size)))


def _softmax(node: Node, scores: relax.Expr, sizes: _Sizes) -> relax.Expr:
    """Return the softmax of each row; a sink is one more score of its head, whose share is lost."""
    op, dtype, sink = relax.op, dtype_of(scores), node.input(_SINK)
    if sink is None and not node.attribute("smooth_softmax", 0):
        return node.emit(op.nn.softmax(scores, -1))
    each = relax.const(np.zeros(sizes.heads, dtype)) if sink is None else cast(node, sink, dtype)
    column = node.emit(op.reshape(each, (1, sizes.heads, 1, 1)))
    column = node.emit(op.broadcast_to(column, (sizes.batch, sizes.heads, sizes.tokens, 1)))
    shares = node.emit(op.nn.softmax(node.emit(op.concat([scores, column], -1)), -1))
    return node.emit(op.strided_slice(shares, [3], [0], [sizes.present]))
