"""Vectorise loops that compute elementary functions along memory.

LLVM vectorises most loops by itself, but first splits some long formulas into branches.
"""

from __future__ import annotations

from typing import Any

import tvm
import tvm_ffi
from tvm import tirx

from ...ir.loops import at_position, remaining_steps, runs_along, vector_loop
from ...ir.statements import any_expression, intrinsic, map_loops, with_body
from .elementary import is_replaced


def vectorise_functions(function: tirx.PrimFunc, bits: int) -> tirx.PrimFunc:
    """Vectorise the innermost loops that call functions of float32.

    Parameters
    ----------
    function : tvm.tirx.PrimFunc
        Without blocks and with flat buffers; `tvm.tirx.transform.VectorizeLoop` must follow.
    bits : int
        Width of the target's vector registers.
    """
    return with_body(function, map_loops(function.body, lambda loop: _vectorise(loop, bits // 32)))


def _vectorise(loop: tirx.For, lanes: int) -> Any:
    if not isinstance(loop.extent, tirx.IntImm) or loop.kind != tirx.ForKind.SERIAL or int(loop.extent) < lanes:
        return loop
    stores = list(loop.body.seq) if isinstance(loop.body, tirx.SeqStmt) else [loop.body]
    if not all(isinstance(store, tirx.BufferStore) for store in stores):
        return loop
    if not any(any_expression(store.value, is_replaced) for store in stores):
        return loop
    if not all(_fits(store, loop.loop_var, stores) for store in stores):
        return loop
    kind, count = str(loop.loop_var.ty.dtype), int(loop.extent) // lanes
    outer = tirx.Var("vector", kind)

    def whole(store: Any) -> Any:
        def statement(lane: Any) -> Any:
            position = outer * tirx.IntImm(kind, lanes) + lane
            index, value = (at_position(loop, part, position) for part in (store.indices[0], store.value))
            return tirx.BufferStore(store.buffer, value, [index])

        return vector_loop(kind, lanes, statement)

    vectors = [whole(store) for store in stores]
    body = vectors[0] if len(vectors) == 1 else tirx.SeqStmt(vectors)
    main = tirx.For(outer, tirx.IntImm(kind, 0), tirx.IntImm(kind, count), tirx.ForKind.SERIAL, body)
    tail = remaining_steps(loop, count * lanes)
    return tirx.SeqStmt([main, *tail]) if tail else main


def _fits(store: Any, variable: Any, stores: list[Any]) -> bool:
    """Whether a store and its loads run along memory without branches, and no store's elements are read by others."""

    def wrong(expr: Any) -> bool:
        if isinstance(expr, tvm.ir.Call):
            return intrinsic(expr) in ("", "if_then_else")
        if not isinstance(expr, tvm.ir.TensorLoad):
            return False
        written = [other for other in stores if expr.source.same_as(other.buffer)]
        if not all(tvm_ffi.structural_equal(expr.indices, other.indices) for other in written):
            return True
        return len(expr.indices) != 1 or not runs_along(expr.indices[0], variable)

    along = len(store.indices) == 1 and runs_along(store.indices[0], variable, (1,))
    return along and not any_expression(store.value, wrong)
