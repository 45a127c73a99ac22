"""Write the kernel of a recurrent layer: all steps of one direction in one function.

What the inputs add to the gates is computed before, for all steps at once, by a matrix product. A step multiplies the
state with the recurrent weights, block of hidden units by block: the weights of a block lie one after the other, its
sums stay in registers, and its gates follow at once.
"""

from __future__ import annotations

from typing import Any

from tvm import tirx
from tvm.script.ir_builder import IRBuilder
from tvm.tirx.script import builder as T  # noqa: N812

from .cell import Cell


def recurrent_kernel(cell: Cell) -> tirx.PrimFunc:
    """Make the kernel of a cell.

    Its arguments, with ``J = cell.blocks``, ``U = cell.units``, ``G = cell.gates``, ``T`` steps, ``B`` sequences and
    ``H`` hidden units:

    - inputs' part of the gates, ``(T * B, J * G * U)``, biases included,
    - recurrent weights, one tensor for each of `Cell.phases`, ``(J, H, gates of the phase * U)``; if they are integers,
      their factors, ``(J, G * U)``,
    - state before the first step ``(1, B, H)``; LSTM: the cell's state, too,
    - peepholes, if any: ``(J, 3, U)``; GRU with `linear_before_reset`: recurrent bias of the hidden gate ``(J, U)``,
    - lengths, if any: ``(B,)`` int32,
    - results: states of all steps ``(T, 1, B, H)``, the last state ``(1, B, H)``; LSTM: the last state of the cell.

    The axis of one element is that of the directions in ONNX: nothing is copied to add it.
    """
    with IRBuilder() as builder, T.prim_func(private=True, s_tir=True):
        T.func_name(f"{cell.kind}_layer")
        T.func_attr({"op_pattern": 8, "tirx.noalias": True})  # opaque: nothing is fused into it
        _Writer(cell).write()
    return builder.get()


