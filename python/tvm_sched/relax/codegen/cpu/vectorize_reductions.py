"""Vectorise sums, maxima and minima along memory with several vector accumulators.

This changes the order of additions, as in any fast library. Each accumulator adds fewer numbers, so sums are more exact.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import tvm
import tvm_ffi
from tvm import tirx

from ...ir.loops import at_position, remaining_steps, runs_along, vector_loop
from ...ir.statements import any_expression, map_loops, with_body

REGISTERS = 4
"""Vectors of accumulators, whose additions are independent of each other."""
_FLOATS = {"float32": 32, "float64": 64}
_OPERATIONS = {tirx.Add: lambda a, b: a + b, tirx.Max: tirx.max, tirx.Min: tirx.min}


@dataclass(frozen=True)
class _Sum:
    """``buffer[indices] = operation(buffer[indices], term)``."""

    buffer: Any
    indices: Any
    operation: type
    term: Any


def vectorise_reductions(function: tirx.PrimFunc, bits: int) -> tirx.PrimFunc:
    """Vectorise reductions along memory with accumulators.

    Parameters
    ----------
    function : tvm.tirx.PrimFunc
        Without blocks and with flat buffers; `tvm.tirx.transform.VectorizeLoop` must follow.
    bits : int
        Width of the target's vector registers.
    """
    return with_body(function, map_loops(function.body, lambda loop: _vectorise(loop, bits)))


def lanes_of(loop: tirx.For, bits: int) -> int:
    """Return how many accumulators `vectorise_reductions` gives to a loop; 1 if it leaves the loop as it is."""
    return max((lanes for lanes in _lanes(_vector_sums(loop), bits) if lanes <= int(loop.extent)), default=1)


def _vector_sums(loop: tirx.For) -> list[_Sum]:
    """Return the reductions of a loop that can be vectorised; empty if one cannot."""
    sums = _sums(loop.body) if isinstance(loop.extent, tirx.IntImm) and loop.kind == tirx.ForKind.SERIAL else []
    return sums if all(_fits(each, loop.loop_var, sums) for each in sums) else []


def _lanes(sums: list[_Sum], bits: int) -> tuple[int, ...]:
    """Return the numbers of accumulators to try, the largest first."""
    if not sums:
        return ()
    width = max(bits // _FLOATS[str(sums[0].buffer.dtype)], 4)
    long = 1 if any(any_expression(each.term, _calls) for each in sums) else REGISTERS
    return tuple(dict.fromkeys((width * long, width)))


def _vectorise(loop: tirx.For, bits: int) -> Any:
    sums = _vector_sums(loop)
    stages = [lanes for lanes in _lanes(sums, bits) if int(loop.extent) >= lanes]
    statements, begin = [], 0
    for lanes in stages:
        count = (int(loop.extent) - begin) // lanes
        if count:
            statements += _stage(sums, loop, begin, count, lanes)
            begin += count * lanes
    if not statements:
        return loop
    return tirx.SeqStmt([*statements, *remaining_steps(loop, begin)])


def _calls(expr: Any) -> bool:
    return isinstance(expr, tvm.ir.Call)


def _sums(body: Any) -> list[_Sum]:
    """Return the reductions that a loop's body consists of; empty if it does anything else."""
    parts = list(body.seq) if isinstance(body, tirx.SeqStmt) else [body]
    values = {part.var: part.value for part in parts if isinstance(part, tirx.Bind)}
    stores = [part for part in parts if isinstance(part, tirx.BufferStore)]
    if len(values) + len(stores) != len(parts):
        return []
    sums = []
    for store in stores:
        value = values.pop(store.value, store.value) if isinstance(store.value, tirx.Var) else store.value
        if type(value) not in _OPERATIONS or not isinstance(value.a, tvm.ir.TensorLoad):
            return []
        same = value.a.source.same_as(store.buffer) and tvm_ffi.structural_equal(value.a.indices, store.indices)
        if not same or str(store.buffer.dtype) not in _FLOATS:
            return []
        sums.append(_Sum(store.buffer, store.indices, type(value), value.b))
    return [] if values else sums


def _fits(each: _Sum, variable: Any, sums: list[_Sum]) -> bool:
    """Whether the term reads tensors along memory, and no tensor that a reduction writes."""
    written = [other.buffer for other in sums]

    def wrong(expr: Any) -> bool:
        if not isinstance(expr, tvm.ir.TensorLoad):
            return False
        if any(expr.source.same_as(buffer) for buffer in written):
            return True
        return len(expr.indices) != 1 or not runs_along(expr.indices[0], variable)

    moves = any(runs_along(index, variable, (1,)) or not runs_along(index, variable) for index in each.indices)
    one_type = str(each.buffer.dtype) == str(sums[0].buffer.dtype)
    return one_type and not moves and not any_expression(each.term, wrong)


def _stage(sums: list[_Sum], loop: tirx.For, begin: int, count: int, lanes: int) -> list[Any]:
    """Return the statements that add ``count`` vectors of terms from ``begin`` on."""
    kind = str(loop.loop_var.ty.dtype)

    def number(value: int) -> Any:
        return tirx.IntImm(kind, value)

    def vector(statement: Callable[[Any], Any]) -> Any:
        return vector_loop(kind, lanes, statement)

    first, inner, last = [], [], []
    outer = tirx.Var("vector", kind)
    for each in sums:
        buffer = tirx.decl_buffer((lanes,), str(each.buffer.dtype), "sums", scope="local")
        join = _OPERATIONS[each.operation]

        def start(lane: Any, each: _Sum = each, buffer: Any = buffer) -> Any:
            return tirx.BufferStore(buffer, at_position(loop, each.term, lane + number(begin)), [lane])

        def step(lane: Any, each: _Sum = each, buffer: Any = buffer, join: Any = join) -> Any:
            term = at_position(loop, each.term, outer * number(lanes) + lane + number(begin + lanes))
            return tirx.BufferStore(buffer, join(tirx.BufferLoad(buffer, [lane]), term), [lane])

        first += [tirx.AllocBuffer(buffer), vector(start)]
        inner.append(vector(step))
        last += _gather(each, buffer, lanes, kind)
    if count == 1:
        return [*first, *last]
    steps = inner[0] if len(inner) == 1 else tirx.SeqStmt(inner)
    return [*first, tirx.For(outer, number(0), number(count - 1), tirx.ForKind.SERIAL, steps), *last]


def _gather(each: _Sum, buffer: Any, lanes: int, kind: str) -> list[Any]:
    """Return the statements that reduce the accumulators by halving and add the result to the existing value."""
    join = _OPERATIONS[each.operation]
    statements: list[Any] = []
    while lanes > 2:
        lanes //= 2

        def halve(lane: Any, lanes: int = lanes) -> Any:
            high = tirx.BufferLoad(buffer, [lane + tirx.IntImm(kind, lanes)])
            return tirx.BufferStore(buffer, join(tirx.BufferLoad(buffer, [lane]), high), [lane])

        statements.append(vector_loop(kind, lanes, halve))
    low, high = (tirx.BufferLoad(buffer, [tirx.IntImm(kind, position)]) for position in (0, 1))
    value = join(tirx.BufferLoad(each.buffer, each.indices), join(low, high))
    return [*statements, tirx.BufferStore(each.buffer, value, each.indices)]
