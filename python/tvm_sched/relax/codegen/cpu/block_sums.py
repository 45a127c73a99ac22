"""Sum long series in blocks: the error of a sum grows with the additions to one accumulator, and float32 stops at 2^24.

A reduction loop of at least two times `BLOCK` additions becomes a loop over blocks. After each block, the accumulator is
added to a total and set to 0.
"""

from __future__ import annotations

from math import isqrt, prod
from typing import Any

import tvm
import tvm_ffi
from tvm import tirx

from ...ir.loops import depends_on, part_of_loop
from ...ir.statements import contains, map_loops, with_body
from .vectorize_reductions import lanes_of

BLOCK = 1024
"""Additions to an accumulator before it is added to a total."""


def block_sums(function: tirx.PrimFunc, bits: int) -> tirx.PrimFunc:
    """Block the sums of a function without blocks and with flat buffers, before `vectorise_reductions`.

    Parameters
    ----------
    bits : int
        Width of the target's vector registers. A sum along memory has an accumulator for each of their lanes.
    """
    return with_body(function, map_loops(function.body, lambda loop: _blocked(loop, bits)))


def _blocked(loop: tirx.For, bits: int) -> Any:
    if not isinstance(loop.extent, tirx.IntImm) or loop.kind != tirx.ForKind.SERIAL:
        return loop
    extent = int(loop.extent)
    loops: list[tirx.For] = [loop]
    stores: list[tirx.BufferStore] = []
    if not _collect(loop.body, loops, stores):
        return loop
    inner = prod(int(each.extent) for each in loops[1:])
    if extent * inner <= BLOCK or not _are_sums(stores, loops):
        return loop
    lanes = lanes_of(loop, bits)
    size = max(BLOCK * lanes // inner, isqrt(extent) // lanes * lanes, 1)
    if extent < 2 * size:
        return loop
    return _in_blocks(loop, stores, size)


def _collect(body: Any, loops: list[tirx.For], stores: list[tirx.BufferStore]) -> bool:
    """Add the loops and stores of a loop's body to lists; return whether it consists of loops, conditions and stores."""
    if isinstance(body, tirx.SeqStmt):
        return all(_collect(part, loops, stores) for part in body.seq)
    if isinstance(body, tirx.BufferStore):
        stores.append(body)
        return True
    if isinstance(body, tirx.For) and isinstance(body.extent, tirx.IntImm) and body.kind == tirx.ForKind.SERIAL:
        loops.append(body)
        return _collect(body.body, loops, stores)
    if isinstance(body, tirx.IfThenElse) and body.else_case is None:
        return _collect(body.then_case, loops, stores)
    return isinstance(body, tirx.Bind)


def _are_sums(stores: list[tirx.BufferStore], loops: list[tirx.For]) -> bool:
    """Whether each store adds to a floating-point number at a fixed position, which the loops do not read otherwise."""
    written = [store.buffer.data for store in stores]

    def reads_sum(load: Any) -> bool:
        return any(load.source.data.same_as(data) for data in written)

    for store in stores:
        value = store.value
        if not isinstance(value, tirx.Add) or not isinstance(value.a, tvm.ir.TensorLoad):
            return False
        if not str(value.ty.dtype).startswith(("float32", "float64")):
            return False
        same = value.a.source.same_as(store.buffer) and tvm_ffi.structural_equal(value.a.indices, store.indices)
        moves = any(depends_on(index, each.loop_var) for index in store.indices for each in loops)
        if not same or moves or contains(value.b, (tvm.ir.TensorLoad,), reads_sum):
            return False
    positions = [(store.buffer, store.indices) for store in stores]
    return bool(stores) and not any(
        tvm_ffi.structural_equal(a[1], b[1]) and a[0].data.same_as(b[0].data)
        for k, a in enumerate(positions)
        for b in positions[:k]
    )


def _in_blocks(loop: tirx.For, stores: list[tirx.BufferStore], size: int) -> Any:
    """Return the loop as a loop over blocks of ``size`` iterations, with a total for each sum."""
    kind = str(loop.loop_var.ty.dtype)
    blocks, rest = divmod(int(loop.extent), size)

    def steps(begin: Any, count: int) -> Any:
        return part_of_loop(loop, begin, tirx.IntImm(kind, count))

    block = tirx.Var("block", kind)
    first, flush, last = [], [], []
    zero_index = tirx.IntImm("int32", 0)
    for store in stores:
        dtype = str(store.value.ty.dtype)
        total = tirx.decl_buffer((1,), dtype, "total", scope="local")
        zero = tirx.const(0.0, dtype)
        so_far = tirx.BufferLoad(total, [zero_index]) + tirx.BufferLoad(store.buffer, store.indices)
        first += [tirx.AllocBuffer(total), tirx.BufferStore(total, zero, [zero_index])]
        flush += [
            tirx.BufferStore(total, so_far, [zero_index]),
            tirx.BufferStore(store.buffer, zero, store.indices),
        ]
        last.append(tirx.BufferStore(store.buffer, so_far, store.indices))
    over_blocks = tirx.For(
        block, tirx.IntImm(kind, 0), tirx.IntImm(kind, blocks), tirx.ForKind.SERIAL,
        tirx.SeqStmt([steps(block * tirx.IntImm(kind, size), size), *flush]),
    )  # fmt: skip
    after = [steps(tirx.IntImm(kind, blocks * size), rest)] if rest else []
    return tirx.SeqStmt([*first, over_blocks, *after, *last])
