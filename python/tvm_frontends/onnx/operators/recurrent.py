"""Converters of LSTM, GRU and RNN to the kernels of `tvm_frontends.kernels.recurrent`."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
from tvm import relax

from ...kernels.recurrent import (
    GATES,
    Activation,
    Cell,
    Weights,
    emit_direction,
    make_activation,
    takes_alpha,
    takes_beta,
)
from ...tensor_types import dtype_of
from .nodes import Node, converter
from .quantized import dynamically_quantized
from .quantized_arithmetic import dequantize

_DEFAULTS = {"lstm": ("Sigmoid", "Tanh", "Tanh"), "gru": ("Sigmoid", "Tanh"), "rnn": ("Tanh",)}
_DIRECTIONS = {"forward": (False,), "reverse": (True,), "bidirectional": (False, True)}


@converter("LSTM", "GRU", "RNN")
def recurrent(node: Node) -> list[relax.Expr]:
    """Convert LSTM, GRU and RNN with all attributes: one kernel for each direction.

    Inputs: X, W, R, B, sequence_lens, initial_h, initial_c, P; outputs: Y, Y_h, Y_c.
    """
    return _layer(node)


def _layer(node: Node, factors: Any = None) -> list[relax.Expr]:
    """Convert a layer; with ``factors`` of the gates, recurrent weights are integers and states are rounded to 8 bits."""
    kind = node.operator.lower()
    swapped = bool(node.attributes.get("layout", 0))
    directions = _directions(node)
    x = _swap(node, node.input(0)) if swapped else node.input(0)
    states = [_swap(node, s) if swapped and s is not None else s for s in (node.input(5), node.input(6))]
    results = []
    for d, reverse in enumerate(directions):
        cell = _cell(node, kind, x, d, reverse)
        if factors is not None:
            cell = replace(cell, rounded_state=True, weights=dtype_of(node.input(2)))
        h, c = (_slice(node, state, d) for state in states)
        results.append(emit_direction(node.builder, cell, _weights(node, cell, d, factors), x, h, c, node.input(4)))
    y = [_join(node, [r[0] for r in results], 1)]  # steps, directions, batch, hidden
    last = [_join(node, [r[k] for r in results], 0) for k in range(1, len(results[0]))]
    if not swapped:
        return [*y, *last]
    return [node.emit(relax.op.permute_dims(y[0], [2, 0, 1, 3])), *(_swap(node, value) for value in last)]


@converter("DynamicQuantizeLSTM", domain="com.microsoft")
def dynamic_quantize_lstm(node: Node) -> list[relax.Expr]:
    """Convert com.microsoft's DynamicQuantizeLSTM, whose W and R are constants of 8 bits.

    Inputs: those of LSTM, then scale and zero point of W and of R; W and R are transposed. X as a whole, and each
    sequence's state before each step, are rounded to 8 bits of their range. ONNX Runtime uses one range for all sequences
    of one of its threads.
    """
    x = node.input(0)
    inputs = [dequantize(node, *dynamically_quantized(node, x)), *(node.input(k) for k in range(1, 8))]
    whole, scales = _integer_weights(node, 1, 8)
    inputs[1] = relax.const((whole.astype(np.float32) * scales[..., None]).astype(np.float32))
    whole, scales = _integer_weights(node, 2, 10)
    inputs[2] = relax.const(whole)
    return _layer(replace(node, operator="LSTM", inputs=tuple(inputs)), scales)


def _integer_weights(node: Node, position: int, scale: int) -> tuple[Any, Any]:
    """Return 8-bit weights minus their zero points as (directions, gates, inputs), and each gate's scale."""
    name = "WR"[position - 1]
    whole, scales, zeros = (node.constant(k) for k in (position, scale, scale + 1))
    if whole is None or scales is None or (zeros is None and node.input(scale + 1) is not None):
        raise node.unsupported(
            f"its weights {name}, their scale or their zero point are known only when the model runs"
        )
    wide = whole.astype(np.int16)
    if zeros is not None:
        wide = wide - zeros.reshape(len(whole), 1, -1).astype(np.int16)
    narrow = wide.astype(np.int8)
    kept = np.ascontiguousarray((narrow if np.array_equal(narrow, wide) else wide).transpose(0, 2, 1))
    return kept, np.broadcast_to(scales.reshape(len(whole), -1), kept.shape[:2]).astype(np.float32)


