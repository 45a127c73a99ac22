"""Hide remainders by powers of two in indices from LLVM's loop vectoriser, which miscompiles them.

LLVM 22's loop vectoriser treats ``i % 4`` as a two-bit counter. If it needs a second assumption about the same index, as
for ``x[i % 3 * 20 + j % 4 * 5]``, it omits the check that the counter does not wrap, and reads past the period. With
512-bit vectors one in ten of these kernels is wrong (``tests/relax/codegen/test_remainders.py`` has one).
"""

from __future__ import annotations

from typing import Any

import tvm
from tvm import tirx

from ...ir.statements import contains, map_expression, map_statement, with_body

BITS = 32
"""Bits of the lower half of a product whose upper half is the quotient."""


def hide_remainders(function: tirx.PrimFunc) -> tirx.PrimFunc:
    """Compute remainders by powers of two in indices with a product and a shift; needs no blocks and scalar indices."""
    if not contains(function.body, (tirx.FloorMod,)):
        return function

    def places(_: Any, indices: list[Any]) -> list[Any]:
        return [_inside(index) for index in indices]

    return with_body(function, map_statement(function.body, lambda value: ([], _outside(value)), indices=places))


def _outside(expr: Any) -> Any:
    """Return an expression with remainders in the indices of its loads hidden."""
    if isinstance(expr, tvm.ir.TensorLoad):
        indices = [_inside(index) for index in expr.indices]
        same = all(new.same_as(old) for new, old in zip(indices, expr.indices, strict=True))
        return expr if same else tirx.BufferLoad(expr.source, indices)
    return map_expression(expr, _outside)


def _inside(expr: Any) -> Any:
    if isinstance(expr, tvm.ir.TensorLoad):
        return _outside(expr)
    expr = map_expression(expr, _inside)
    if not isinstance(expr, tirx.FloorMod) or not isinstance(expr.b, tirx.IntImm):
        return expr
    divisor, dtype = int(expr.b), str(expr.ty.dtype)
    power = divisor.bit_length() - 1
    if divisor != 1 << power or not 0 < power < BITS // 2 or dtype not in ("int32", "int64"):
        return expr
    # The masked number has the same remainder and is small enough for the product's upper half to be the exact quotient.
    # The factor differs from the nearest constant, since LLVM would recognise that one.
    number = tirx.bitwise_and(expr.a.astype("int64"), _whole((1 << (BITS - 2 - power)) - 1))
    quotient = tirx.shift_right(number * _whole((1 << (BITS - power)) + 3), _whole(BITS))
    return (number - quotient * _whole(divisor)).astype(dtype)


def _whole(value: int) -> Any:
    return tirx.IntImm("int64", value)
