"""Clamp indices that depend on data, so that no kernel accesses memory outside its tensors."""

from __future__ import annotations

from typing import Any

import tvm
from tvm import tirx

from ...ir.statements import any_expression, map_expression, map_statement


def bound_indices(function: tirx.PrimFunc) -> tirx.PrimFunc:
    """Take the nearest row where an index that a kernel reads from a tensor is outside of the tensor that it is for.

    TVM's kernels of gathers and scatters trust their indices. Of the arguments only: what a kernel allocates it indexes by
    its own counts. So it does in conditions, and by numbers that it gives a name to: those stay.

    A scatter computes one index into all of its tensor, and from it the tensor's own. An index that is outside of another
    dimension than the first may so become one of another row. What is read from an empty tensor is 0.

    Parameters
    ----------
    function : tvm.tirx.PrimFunc
        With blocks, before its loops are rearranged.

    Returns
    -------
    tvm.tirx.PrimFunc
        The same object where no index depends on data.
    """
    bounds = _Bounds(function)
    body = map_statement(function.body, lambda value: ([], bounds.of_loads(value)), indices=bounds.of_store)
    return function if body.same_as(function.body) else function.with_body(body)


class _Bounds:
    def __init__(self, function: tirx.PrimFunc) -> None:
        self.shapes = {p: list(p.shape) for p in function.params if isinstance(p.ty, tirx.buffer.BufferType)}

    def of_loads(self, expr: Any) -> Any:
        """An expression whose loads stay within the arguments."""
        if isinstance(expr, tvm.ir.TensorLoad):
            if self._is_empty(expr):
                return tirx.const(0, str(expr.ty.dtype))
            indices = self._within(expr.source, [self.of_loads(index) for index in expr.indices])
            same = all(new.same_as(old) for new, old in zip(indices, expr.indices, strict=True))
            return expr if same else tirx.BufferLoad(expr.source, indices)
        return map_expression(expr, self.of_loads)

    def _is_empty(self, load: Any) -> bool:
        empty = any(isinstance(n, tirx.IntImm) and n.value == 0 for n in self.shapes.get(load.source, ()))
        return empty and any(any_expression(index, _loads) for index in load.indices)

    def of_store(self, buffer: Any, indices: list[Any]) -> list[Any]:
        """Indices at which is stored."""
        return self._within(buffer, [self.of_loads(index) for index in indices])

    def _within(self, buffer: Any, indices: list[Any]) -> list[Any]:
        shape = self.shapes.get(buffer)
        if shape is None or len(shape) != len(indices):
            return indices
        return [
            _clamped(i, extent) if any_expression(i, _loads) else i for i, extent in zip(indices, shape, strict=True)
        ]


def _loads(expr: Any) -> bool:
    return isinstance(expr, tvm.ir.TensorLoad)


def _clamped(index: Any, extent: Any) -> Any:
    if str(index.ty.dtype) not in ("int32", "int64"):  # others may not hold the extent
        index = index.astype("int64")
    kind = str(index.ty.dtype)
    last = tirx.Sub(extent.astype(kind), tirx.IntImm(kind, 1))
    return tirx.Max(tirx.Min(index, last), tirx.IntImm(kind, 0))