class _Writer:
    """Writes the function's body; buffers are attributes."""

    def __init__(self, cell: Cell) -> None:
        c = self.cell = cell
        padded = c.blocks * c.units
        self.x = self._arg("x", (c.steps * c.batch, c.blocks * c.gates * c.units))
        self.weights = [
            self._arg(f"weights{k}", (c.blocks, c.hidden, (to - start) * c.units), c.weights)
            for k, (start, to) in enumerate(c.phases)
        ]
        self.factors: Any = self._arg("factors", (c.blocks, c.gates * c.units)) if c.weights else None
        self.first_h = self._arg("first_h", (1, c.batch, c.hidden))
        self.first_c = self._arg("first_c", (1, c.batch, c.hidden)) if c.kind == "lstm" else None
        self.peepholes: Any = self._arg("peepholes", (c.blocks, 3, c.units)) if c.peepholes else None
        self.bias: Any = self._arg("bias", (c.blocks, c.units)) if c.linear_before_reset else None
        self.lengths: Any = self._arg("lengths", (c.batch,), "int32") if c.lengths else None
        self.y = self._arg("y", (c.steps, 1, c.batch, c.hidden))
        self.last_h = self._arg("last_h", (1, c.batch, c.hidden))
        self.last_c = self._arg("last_c", (1, c.batch, c.hidden)) if c.kind == "lstm" else None
        self.h = T.alloc_buffer((2, c.batch, padded), c.dtype)
        self.c: Any = T.alloc_buffer((c.batch, padded), c.dtype) if c.kind == "lstm" else None
        two_phases = len(c.phases) > 1
        self.reset: Any = T.alloc_buffer((c.batch, padded), c.dtype) if two_phases else None
        self.update: Any = T.alloc_buffer((c.batch, padded), c.dtype) if two_phases else None
        self.rounded: Any = T.alloc_buffer((c.batch, c.hidden), c.dtype) if c.rounded_state else None
        self.range: Any = T.alloc_buffer((2,), c.dtype) if c.rounded_state else None
        self.sums = T.alloc_buffer(
            (c.rows, max(to - start for start, to in c.phases) * c.units), c.dtype, scope="local"
        )

    def _arg(self, name: str, shape: tuple[int, ...], dtype: str = "") -> Any:
        return T.arg(name, T.buffer(shape, dtype or self.cell.dtype))

    def _zero(self) -> Any:
        return tirx.const(0, self.cell.dtype)

    def write(self) -> None:
        """All steps, from the first state to the last."""
        self._copy_states(self.first_h, self.first_c, inward=True)
        if self.lengths is not None:
            with T.grid(self.cell.steps, self.cell.batch) as (step, b), T.serial(self.cell.hidden) as unit:
                T.buffer_store(self.y, self._zero(), [step, 0, b, unit])
        with T.serial(self.cell.steps) as step:
            if self.rounded is not None:
                self._round_state(step)
            for phase in range(len(self.cell.phases)):
                with T.grid(self.cell.blocks, self.cell.batch // self.cell.rows) as (block, group):
                    self._multiply(phase, step, block, group)
                    with T.unroll(self.cell.rows) as row:
                        self._gates(phase, step, block, group * self.cell.rows + row, row)
            self._write_states(step)
        self._copy_states(self.last_h, self.last_c, inward=False)

    def _copy_states(self, h: Any, c: Any, *, inward: bool) -> None:
        parity = 0 if inward else self.cell.steps % 2
        with T.grid(self.cell.batch, self.cell.hidden) as (b, unit):
            for outer, inner, index in ((h, self.h, [parity, b, unit]), (c, self.c, [b, unit])):
                if outer is not None and inward:
                    T.buffer_store(inner, outer[0, b, unit], index)
                elif outer is not None:
                    T.buffer_store(outer, inner[tuple(index)], [0, b, unit])

    def _multiply(self, phase: int, step: Any, block: Any, group: Any) -> None:
        """Sums of the state times the weights of a block's gates, for a few sequences."""
        start, to = self.cell.phases[phase]
        rows, gates, units = self.cell.rows, to - start, self.cell.units
        # A vector for each gate: LLVM makes one of 64 lanes of one of 48.
        with T.unroll(rows) as row, T.unroll(gates) as gate, T.vectorized(units) as lane:
            T.buffer_store(self.sums, self._zero(), [row, gate * units + lane])
        with (
            T.serial(self.cell.hidden) as k,
            T.unroll(rows) as row,
            T.unroll(gates) as gate,
            T.vectorized(units) as lane,
        ):
            b, column = group * rows + row, gate * units + lane
            state = self.reset[b, k] if phase else self._state(step, b, k)
            product = state * self.weights[phase][block, k, column].astype(self.cell.dtype)
            T.buffer_store(self.sums, self.sums[row, column] + product, [row, column])
        if self.factors is not None:
            with T.unroll(rows) as row, T.unroll(gates) as gate, T.vectorized(units) as lane:
                column = gate * units + lane
                T.buffer_store(self.sums, self.sums[row, column] * self.factors[block, column], [row, column])

    def _state(self, step: Any, b: Any, k: Any) -> Any:
        return self.h[step % 2, b, k] if self.rounded is None else self.rounded[b, k]

    def _round_state(self, step: Any) -> None:
        """Each sequence's state in 255 steps of its range, which holds 0, as ``DynamicQuantizeLinear`` makes them."""

        def number(value: float) -> Any:
            return tirx.const(value, self.cell.dtype)

        with T.serial(self.cell.batch) as b:
            for end in range(2):
                T.buffer_store(self.range, number(0), [end])
            with T.serial(self.cell.hidden) as k:
                for end, extreme in enumerate((tirx.min, tirx.max)):
                    T.buffer_store(self.range, extreme(self.range[end], self.h[step % 2, b, k]), [end])
            width = self.range[1] - self.range[0]
            scale = T.Bind(tirx.Select(width > number(0), width / number(255), number(1)))
            zero = T.Bind(tirx.nearbyint(-self.range[0] / scale))
            with T.serial(self.cell.hidden) as k:
                whole = tirx.nearbyint(self.h[step % 2, b, k] / scale) + zero
                whole = tirx.min(tirx.max(whole, number(0)), number(255))
                T.buffer_store(self.rounded, (whole - zero) * scale, [b, k])

    def _gates(self, phase: int, step: Any, block: Any, b: Any, row: Any) -> None:
        """New states of a block's units; a sequence that has ended keeps its states."""
        if self.lengths is None:
            with T.vectorized(self.cell.units) as u:
                self._new_state(phase, step, self._time(step, b), block, b, row, u)
            return
        with T.If(step < self._length(b)):
            with T.Then(), T.vectorized(self.cell.units) as u:
                self._new_state(phase, step, self._time(step, b), block, b, row, u)
            with T.Else(), T.vectorized(self.cell.units) as u:
                unit = block * self.cell.units + u
                T.buffer_store(self.h, self.h[step % 2, b, unit], [(step + 1) % 2, b, unit])

    def _length(self, b: Any) -> Any:
        return tirx.min(self.lengths[b], self.cell.steps)

    def _time(self, step: Any, b: Any) -> Any:
        """Position in the sequence at which a step is."""
        if not self.cell.reverse:
            return step
        return (self.cell.steps if self.lengths is None else self._length(b)) - 1 - step

    def _write_states(self, step: Any) -> None:
        with T.serial(self.cell.batch) as b:
            if self.lengths is None:
                self._write_row(step, b)
            else:
                with T.If(step < self._length(b)), T.Then():
                    self._write_row(step, b)

    def _write_row(self, step: Any, b: Any) -> None:
        with T.serial(self.cell.hidden) as unit:
            T.buffer_store(self.y, self.h[(step + 1) % 2, b, unit], [self._time(step, b), 0, b, unit])

    def _new_state(self, phase: int, step: Any, time: Any, block: Any, b: Any, row: Any, u: Any) -> None:
        unit = block * self.cell.units + u
        start = self.cell.phases[phase][0]

        def given(gate: int) -> Any:
            return self.x[time * self.cell.batch + b, (block * self.cell.gates + gate) * self.cell.units + u]

        def recurrent(gate: int) -> Any:
            return self.sums[row, (gate - start) * self.cell.units + u]

        if self.cell.kind == "lstm":
            new = self._lstm([given(g) + recurrent(g) for g in range(4)], block, b, u)
        elif self.cell.kind == "rnn":
            new = self.cell.activations[0](self._clip(given(0) + recurrent(0)))
        elif self.cell.linear_before_reset:
            update, reset = (self.cell.activations[0](self._clip(given(g) + recurrent(g))) for g in range(2))
            update, reset = T.Bind(update), T.Bind(reset)
            new = self._mix(update, given(2) + reset * (recurrent(2) + self.bias[block, u]), step, b, unit)
        elif phase == 0:
            T.buffer_store(self.update, self.cell.activations[0](self._clip(given(0) + recurrent(0))), [b, unit])
            reset = self.cell.activations[0](self._clip(given(1) + recurrent(1)))
            T.buffer_store(self.reset, reset * self.h[step % 2, b, unit], [b, unit])
            return
        else:
            new = self._mix(self.update[b, unit], given(2) + recurrent(2), step, b, unit)
        T.buffer_store(self.h, new, [(step + 1) % 2, b, unit])

    def _mix(self, update: Any, hidden: Any, step: Any, b: Any, unit: Any) -> Any:
        """The GRU's state: the old one where the update gate is open, else the new one."""
        hidden = T.Bind(self.cell.activations[1](self._clip(hidden)))
        return hidden + update * (self.h[step % 2, b, unit] - hidden)

    def _lstm(self, gates: list[Any], block: Any, b: Any, u: Any) -> Any:
        f, g, h = self.cell.activations
        unit = block * self.cell.units + u
        state = T.Bind(self.c[b, unit])

        def peep(gate: int, value: Any) -> Any:  # peepholes of the input, output and forget gate
            return gates[gate] + self.peepholes[block, gate, u] * value if self.peepholes is not None else gates[gate]

        taken = T.Bind(f(self._clip(peep(0, state))))
        kept = tirx.const(1, self.cell.dtype) - taken if self.cell.input_forget else f(self._clip(peep(2, state)))
        new = T.Bind(kept * state + taken * g(self._clip(gates[3])))
        T.buffer_store(self.c, new, [b, unit])
        return f(self._clip(peep(1, new))) * h(new)

    def _clip(self, value: Any) -> Any:
        if self.cell.clip is None:
            return value
        bound = tirx.const(self.cell.clip, self.cell.dtype)
        return tirx.max(tirx.min(value, bound), -bound)
