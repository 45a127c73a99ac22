"""Sums, maxima and minima along memory, with many accumulators side by side in vectors.

The order of the additions changes with that, as it does in any fast library; each accumulator adds fewer numbers, so that
sums come out more exact.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import tvm
import tvm_ffi
from tvm import sym, tirx

from .statements import any_expression, map_loops

REGISTERS = 4
"""Vectors of accumulators: additions wait for each other in each one only."""
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
    """Give reductions along memory accumulators for vectors.

    Parameters
    ----------
    function : tvm.tirx.PrimFunc
        Without blocks, its buffers flat; `tvm.tirx.transform.VectorizeLoop` has to follow.
    bits : int
        Of a vector register of the target.
    """
    body = map_loops(function.body, lambda loop: _vectorise(loop, bits))
    return function if body.same_as(function.body) else function.with_body(body)


def _vectorise(loop: tirx.For, bits: int) -> Any:
    sums = _sums(loop.body) if isinstance(loop.extent, tirx.IntImm) and loop.kind == tirx.ForKind.SERIAL else []
    if not sums or any(not _fits(each, loop.loop_var, sums) for each in sums):
        return loop
    width = max(bits // _FLOATS[str(sums[0].buffer.dtype)], 4)
    long = 1 if any(any_expression(each.term, _calls) for each in sums) else REGISTERS
    stages = [lanes for lanes in dict.fromkeys((width * long, width)) if int(loop.extent) >= lanes]
    statements, begin = [], 0
    for lanes in stages:
        count = (int(loop.extent) - begin) // lanes
        if count:
            statements += _stage(sums, loop, begin, count, lanes)
            begin += count * lanes
    if not statements:
        return loop
    if begin < int(loop.extent):
        kind = str(loop.loop_var.ty.dtype)
        rest = tirx.Var("rest", kind)
        body = tirx.SeqStmt([tirx.Bind(loop.loop_var, rest + tirx.IntImm(kind, begin)), loop.body])
        extent = tirx.IntImm(kind, int(loop.extent) - begin)
        statements.append(tirx.For(rest, tirx.IntImm(kind, 0), extent, tirx.ForKind.SERIAL, body))
    return tirx.SeqStmt(statements)


def _calls(expr: Any) -> bool:
    return isinstance(expr, tvm.ir.Call)


def _sums(body: Any) -> list[_Sum]:
    """What a loop's body adds up, if it does nothing else."""
    parts = list(body.seq) if isinstance(body, tirx.SeqStmt) else [body]
    values = {part.var: part.value for part in parts if isinstance(part, tirx.Bind)}
    stores = [part for part in parts if isinstance(part, tirx.BufferStore)]
    if len(values) + len(stores) != len(parts):
        return []
    found = []
    for store in stores:
        value = values.pop(store.value, store.value) if isinstance(store.value, tirx.Var) else store.value
        if type(value) not in _OPERATIONS or not isinstance(value.a, tvm.ir.TensorLoad):
            return []
        same = value.a.source.same_as(store.buffer) and tvm_ffi.structural_equal(value.a.indices, store.indices)
        if not same or str(store.buffer.dtype) not in _FLOATS:
            return []
        found.append(_Sum(store.buffer, store.indices, type(value), value.b))
    return [] if values else found


def _fits(each: _Sum, variable: Any, sums: list[_Sum]) -> bool:
    """Whether the term's tensors are read along memory and none is what is added to."""
    written = [other.buffer for other in sums]

    def wrong(expr: Any) -> bool:
        if not isinstance(expr, tvm.ir.TensorLoad):
            return False
        if any(expr.source.same_as(buffer) or expr.source.data.same_as(buffer.data) for buffer in written):
            return True
        return len(expr.indices) != 1 or not _along(expr.indices[0], variable)

    moves = any(_along(index, variable, (1,)) or not _along(index, variable) for index in each.indices)
    one_type = str(each.buffer.dtype) == str(sums[0].buffer.dtype)
    return one_type and not moves and not any_expression(each.term, wrong)


def _along(index: Any, variable: Any, steps: tuple[int, ...] = (0, 1)) -> bool:
    """Whether an index moves with a loop by one of some steps."""
    if not any(variable.same_as(other) for other in tirx.analysis.undefined_vars(index)):
        return 0 in steps
    linear = sym.detect_linear_equation(index, [variable])
    return len(linear) == 2 and isinstance(linear[0], tirx.IntImm) and int(linear[0]) in steps


def _stage(sums: list[_Sum], loop: tirx.For, begin: int, count: int, lanes: int) -> list[Any]:
    """The statements that add ``count`` vectors of terms from ``begin`` on."""
    kind = str(loop.loop_var.ty.dtype)

    def number(value: int) -> Any:
        return tirx.IntImm(kind, value)

    def vector(statement: Callable[[Any], Any]) -> Any:
        lane = tirx.Var("lane", kind)
        return tirx.For(lane, number(0), number(lanes), tirx.ForKind.VECTORIZED, statement(lane))

    first, inner, last = [], [], []
    outer = tirx.Var("vector", kind)
    for each in sums:
        buffer = tirx.decl_buffer((lanes,), str(each.buffer.dtype), "sums", scope="local")
        join = _OPERATIONS[each.operation]

        def start(lane: Any, each: _Sum = each, buffer: Any = buffer) -> Any:
            return tirx.BufferStore(buffer, _term(each, loop, lane + number(begin)), [lane])

        def step(lane: Any, each: _Sum = each, buffer: Any = buffer, join: Any = join) -> Any:
            term = _term(each, loop, outer * number(lanes) + lane + number(begin + lanes))
            return tirx.BufferStore(buffer, join(tirx.BufferLoad(buffer, [lane]), term), [lane])

        first += [tirx.AllocBuffer(buffer), vector(start)]
        inner.append(vector(step))
        last += _gather(each, buffer, lanes, kind)
    if count == 1:
        return [*first, *last]
    steps = inner[0] if len(inner) == 1 else tirx.SeqStmt(inner)
    return [*first, tirx.For(outer, number(0), number(count - 1), tirx.ForKind.SERIAL, steps), *last]


def _gather(each: _Sum, buffer: Any, lanes: int, kind: str) -> list[Any]:
    """Add the accumulators up, in halves, and to what is there."""
    join = _OPERATIONS[each.operation]
    statements: list[Any] = []
    while lanes > 2:
        lanes //= 2
        lane = tirx.Var("lane", kind)
        high = tirx.BufferLoad(buffer, [lane + tirx.IntImm(kind, lanes)])
        value = join(tirx.BufferLoad(buffer, [lane]), high)
        store = tirx.BufferStore(buffer, value, [lane])
        extent = tirx.IntImm(kind, lanes)
        statements.append(tirx.For(lane, tirx.IntImm(kind, 0), extent, tirx.ForKind.VECTORIZED, store))
    low, high = (tirx.BufferLoad(buffer, [tirx.IntImm(kind, position)]) for position in (0, 1))
    value = join(tirx.BufferLoad(each.buffer, each.indices), join(low, high))
    return [*statements, tirx.BufferStore(each.buffer, value, each.indices)]


def _term(each: _Sum, loop: tirx.For, position: Any) -> Any:
    """A term with another expression in place of the loop's variable."""
    return tirx.IndexMap([loop.loop_var], [each.term], None).map_indices([position])[0]