def _directions(node: Node) -> tuple[bool, ...]:
    """Return for each direction whether it runs backwards."""
    name = node.attribute("direction", "forward")
    if name not in _DIRECTIONS:
        raise node.unsupported(f"direction is {name!r}; allowed are {', '.join(_DIRECTIONS)}")
    return _DIRECTIONS[name]


def _cell(node: Node, kind: str, x: Any, d: int, reverse: bool) -> Cell:
    steps, batch, _ = node.sizes(x, "its input X")
    hidden = node.size(node.input(2), -1, "its recurrent weights R")
    clip = node.attributes.get("clip")
    return Cell(
        kind,
        steps,
        batch,
        hidden,
        _activations(node, kind, d),
        float(clip) if clip else None,
        reverse,
        lengths=node.input(4) is not None,
        peepholes=kind == "lstm" and node.input(7) is not None,
        input_forget=bool(node.attributes.get("input_forget", 0)),
        linear_before_reset=kind == "gru" and bool(node.attributes.get("linear_before_reset", 0)),
        dtype=dtype_of(x),
    )


def _activations(node: Node, kind: str, d: int) -> tuple[Activation, ...]:
    """Return the functions of a direction; functions that take alpha or beta consume them in order."""
    default = _DEFAULTS[kind]
    wanted = len(default) * len(_directions(node))
    names = node.attribute("activations") or default * len(_directions(node))
    if len(names) != wanted:
        raise node.unsupported(
            f"it has {len(names)} activations; the standard requires {wanted}, {len(default)} for each direction"
        )
    alphas, betas = (list(node.attributes.get(f"activation_{n}", ())) for n in ("alpha", "beta"))
    activations = []
    for name in names:
        alpha = alphas.pop(0) if alphas and takes_alpha(name) else None
        beta = betas.pop(0) if betas and takes_beta(name) else None
        try:
            activations.append(make_activation(name, alpha, beta))
        except ValueError as error:
            raise node.unsupported(str(error)) from None
    return tuple(activations[d * len(default) : (d + 1) * len(default)])


def _weights(node: Node, cell: Cell, d: int, factors: Any) -> Weights:
    biases: tuple[Any, Any] = (None, None)
    if node.input(3) is not None:
        both = node.emit(relax.op.reshape(_part(node, node.input(3), d), (2, GATES[cell.kind] * cell.hidden)))
        biases = _part(node, both, 0), _part(node, both, 1)
    peepholes = _part(node, node.input(7), d) if cell.peepholes else None
    scales = None if factors is None else relax.const(np.ascontiguousarray(factors[d]))
    return Weights(_part(node, node.input(1), d), _part(node, node.input(2), d), *biases, peepholes, scales)


def _slice(node: Node, value: Any, d: int) -> Any:
    """Return item d along the first axis, which keeps length 1."""
    if value is None or node.size(value, 0, "an input") == 1:
        return value
    return node.emit(relax.op.strided_slice(value, [0], [d], [d + 1]))


def _part(node: Node, value: Any, d: int) -> Any:
    """Return item d along the first axis."""
    return node.emit(relax.op.reshape(_slice(node, value, d), node.shape(value, "an input")[1:]))


def _join(node: Node, values: list[Any], axis: int) -> relax.Expr:
    return values[0] if len(values) == 1 else node.emit(relax.op.concat(values, axis))


def _swap(node: Node, value: Any) -> relax.Expr:
    """Exchange the first two axes."""
    return node.emit(relax.op.permute_dims(value, [1, 0, 2]))
