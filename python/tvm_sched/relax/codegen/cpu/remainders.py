"""Hide remainders by powers of two in indices from LLVM's loop vectoriser, which miscompiles them.

LLVM 22's loop vectoriser reads ``i % 4`` as a counter of two bits. Where it needs a second assumption about the same
index, as for ``x[i % 3 * 20 + j % 4 * 5]``, it forgets to check that this counter does not wrap, and reads past the period:
with vectors of 512 bits one in ten of such kernels is wrong (``tests/relax/codegen/test_remainders.py`` has one).
"""

from __future__ import annotations

from typing import Any

import tvm
from tvm import tirx

from ...ir.statements import contains, map_expression, map_statement

BITS = 32
"""Of the product whose upper half is the quotient."""


def hide_remainders(function: tirx.PrimFunc) -> tirx.PrimFunc:
    """Compute remainders by powers of two in indices with a product and a shift.

    Parameters
    ----------
    function : tvm.tirx.PrimFunc
        Without blocks, its indices not yet vectors.
    """
    if not contains(function.body, (tirx.FloorMod,)):
        return function

    def places(_: Any, indices: list[Any]) -> list[Any]:
        return [_inside(index) for index in indices]

    body = map_statement(function.body, lambda value: ([], _outside(value)), indices=places)
    return function if body.same_as(function.body) else function.with_body(body)


def _outside(expr: Any) -> Any:
    """An expression whose tensors are read at other indices."""
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
    # The same remainder, of a number so small that the product's upper half is the exact quotient. The constant is not
    # the nearest one, which LLVM would see through.
    number = tirx.bitwise_and(expr.a.astype("int64"), _whole((1 << (BITS - 2 - power)) - 1))
    quotient = tirx.shift_right(number * _whole((1 << (BITS - power)) + 3), _whole(BITS))
    return (number - quotient * _whole(divisor)).astype(dtype)


def _whole(value: int) -> Any:
    return tirx.IntImm("int64", value)
