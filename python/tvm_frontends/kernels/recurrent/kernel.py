"""Kernels of recurrent layers: all steps of one direction in one function.

The contribution of the inputs to the gates is computed before, for all steps at once, by a matrix product. A step
multiplies the state by the recurrent weights in blocks of hidden units. The weights of a block are contiguous, its sums
stay in registers, and its gates are computed at once.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Literal

import msgspec
import tvm
from tvm import tirx
from tvm.script.ir_builder import IRBuilder
from tvm.tirx.script import builder as T  # noqa: N812

from .cell import Cell


def recurrent_kernel(cell: Cell) -> tirx.PrimFunc:
    """Build the kernel of a cell.

    Its arguments, with ``J = cell.blocks``, ``U = cell.units``, ``G = cell.gates``, ``T`` steps, ``B`` sequences and
    ``H`` hidden units:

    - the inputs' contribution to the gates, ``(T, B, J * G * U)``, biases included,
    - recurrent weights, one tensor for each of `Cell.phases`, ``(J, H, gates of the phase * U)``, or with
      `Cell.byte_products` ``(J, H / 4, G * U * 4)``, four of a column side by side, and their sums, ``(J, G * U)`` int32;
      if they are integers, their factors, ``(J, G * U)``,
    - state before the first step ``(1, B, H)``; LSTM: the cell's state, too,
    - peepholes, if any: ``(J, 3, U)``; GRU with `linear_before_reset`: recurrent bias of the hidden gate ``(J, U)``,
    - lengths, if any: ``(B,)`` int32,
    - results: states of all steps ``(T, 1, B, H)``, the last state ``(1, B, H)``; LSTM: the last state of the cell.

    The axis of length 1 is ONNX's axis of directions, so that no copy is needed to add it.
    """
    sizes = {name: tirx.Var(name, "int64") for name in ("steps", "batch") if not isinstance(getattr(cell, name), int)}
    return _function(replace(cell, **sizes), _Writer)


CELL = "tvm_frontends.recurrent_cell"
"""Attribute of a kernel of static sizes: its `Cell` as JSON, from which kernels for GPUs and some processors are built."""
_MOST_THREADS, _SHARED_BYTES = 1024, 48 << 10


def gpu_recurrent_kernel(kernel: tirx.PrimFunc) -> tirx.PrimFunc | None:
    """Build the GPU kernel that replaces one of `recurrent_kernel`, with the same arguments.

    A block computes one sequence, and a thread one hidden unit, or every n-th. States are in shared memory, so that the
    steps need no further launch.

    Returns
    -------
    PrimFunc or None
        None if ``kernel`` is not a recurrent layer, or has more hidden units than fit into shared memory.
    """
    text = kernel.attrs.get(CELL) if kernel.attrs else None
    if text is None:
        return None
    cell = msgspec.json.decode(str(text), type=Cell)
    if _BlockWriter.shared_bytes(cell) > _SHARED_BYTES:
        return None
    return _function(cell, _BlockWriter)


@dataclass(frozen=True)
class ByteProducts:
    """The instruction of x86 that multiplies bytes, or numbers of 16 bits, and adds neighbours exactly."""

    instruction: Literal["vpdpbusd", "pmaddwd"]
    lanes: int
    """Sums of 32 bits of the longest vectors."""

    def add(self, sums: Any, numbers: Any, weights: Any, lanes: int) -> Any:
        """Return the sums plus the products of four unsigned numbers, an int32, and four weights of each column."""
        each = tirx.Broadcast(numbers, lanes)
        if self.instruction == "vpdpbusd":
            bytes_ = (
                f"int8x{4 * lanes}" if tvm.target.codegen.llvm_version_major() >= _LLVM_WITH_BYTES else f"int32x{lanes}"
            )
            factors = (tirx.reinterpret(bytes_, each), tirx.reinterpret(bytes_, weights))
            return T.call_llvm_pure_intrin(f"int32x{lanes}", f"llvm.x86.avx512.vpdpbusd.{32 * lanes}", sums, *factors)
        shorts = f"int16x{2 * lanes}"

        def number(value: int) -> Any:
            return tirx.Broadcast(tirx.const(value, "int16"), 2 * lanes)

        def product(a: Any, b: Any) -> Any:
            names = {16: "avx512.pmaddw.d.512", 8: "avx2.pmadd.wd", 4: "sse2.pmadd.wd"}
            return T.call_llvm_pure_intrin(f"int32x{lanes}", f"llvm.x86.{names[lanes]}", a, b)

        each, weights = tirx.reinterpret(shorts, each), tirx.reinterpret(shorts, weights)
        low = tirx.shift_right(tirx.shift_left(weights, number(8)), number(8))
        high = tirx.shift_right(weights, number(8))
        sums = sums + product(tirx.bitwise_and(each, number(255)), low)
        return sums + product(tirx.bitwise_and(tirx.shift_right(each, number(8)), number(255)), high)


_LLVM_WITH_BYTES = 22
"""The version of LLVM since which the arguments of vpdpbusd are bytes."""


def byte_recurrent_kernel(kernel: tirx.PrimFunc, products: ByteProducts) -> tirx.PrimFunc | None:
    """Build the CPU kernel with these instructions that replaces one of `recurrent_kernel`, with the same arguments.

    Returns
    -------
    PrimFunc or None
        None if ``kernel`` is not a recurrent layer whose steps multiply bytes.
    """
    text = kernel.attrs.get(CELL) if kernel.attrs else None
    if text is None:
        return None
    cell = msgspec.json.decode(str(text), type=Cell)
    return _function(cell, partial(_Writer, products=products)) if cell.byte_products else None


def _function(cell: Cell, writer: Callable[[Cell], _Writer]) -> tirx.PrimFunc:
    with IRBuilder() as builder, T.prim_func(private=True, s_tir=True):
        T.func_name(f"{cell.kind}_layer")
        # Opaque: no operator is fused into it.
        known = {} if cell.is_open else {CELL: msgspec.json.encode(cell).decode()}
        T.func_attr({"op_pattern": 8, "tirx.noalias": True, **known})
        writer(cell).write()
    return builder.get()


class _Writer:
    """Writes the function's body; its buffers are attributes."""

    def __init__(self, cell: Cell, products: ByteProducts | None = None) -> None:
        c = self.cell = cell
        self.products = products
        self.x = self._arg("x", (c.steps, c.batch, c.blocks * c.gates * c.units))
        rows, bytes_ = (-(-c.hidden // 4), 4) if c.byte_products else (c.hidden, 1)
        self.weights = [
            self._arg(f"weights{k}", (c.blocks, rows, (to - start) * c.units * bytes_), c.weights)
            for k, (start, to) in enumerate(c.phases)
        ]
        columns = (c.blocks, c.gates * c.units)
        self.weight_sums: Any = self._arg("weight_sums", columns, "int32") if c.byte_products else None
        self.factors: Any = self._arg("factors", (c.blocks, c.gates * c.units)) if c.weights else None
        self.first_h = self._arg("first_h", (1, c.batch, c.hidden))
        self.first_c = self._arg("first_c", (1, c.batch, c.hidden)) if c.kind == "lstm" else None
        self.peepholes: Any = self._arg("peepholes", (c.blocks, 3, c.units)) if c.peepholes else None
        self.bias: Any = self._arg("bias", (c.blocks, c.units)) if c.linear_before_reset else None
        self.lengths: Any = self._arg("lengths", (c.batch,), "int32") if c.lengths else None
        self.y = self._arg("y", (c.steps, 1, c.batch, c.hidden))
        self.last_h = self._arg("last_h", (1, c.batch, c.hidden))
        self.last_c = self._arg("last_c", (1, c.batch, c.hidden)) if c.kind == "lstm" else None

    def _allocate(self, batch: int, padded: int, sums: tuple[int, int], scope: str) -> None:
        """Allocate the states and sums."""
        c = self.cell
        two_phases = len(c.phases) > 1
        self.h = T.alloc_buffer((2, batch, padded), c.dtype, scope=scope)
        self.c: Any = T.alloc_buffer((batch, padded), c.dtype, scope=scope) if c.kind == "lstm" else None
        self.reset: Any = T.alloc_buffer((batch, padded), c.dtype, scope=scope) if two_phases else None
        self.update: Any = T.alloc_buffer((batch, padded), c.dtype, scope=scope) if two_phases else None
        rounded = "uint8" if self._adds_integers else c.dtype
        self.rounded: Any = T.alloc_buffer((batch, padded), rounded, scope=scope) if c.rounded_state else None
        self.range: Any = T.alloc_buffer((2,), c.dtype, scope="local") if c.rounded_state else None
        self.sums = T.alloc_buffer(sums, c.dtype, scope="local")
        if self._adds_integers:
            self.totals = T.alloc_buffer((math.prod(sums),), "int32", scope="local")
            self.scales = T.alloc_buffer((batch,), c.dtype, scope=scope)
            self.zeros = T.alloc_buffer((batch,), "int32", scope=scope)

    @property
    def _adds_integers(self) -> bool:
        return self.cell.byte_products

    def _arg(self, name: str, shape: tuple[int, ...], dtype: str = "") -> Any:
        return T.arg(name, T.buffer(shape, dtype or self.cell.dtype))

    def _number(self, value: float) -> Any:
        return tirx.const(value, self.cell.dtype)

    def _zero(self) -> Any:
        return self._number(0)

    def write(self) -> None:
        """Write all steps, from the first state to the last."""
        cell = self.cell
        columns = max(to - start for start, to in cell.phases) * cell.units
        self._allocate(cell.batch, cell.blocks * cell.units, (cell.rows, columns), "global")
        self._copy_states(self.first_h, self.first_c, inward=True)
        if self._adds_integers:
            with T.grid(cell.batch, cell.blocks * cell.units - cell.hidden) as (b, unit):
                T.buffer_store(self.rounded, tirx.const(0, "uint8"), [b, cell.hidden + unit])
        if self.lengths is not None:
            with T.grid(self.cell.steps, self.cell.batch) as (step, b), T.serial(self.cell.hidden) as unit:
                T.buffer_store(self.y, self._zero(), [step, 0, b, unit])
        with T.serial(self.cell.steps) as step:
            if self.rounded is not None:
                self._round_state(step)
            for phase in range(len(cell.phases)):
                with T.serial(cell.blocks) as position:
                    # Every second step goes backwards, so that it begins with weights that are still in the cache.
                    last = tirx.IntImm("int32", cell.blocks - 1)
                    block = T.Bind(tirx.Select(step % 2 == 0, position, last - position))
                    whole = cell.batch // cell.rows
                    with T.serial(whole) as group:
                        self._compute_rows(phase, step, block, group * cell.rows, cell.rows)
                    if not isinstance(cell.batch, int):
                        with T.serial(cell.batch % cell.rows) as left:
                            self._compute_rows(phase, step, block, whole * cell.rows + left, 1)
            self._write_states(step)
        self._copy_states(self.last_h, self.last_c, inward=False)

    def _compute_rows(self, phase: int, step: Any, block: Any, first: Any, rows: int) -> None:
        """Compute a block's units of a few sequences, from ``first`` on."""
        self._multiply(phase, step, block, first, rows)
        with T.unroll(rows) as row:
            self._gates(phase, step, block, first + row, row)

    def _copy_states(self, h: Any, c: Any, *, inward: bool) -> None:
        with T.grid(self.cell.batch, self.cell.hidden) as (b, unit):
            self._copy_unit(h, c, b, unit, inward=inward)

    def _copy_unit(self, h: Any, c: Any, b: Any, unit: Any, *, inward: bool) -> None:
        parity, own = 0 if inward else self.cell.steps % 2, self._row(b)
        for outer, inner, index in ((h, self.h, [parity, own, unit]), (c, self.c, [own, unit])):
            if outer is not None and inward:
                T.buffer_store(inner, outer[0, b, unit], index)
            elif outer is not None:
                T.buffer_store(outer, inner[tuple(index)], [0, b, unit])

    def _multiply(self, phase: int, step: Any, block: Any, first: Any, rows: int) -> None:
        """Multiply the states of a few sequences by the weights of a block's gates."""
        if self._adds_integers:
            self._multiply_bytes(block, first, rows)
            return
        start, to = self.cell.phases[phase]
        gates, units = to - start, self.cell.units
        # A vector for each gate: LLVM pads a vector of 48 lanes to 64.
        with T.unroll(rows) as row, T.unroll(gates) as gate, T.vectorized(units) as lane:
            T.buffer_store(self.sums, self._zero(), [row, gate * units + lane])
        with (
            T.serial(self.cell.hidden) as k,
            T.unroll(rows) as row,
            T.unroll(gates) as gate,
            T.vectorized(units) as lane,
        ):
            b, column = first + row, gate * units + lane
            state = self.reset[b, k] if phase else self._state(step, b, k)
            product = state * self.weights[phase][block, k, column].astype(self.cell.dtype)
            T.buffer_store(self.sums, self.sums[row, column] + product, [row, column])
        if self.factors is not None:
            with T.unroll(rows) as row, T.unroll(gates) as gate, T.vectorized(units) as lane:
                column = gate * units + lane
                T.buffer_store(self.sums, self.sums[row, column] * self.factors[block, column], [row, column])

    def _multiply_bytes(self, block: Any, first: Any, rows: int) -> None:
        cell = self.cell
        columns = cell.gates * cell.units
        lanes = max(n for n in (4, 8, 16) if cell.units % n == 0 and n <= (self.products.lanes if self.products else 4))

        def vector(row: int, column: int) -> Any:
            return tirx.Ramp(tirx.IntImm("int32", row * columns + column), 1, lanes)

        places = [(row, column) for row in range(rows) for column in range(0, columns, lanes)]
        for place in places:
            T.buffer_store(self.totals, tirx.Broadcast(tirx.const(0, "int32"), lanes), [vector(*place)])
        with T.serial(-(-cell.hidden // 4)) as k:
            for row, column in places:
                numbers = tirx.reinterpret("int32", self.rounded[first + row, tirx.Ramp(4 * k, 1, 4)])
                weights = self.weights[0][block, k, tirx.Ramp(4 * column, 1, 4 * lanes)]
                total = self.totals[vector(row, column)]
                if self.products is not None:
                    total = self.products.add(total, numbers, weights, lanes)
                else:
                    total = _add_bytes(total, numbers, tirx.reinterpret(f"int32x{lanes}", weights), lanes)
                T.buffer_store(self.totals, total, [vector(row, column)])
        with T.unroll(rows) as row, T.unroll(cell.gates) as gate, T.vectorized(cell.units) as lane:
            b, column = first + row, gate * cell.units + lane
            whole = self.totals[row * columns + column] - self.zeros[b] * self.weight_sums[block, column]
            value = whole.astype(cell.dtype) * (self.scales[b] * self.factors[block, column])
            T.buffer_store(self.sums, value, [row, column])

    def _state(self, step: Any, b: Any, k: Any) -> Any:
        own = self._row(b)
        return self.h[step % 2, own, k] if self.rounded is None else self.rounded[own, k]

    def _row(self, b: Any) -> Any:
        """Row of a sequence's states in the buffers."""
        return b

    def _column(self, gate: Any, u: Any) -> Any:
        """Column of the sum of a gate of a block's unit."""
        return gate * self.cell.units + u

    def _round_state(self, step: Any) -> None:
        """Round each sequence's state to 255 steps of its range, which contains 0, as ``DynamicQuantizeLinear`` does."""
        with T.serial(self.cell.batch) as b:
            scale, zero = self._range_of(step, b)
            if self._adds_integers:
                T.buffer_store(self.scales, scale, [b])
                T.buffer_store(self.zeros, zero.astype("int32"), [b])
            with T.serial(self.cell.hidden) as k:
                T.buffer_store(self.rounded, self._rounded_value(step, b, k, scale, zero), [b, k])

    def _range_of(self, step: Any, own: Any) -> tuple[Any, Any]:
        """Return the size of a step, and the step that is 0."""
        for end in range(2):
            T.buffer_store(self.range, self._zero(), [end])
        with T.serial(self.cell.hidden) as k:
            for end, extreme in enumerate((tirx.min, tirx.max)):
                T.buffer_store(self.range, extreme(self.range[end], self.h[step % 2, own, k]), [end])
        width = self.range[1] - self.range[0]
        scale = T.Bind(tirx.Select(width > self._zero(), width / self._number(255), self._number(1)))
        return scale, T.Bind(tirx.nearbyint(-self.range[0] / scale))

    def _rounded_value(self, step: Any, own: Any, k: Any, scale: Any, zero: Any) -> Any:
        whole = tirx.nearbyint(self.h[step % 2, own, k] / scale) + zero
        whole = tirx.min(tirx.max(whole, self._zero()), self._number(255))
        return whole.astype("uint8") if self._adds_integers else (whole - zero) * scale

    def _gates(self, phase: int, step: Any, block: Any, b: Any, row: Any) -> None:
        """Write the new states of a block's units; a sequence that has ended keeps its states."""
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
        """Position in the sequence at a step."""
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
        unit, own = block * self.cell.units + u, self._row(b)
        start = self.cell.phases[phase][0]

        def input_part(gate: int) -> Any:
            return self.x[time, b, (block * self.cell.gates + gate) * self.cell.units + u]

        def recurrent_part(gate: int) -> Any:
            return self.sums[row, self._column(gate - start, u)]

        if self.cell.kind == "lstm":
            new = self._lstm([input_part(g) + recurrent_part(g) for g in range(4)], block, b, u)
        elif self.cell.kind == "rnn":
            new = self.cell.activations[0](self._clip(input_part(0) + recurrent_part(0)))
        elif self.cell.linear_before_reset:
            update, reset = (self.cell.activations[0](self._clip(input_part(g) + recurrent_part(g))) for g in range(2))
            update, reset = T.Bind(update), T.Bind(reset)
            new = self._mix(update, input_part(2) + reset * (recurrent_part(2) + self.bias[block, u]), step, own, unit)
        elif phase == 0:
            T.buffer_store(
                self.update, self.cell.activations[0](self._clip(input_part(0) + recurrent_part(0))), [own, unit]
            )
            reset = self.cell.activations[0](self._clip(input_part(1) + recurrent_part(1)))
            T.buffer_store(self.reset, reset * self.h[step % 2, own, unit], [own, unit])
            return
        else:
            new = self._mix(self.update[own, unit], input_part(2) + recurrent_part(2), step, own, unit)
        T.buffer_store(self.h, new, [(step + 1) % 2, own, unit])

    def _mix(self, update: Any, hidden: Any, step: Any, own: Any, unit: Any) -> Any:
        """Return the GRU's state: the old one as far as the update gate is open, else the new one."""
        hidden = T.Bind(self.cell.activations[1](self._clip(hidden)))
        return hidden + update * (self.h[step % 2, own, unit] - hidden)

    def _lstm(self, gates: list[Any], block: Any, b: Any, u: Any) -> Any:
        f, g, h = self.cell.activations
        place = [self._row(b), block * self.cell.units + u]
        state = T.Bind(self.c[tuple(place)])

        def peep(gate: int, value: Any) -> Any:  # gates: input, output, forget
            return gates[gate] + self.peepholes[block, gate, u] * value if self.peepholes is not None else gates[gate]

        taken = T.Bind(f(self._clip(peep(0, state))))
        kept = tirx.const(1, self.cell.dtype) - taken if self.cell.input_forget else f(self._clip(peep(2, state)))
        new = T.Bind(kept * state + taken * g(self._clip(gates[3])))
        T.buffer_store(self.c, new, place)
        return f(self._clip(peep(1, new))) * h(new)

    def _clip(self, value: Any) -> Any:
        if self.cell.clip is None:
            return value
        bound = tirx.const(self.cell.clip, self.cell.dtype)
        return tirx.max(tirx.min(value, bound), -bound)


def _add_bytes(sums: Any, numbers: Any, weights: Any, lanes: int) -> Any:
    """Return sums plus the products of four unsigned bytes and four signed bytes of each column, all in an int32."""

    def shifts(value: int) -> Any:
        return tirx.Broadcast(tirx.const(value, "int32"), lanes)

    for k in range(4):
        number = tirx.bitwise_and(tirx.shift_right(numbers, tirx.const(8 * k, "int32")), tirx.const(255, "int32"))
        weight = tirx.shift_right(tirx.shift_left(weights, shifts(24 - 8 * k)), shifts(24))
        sums = sums + tirx.Broadcast(number, lanes) * weight
    return sums


class _BlockWriter(_Writer):
    """Writes the kernel for a GPU. The thread count divides the padded units, so that all threads reach each barrier."""

    @property
    def _adds_integers(self) -> bool:
        return False

    @classmethod
    def shared_bytes(cls, cell: Cell) -> int:
        """Return the shared memory of a block in bytes."""
        states = 2 + (cell.kind == "lstm") + 2 * (len(cell.phases) > 1) + cell.rounded_state
        return states * cell.blocks * cell.units * (8 if cell.dtype == "float64" else 4)

    def _row(self, b: Any) -> Any:
        return 0

    def _column(self, gate: Any, u: Any) -> Any:
        return gate

    def write(self) -> None:
        """Write all steps of a block's sequence."""
        cell = self.cell
        padded = cell.blocks * cell.units
        threads = max(count for count in range(1, min(padded, _MOST_THREADS) + 1) if padded % count == 0)
        with (
            T.thread_binding(cell.batch, thread="blockIdx.x") as b,
            T.thread_binding(threads, thread="threadIdx.x") as thread,
        ):
            self._allocate(1, padded, (1, max(to - start for start, to in cell.phases)), "shared")
            units = [thread + chunk * threads for chunk in range(padded // threads)]
            for unit in units:
                with T.If(unit < cell.hidden), T.Then():
                    self._copy_unit(self.first_h, self.first_c, b, unit, inward=True)
                    if self.lengths is not None:
                        with T.serial(cell.steps) as step:
                            T.buffer_store(self.y, self._zero(), [step, 0, b, unit])
            self._meet()
            with T.serial(cell.steps) as step:
                if self.rounded is not None:
                    self._round_units(step, units)
                for phase in range(len(cell.phases)):
                    for unit in units:
                        self._unit(phase, step, b, unit)
                    self._meet()
                for unit in units:
                    with T.If(unit < cell.hidden), T.Then():
                        self._write_unit(step, b, unit)
            for unit in units:
                with T.If(unit < cell.hidden), T.Then():
                    self._copy_unit(self.last_h, self.last_c, b, unit, inward=False)

    def _meet(self) -> None:
        T.evaluate(T.tvm_storage_sync("shared"))

    def _unit(self, phase: int, step: Any, b: Any, unit: Any) -> None:
        """Write the sums and the new state of a hidden unit."""
        start, to = self.cell.phases[phase]
        block, u = unit // self.cell.units, unit % self.cell.units
        for gate in range(to - start):
            T.buffer_store(self.sums, self._zero(), [0, gate])
        with T.serial(self.cell.hidden) as k:
            state = T.Bind(self.reset[0, k] if phase else self._state(step, b, k))
            for gate in range(to - start):
                column = gate * self.cell.units + u
                place = [block, k // 4, column * 4 + k % 4] if self.cell.byte_products else [block, k, column]
                weight = self.weights[phase][tuple(place)].astype(self.cell.dtype)
                T.buffer_store(self.sums, self.sums[0, gate] + state * weight, [0, gate])
        if self.factors is not None:
            for gate in range(to - start):
                factor = self.factors[block, gate * self.cell.units + u]
                T.buffer_store(self.sums, self.sums[0, gate] * factor, [0, gate])
        if self.lengths is None:
            self._new_state(phase, step, self._time(step, b), block, b, 0, u)
            return
        with T.If(step < self._length(b)):
            with T.Then():
                self._new_state(phase, step, self._time(step, b), block, b, 0, u)
            with T.Else():
                T.buffer_store(self.h, self.h[step % 2, 0, unit], [(step + 1) % 2, 0, unit])

    def _round_units(self, step: Any, units: list[Any]) -> None:
        """Let each thread compute the range by itself and round its units."""
        scale, zero = self._range_of(step, 0)
        for unit in units:
            T.buffer_store(self.rounded, self._rounded_value(step, 0, unit, scale, zero), [0, unit])
        self._meet()

    def _write_unit(self, step: Any, b: Any, unit: Any) -> None:
        state = self.h[(step + 1) % 2, 0, unit]
        if self.lengths is None:
            T.buffer_store(self.y, state, [self._time(step, b), 0, b, unit])
        else:
            with T.If(step < self._length(b)), T.Then():
                T.buffer_store(self.y, state, [self._time(step, b), 0, b, unit])
