"""Hide quotients and remainders of numbers that decrease with a loop from TVM's simplifier of indices.

It gets them wrong: ``tvm.sym.iter_map_simplify`` takes ``(19 - i) % 20`` for ``-(i % -20)``. `FlattenBuffer` calls it, so a
reversed slice of a reshaped tensor read from wrong addresses, also outside of the tensor.
"""

from __future__ import annotations

from typing import Any

import tvm
import tvm_ffi
from tvm import s_tir, tirx
from tvm.sym import Analyzer

from ..ir.statements import contains, with_body


@tirx.transform.prim_func_pass(opt_level=0, name="tvm_sched.HideDecreasing")
def hide_decreasing(function: tirx.PrimFunc, mod: tvm.IRModule, ctx: tvm.transform.PassContext) -> tirx.PrimFunc:
    """Make dividends that decrease with a loop opaque, by a bit operation that changes no number."""
    if not contains(function.body, (tirx.FloorMod, tirx.FloorDiv)):
        return function
    ranges = _Ranges()

    def bind(part: Any) -> Any:
        ranges.add(part)
        return part

    tvm_ffi.structural_map(function.body, ((tirx.For, s_tir.SBlock), bind))
    kinds = (tirx.FloorMod, tirx.FloorDiv)
    return with_body(function, tvm_ffi.structural_map(function.body, (kinds, ranges.hidden)))


class _Ranges:
    """Ranges of the variables of loops and blocks."""

    def __init__(self) -> None:
        self.analyzer = Analyzer()
        self.bound: set[Any] = set()

    def add(self, part: Any) -> None:
        if isinstance(part, tirx.For):
            self._bind(part.loop_var, tvm.ir.Range.from_min_extent(part.min, part.extent))
            return
        for item in part.iter_vars:
            self._bind(item.var, item.dom)

    def _bind(self, variable: Any, values: Any) -> None:
        if variable not in self.bound:
            self.bound.add(variable)
            self.analyzer.bind(variable, values)

    def hidden(self, quotient: Any) -> Any:
        """Return a quotient or remainder with its dividend hidden if it decreases."""
        dividend = quotient.a
        if not _decreases(dividend, 1):
            return quotient
        kind, limits = str(dividend.ty.dtype), self.analyzer.const_int_bound(dividend)
        if limits.min_value >= 0 and limits.max_value < 1 << 30:  # so that the result's range stays known
            mask = (1 << int(limits.max_value).bit_length()) - 1
            return type(quotient)(tirx.bitwise_and(dividend, tirx.IntImm(kind, mask)), quotient.b)
        return type(quotient)(tirx.bitwise_or(dividend, tirx.IntImm(kind, 0)), quotient.b)


def _decreases(expr: Any, sign: int) -> bool:
    """Whether an integer decreases while something in it grows; ``sign`` is that of its factor."""
    if isinstance(expr, tirx.IntImm):
        return False
    if isinstance(expr, tirx.Add):
        return _decreases(expr.a, sign) or _decreases(expr.b, sign)
    if isinstance(expr, tirx.Sub):
        return _decreases(expr.a, sign) or _decreases(expr.b, -sign)
    if isinstance(expr, tirx.Mul) and isinstance(expr.b, tirx.IntImm):
        return _decreases(expr.a, sign if int(expr.b) >= 0 else -sign)
    if isinstance(expr, tirx.Cast):
        return _decreases(expr.value, sign)
    return sign < 0
