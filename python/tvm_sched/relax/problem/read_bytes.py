"""Count the bytes that a kernel reads of its inputs: of a table only the rows looked up, of a sliced tensor the slice."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache, lru_cache
from math import prod
from typing import Any

import tvm
from tvm import s_tir, tirx

from ..ir.statements import intrinsic, map_expression


@lru_cache(maxsize=1000)  # the graph of the same kernels is extracted several times
def count_read_bytes(function: tirx.PrimFunc) -> Mapping[int, int]:
    """Bound the bytes that a kernel reads of arguments that it reads in part; return them by the argument's position.

    A load reads one element in each iteration of its loops, so iterations times the element's size is an upper bound. If it
    is not below the tensor's size (a matrix product) or not known (a loop whose extent depends on data, a view of a
    buffer), the argument counts as read whole and has no entry.
    """
    counts = _Loads()
    counts.visit(function.body, 1)
    if not counts.known:
        return {}
    bounds: dict[int, int] = {}
    for position, parameter in enumerate(function.params):
        if not isinstance(parameter.ty, tirx.buffer.BufferType):
            continue
        shape, element = parameter.shape, parameter.ty.dtype.dtype
        if element.bits % 8 or not all(isinstance(extent, tirx.IntImm) for extent in shape):
            continue
        read = counts.of.get(parameter, 0) * element.bits // 8
        if 0 < read < prod(int(extent) for extent in shape) * element.bits // 8:
            bounds[position] = read
    return bounds


class _Loads:
    """Counts the elements loaded of each buffer; ``known`` is false if a loop's extent or an access is not known."""

    def __init__(self) -> None:
        self.of: dict[tirx.Var, int] = {}
        self.known = True

    def visit(self, stmt: Any, times: int) -> None:
        if isinstance(stmt, tirx.SeqStmt):
            for part in stmt.seq:
                self.visit(part, times)
        elif isinstance(stmt, tirx.For):
            if isinstance(stmt.extent, tirx.IntImm):
                self.visit(stmt.body, times * int(stmt.extent))
            else:
                self.known = False
        elif isinstance(stmt, s_tir.SBlockRealize):
            self.known = self.known and not stmt.block.match_buffers
            self.load(stmt.predicate, times)
            for value in stmt.iter_values:
                self.load(value, times)
            if stmt.block.init is not None:
                self.visit(stmt.block.init, times)
            self.visit(stmt.block.body, times)
        elif isinstance(stmt, tirx.IfThenElse):
            self.load(stmt.condition, times)
            self.visit(stmt.then_case, times)
            if stmt.else_case is not None:
                self.visit(stmt.else_case, times)
        elif isinstance(stmt, tirx.AttrStmt):
            if stmt.attr_key in _THREADS:  # its body runs once in each of them
                self.known = self.known and isinstance(stmt.value, tirx.IntImm)
                times *= int(stmt.value) if self.known else 1
            self.visit(stmt.body, times)
        elif isinstance(stmt, tirx.BufferStore):
            for part in (stmt.value, *stmt.indices):
                self.load(part, times)
        elif isinstance(stmt, (tirx.Bind, tirx.Evaluate)):
            self.load(stmt.value, times)
        elif not isinstance(stmt, tirx.AllocBuffer):
            self.known = False

    def load(self, expr: Any, times: int) -> Any:
        """Count the loads in an expression that is computed ``times`` times; return it unchanged."""
        kind = _kind(expr.__class__)
        if kind == "load":
            self.of[expr.source] = self.of.get(expr.source, 0) + times * int(expr.ty.dtype.lanes)
            for index in expr.indices:
                self.load(index, times)
        elif kind == "ramp":
            self.load(expr.base, times)
            self.load(expr.stride, times)
        elif kind == "call" and (not intrinsic(expr) or intrinsic(expr) in _ADDRESSES):
            self.known = False
        elif kind != "leaf":
            self.known = self.known and kind != ""
            map_expression(expr, lambda part: self.load(part, times))
        return expr


@cache
def _kind(expression: type) -> str:
    """Classify a class of expressions; "" if it is unknown."""
    kinds = {
        "load": tvm.ir.TensorLoad,
        "ramp": tirx.Ramp,
        "call": tvm.ir.Call,
        "leaf": (tirx.IntImm, tirx.FloatImm, tirx.Var),
        "arithmetic": _ARITHMETIC,
    }
    return next((kind for kind, classes in kinds.items() if issubclass(expression, classes)), "")


_THREADS = ("thread_extent", "virtual_thread")
_ADDRESSES = ("address_of", "tvm_access_ptr", "call_extern", "call_packed", "call_cpacked")
_ARITHMETIC = (
    tirx.Select, tirx.Cast, tirx.Broadcast, tirx.And, tirx.Or, tirx.Not, tirx.expr.BinaryOpExpr, tirx.expr.CmpExpr,
)  # fmt: skip
