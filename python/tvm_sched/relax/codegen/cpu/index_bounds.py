"""Clamp indices that depend on data, so that no kernel accesses memory outside its tensors."""

from __future__ import annotations

from typing import Any

import tvm
from tvm import tirx

from ...ir.statements import any_expression, map_expression, map_statement, with_body


def bound_indices(function: tirx.PrimFunc) -> tirx.PrimFunc:
    """Clamp indices that a kernel reads from a tensor to the bounds of the argument that they index.

    TVM's kernels for gathers and scatters do not check their indices. Tensors that a kernel allocates, conditions and bound
    variables are not clamped, since kernels index them by their own counts. Reads from an empty tensor give 0.

    A scatter computes a flat index, so an index outside a dimension other than the first may address another row.

    ``function`` must have blocks, before its loops are rearranged. It is returned unchanged if no index depends on data.
    """
    bounds = _Bounds(function)
    return with_body(
        function, map_statement(function.body, lambda value: ([], bounds.of_loads(value)), indices=bounds.of_store)
    )


class _Bounds:
    def __init__(self, function: tirx.PrimFunc) -> None:
        self.shapes = {p: list(p.shape) for p in function.params if isinstance(p.ty, tirx.buffer.BufferType)}

    def of_loads(self, expr: Any) -> Any:
        """Return an expression with the indices of its loads clamped."""
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
        """Return the clamped indices of a store."""
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
    if str(index.ty.dtype) not in ("int32", "int64"):  # a narrower type may not represent the extent
        index = index.astype("int64")
    kind = str(index.ty.dtype)
    last = tirx.Sub(extent.astype(kind), tirx.IntImm(kind, 1))
    return tirx.Max(tirx.Min(index, last), tirx.IntImm(kind, 0))
