"""A recurrent layer in Relax: a matrix product for the inputs of all steps, then a kernel call for each direction."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np
from tvm import relax

from .cell import Cell
from .kernel import recurrent_kernel

_DTYPES = ("float32", "float64")
"""Types of the kernels; other types are computed in float32."""


@dataclass(frozen=True)
class Weights:
    """Weights of one direction; gates in the order of ONNX (`GATES`)."""

    input: relax.Expr
    """``(G * H, I)``."""
    recurrent: relax.Expr
    """``(G * H, H)``."""
    input_bias: relax.Expr | None = None
    recurrent_bias: relax.Expr | None = None
    """``(G * H,)``."""
    peepholes: relax.Expr | None = None
    """``(3 * H,)``: input, output, forget."""
    factors: relax.Expr | None = None
    """``(G * H,)``: scale of each gate's recurrent weights, if they are integers (`Cell.weights`)."""


def emit_direction(
    builder: relax.BlockBuilder,
    cell: Cell,
    weights: Weights,
    x: relax.Expr,
    first_h: relax.Expr | None = None,
    first_c: relax.Expr | None = None,
    lengths: relax.Expr | None = None,
) -> list[relax.Expr]:
    """Emit one direction of a recurrent layer.

    Parameters
    ----------
    cell : Cell
        The layer; its ``dtype`` is that of the results.
    x : relax.Expr
        ``(T, B, I)``.
    first_h, first_c : relax.Expr, optional
        States before the first step, ``(1, B, H)``; default: zeros.
    lengths : relax.Expr, optional
        ``(B,)``, integers.

    Returns
    -------
    list of relax.Expr
        States of all steps ``(T, 1, B, H)``, the last state ``(1, B, H)``; LSTM: the last state of the cell.
    """
    return _Emitter(builder, cell).emit(weights, x, first_h, first_c, lengths)


