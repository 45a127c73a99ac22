"""Converters of torch's LSTM and GRU to the kernels of `tvm_frontends.kernels.recurrent`.

TVM's frontend would unroll each step into some fifteen operators, and takes one layer only.

Corrections of TVM 0.27.0, ``relax/frontend/torch/exported_program_translator.py``:

- ``_lstm``: unrolls the steps into some fifteen operators each, and takes one layer only. ``_gru`` likewise.
"""

from __future__ import annotations

from typing import Any

from tvm import relax, tirx

from ..kernels.recurrent import Cell, Weights, emit_direction, make_activation
from ..tensor_types import dtype_of
from .node_calls import Call, converter

_ACTIVATIONS = {"lstm": ("Sigmoid", "Tanh", "Tanh"), "gru": ("Sigmoid", "Tanh")}
_ORDER = {"lstm": (0, 3, 1, 2), "gru": (1, 0, 2)}
"""Positions of ONNX's gates in torch's weights, whose order is i, f, g, o (LSTM) and r, z, n (GRU)."""


@converter("lstm.input", "gru.input")
def recurrent(call: Call) -> relax.Expr:
    """Convert ``lstm`` and ``gru`` of any number of layers, in one or both directions."""
    kind = call.node.target.__name__.split(".")[0]
    sequence, states, weights, biases, layers, _, _, both, batch_first = call.importer.retrieve_args(call.node)
    builder, op = call.importer.block_builder, relax.op
    states = list(states) if kind == "lstm" else [states]
    x = builder.emit(op.permute_dims(sequence, [1, 0, 2])) if batch_first else sequence
    last: list[list[Any]] = []
    per = 4 if biases else 2
    for layer in range(layers):
        outputs = []
        for d in range(2 if both else 1):
            index = layer * (2 if both else 1) + d
            parts = [_in_order(builder, kind, part) for part in weights[index * per : (index + 1) * per]]
            first = [builder.emit(op.strided_slice(state, [0], [index], [index + 1])) for state in states]
            y, *ends = emit_direction(builder, _cell(kind, x, parts[1], d), Weights(*parts), x, *first)
            outputs.append(builder.emit(op.squeeze(y, [1])))
            last.append(ends)
        x = outputs[0] if len(outputs) == 1 else builder.emit(op.concat(outputs, 2))
    result = builder.emit(op.permute_dims(x, [1, 0, 2])) if batch_first else x
    ends = [builder.emit(op.concat(list(values), 0)) for values in zip(*last, strict=True)]
    return relax.Tuple([result, *ends])


def _cell(kind: str, x: relax.Expr, recurrent: relax.Expr, d: int) -> Cell:
    steps, batch = (int(size) if isinstance(size, tirx.IntImm) else size for size in list(x.ty.shape)[:2])
    activations = tuple(make_activation(name) for name in _ACTIVATIONS[kind])
    hidden = int(recurrent.ty.shape[1])
    dtype = dtype_of(x)
    return Cell(kind, steps, batch, hidden, activations, reverse=d == 1, linear_before_reset=kind == "gru", dtype=dtype)


def _in_order(builder: relax.BlockBuilder, kind: str, weight: relax.Expr) -> relax.Expr:
    """Reorder the gates of a weight from torch's order to ONNX's."""
    import numpy as np

    order = _ORDER[kind]
    size = int(weight.ty.shape[0]) // len(order)
    rows = np.concatenate([np.arange(gate * size, (gate + 1) * size) for gate in order])
    return builder.emit(relax.op.take(weight, relax.const(rows.astype("int64")), axis=0))