class _Emitter:
    def __init__(self, builder: relax.BlockBuilder, cell: Cell) -> None:
        self.builder = builder
        self.dtype = cell.dtype
        self.cell = cell if cell.dtype in _DTYPES else replace(cell, dtype="float32")

    def emit(
        self,
        weights: Weights,
        x: relax.Expr,
        first_h: relax.Expr | None,
        first_c: relax.Expr | None,
        lengths: relax.Expr | None,
    ) -> list[relax.Expr]:
        cell, op = self.cell, relax.op
        recurrent = weights.recurrent
        weights = Weights(*(self._cast(getattr(weights, part.name)) for part in fields(Weights)))
        if cell.weights:
            weights = replace(weights, recurrent=recurrent)
        arguments = [self._inputs(weights, self._cast(x))]
        if cell.byte_products:
            arguments += self._bytes(weights.recurrent)
        else:
            packed = self._pack_gates(weights.recurrent)
            arguments += [self._phase(packed, start, to) for start, to in cell.phases]
        if cell.weights:
            factors = self._blocks(self._reshape(weights.factors, (cell.gates, cell.hidden)), 1)  # G, J, U
            factors = self._emit(op.permute_dims(factors, [1, 0, 2]))
            arguments.append(self._reshape(factors, (cell.blocks, cell.gates * cell.units)))
        arguments.append(self._state(first_h))
        if cell.kind == "lstm":
            arguments.append(self._state(first_c))
        if cell.peepholes:
            peepholes = self._blocks(self._reshape(weights.peepholes, (3, cell.hidden)), 1)
            arguments.append(self._emit(op.permute_dims(peepholes, [1, 0, 2])))
        if cell.linear_before_reset:
            arguments.append(self._hidden_bias(weights.recurrent_bias))
        if cell.lengths:
            arguments.append(self._emit(op.astype(lengths, "int32")))
        states = [relax.TensorType((1, cell.batch, cell.hidden), cell.dtype)] * (2 if cell.kind == "lstm" else 1)
        types = [relax.TensorType((cell.steps, 1, cell.batch, cell.hidden), cell.dtype), *states]
        kernel = self.builder.add_func(recurrent_kernel(cell), f"{cell.kind}_layer")
        results = self._emit(relax.call_tir(kernel, arguments, types))
        return [self._back(self._emit(relax.TupleGetItem(results, k))) for k in range(len(types))]

    def _emit(self, value: relax.Expr) -> relax.Expr:
        return self.builder.emit(value)

    def _cast(self, value: relax.Expr | None) -> Any:
        if value is None or self.dtype == self.cell.dtype:
            return value
        return self._emit(relax.op.astype(value, self.cell.dtype))

    def _back(self, value: relax.Expr) -> relax.Expr:
        return value if self.dtype == self.cell.dtype else self._emit(relax.op.astype(value, self.dtype))

    def _reshape(self, value: relax.Expr, shape: Sequence[int]) -> relax.Expr:
        return self._emit(relax.op.reshape(value, tuple(shape)))

    def _state(self, value: relax.Expr | None) -> relax.Expr:
        shape = (1, self.cell.batch, self.cell.hidden)
        return self._emit(relax.op.zeros(shape, self.cell.dtype)) if value is None else self._cast(value)

    def _blocks(self, value: relax.Expr, axis: int) -> relax.Expr:
        """Split the axis of hidden units into blocks, the last one padded with zeros."""
        cell = self.cell
        shape = [int(d) for d in value.ty.shape]
        missing = cell.blocks * cell.units - cell.hidden
        if missing:
            widths = [0] * (2 * len(shape))
            widths[2 * axis + 1] = missing
            value = self._emit(relax.op.nn.pad(value, widths))
        return self._reshape(value, [*shape[:axis], cell.blocks, cell.units, *shape[axis + 1 :]])

    def _pack_gates(self, weight: relax.Expr) -> relax.Expr:
        """Reorder ``(G * H, K)`` to ``(J, K, G, U)``."""
        cell = self.cell
        columns = int(weight.ty.shape[1])
        blocks = self._blocks(self._reshape(weight, (cell.gates, cell.hidden, columns)), 1)  # G, J, U, K
        return self._emit(relax.op.permute_dims(blocks, [1, 3, 0, 2]))

    def _bytes(self, weight: relax.Expr) -> list[relax.Expr]:
        """Emit the weights with four bytes of a column side by side, and the sums of the columns."""
        cell, op = self.cell, relax.op
        packed = self._phase(self._pack_gates(weight), 0, cell.gates)
        columns = cell.gates * cell.units
        sums = self._emit(op.sum(self._emit(op.astype(packed, "int32")), [1]))
        if missing := -cell.hidden % 4:
            packed = self._emit(op.nn.pad(packed, [0, 0, 0, missing, 0, 0]))
        fours = self._reshape(packed, (cell.blocks, -(-cell.hidden // 4), 4, columns))
        fours = self._emit(op.permute_dims(fours, [0, 1, 3, 2]))
        return [self._reshape(fours, (cell.blocks, -(-cell.hidden // 4), 4 * columns)), sums]

    def _phase(self, packed: relax.Expr, start: int, to: int) -> relax.Expr:
        cell = self.cell
        if (start, to) != (0, cell.gates):
            packed = self._emit(relax.op.strided_slice(packed, [2], [start], [to]))
        return self._reshape(packed, (cell.blocks, cell.hidden, (to - start) * cell.units))

    def _inputs(self, weights: Weights, x: relax.Expr) -> relax.Expr:
        """Emit the contribution of inputs and biases to the gates of all steps."""
        cell, op = self.cell, relax.op
        size = int(x.ty.shape[2])
        width = cell.blocks * cell.gates * cell.units
        packed = self._emit(op.permute_dims(self._pack_gates(weights.input), [1, 0, 2, 3]))
        gates = self._emit(op.matmul(x, self._reshape(packed, (size, width))))
        bias = self._bias(weights)
        return gates if bias is None else self._emit(op.add(gates, bias))

    def _bias(self, weights: Weights) -> relax.Expr | None:
        """Return all biases added before the gates' activations, in the order of the packed gates."""
        cell = self.cell
        parts = [self._reshape(b, (cell.gates, cell.hidden)) for b in (weights.input_bias,) if b is not None]
        if weights.recurrent_bias is not None:
            recurrent = self._reshape(weights.recurrent_bias, (cell.gates, cell.hidden))
            if cell.linear_before_reset:  # the kernel adds the bias of the hidden gate
                mask = np.array([[1], [1], [0]], cell.dtype)
                recurrent = self._emit(relax.op.multiply(recurrent, relax.const(mask)))
            parts.append(recurrent)
        if not parts:
            return None
        total = parts[0] if len(parts) == 1 else self._emit(relax.op.add(*parts))
        blocks = self._emit(relax.op.permute_dims(self._blocks(total, 1), [1, 0, 2]))
        return self._reshape(blocks, (cell.blocks * cell.gates * cell.units,))

    def _hidden_bias(self, bias: relax.Expr | None) -> relax.Expr:
        cell = self.cell
        if bias is None:
            return relax.const(np.zeros((cell.blocks, cell.units), cell.dtype))
        gate = self._emit(relax.op.strided_slice(self._reshape(bias, (3, cell.hidden)), [0], [2], [3]))
        return self._reshape(self._blocks(gate, 1), (cell.blocks, cell.units))
