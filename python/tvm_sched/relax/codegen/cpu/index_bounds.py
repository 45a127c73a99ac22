"""Keep kernels within their tensors: prove indices, clamp those that depend on data, refuse those that lie outside."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from math import prod
from typing import Any

import numpy as np
import tvm
from tvm import s_tir, sym, tirx

from tvm_sched_runtime.errors import UnsupportedModelError

from ...ir.statements import any_expression, choice_of, evaluate, intrinsic, map_expression, map_statement, with_body

_MOST_VALUES = 1 << 20
"""Most combinations of loop variables for which an index that the analyzer cannot bound is evaluated."""


def bound_indices(function: tirx.PrimFunc) -> tirx.PrimFunc:
    """Clamp indices of a kernel that may lie outside of the tensor that they index.

    Indices that depend on data are clamped: TVM's kernels for gathers and scatters do not check theirs. Other indices are
    computed from loop variables and attributes. Each is proven to lie inside, by the extents of the loops and the conditions
    around it. It is clamped if neither that nor the contrary can be proven. Indices into tensors that a kernel allocates are
    not clamped if they depend on data, since kernels count these themselves. Reads from an empty tensor give 0.

    A scatter computes a flat index, so an index outside a dimension other than the first may address another row.

    ``function`` must have blocks, before its loops are rearranged. It is returned unchanged if all indices are proven.

    Raises
    ------
    UnsupportedModelError
        An index that does not depend on data lies outside.
    """
    bounds = _Bounds(function)
    body = map_statement(
        function.body, lambda value: ([], bounds.of_loads(value)), indices=bounds.of_store, scope=bounds.scope
    )
    return with_body(function, body)


class _Bounds:
    def __init__(self, function: tirx.PrimFunc) -> None:
        self.function = function
        self.arguments = {p for p in function.params if isinstance(p.ty, tirx.buffer.BufferType)}
        self.last: dict[Any, int] = {}
        """The largest value of each loop variable; the least is 0."""
        self.extents: dict[Any, Any] = {}
        """The number of values of loop variables, the least of which is 0; it may be symbolic."""
        self.conditions: list[Any] = []
        self.unreached = 0

    @contextmanager
    def scope(self, what: Any) -> Iterator[None]:
        """Know the range of a loop's or block's variables, or a condition, while a statement is rebuilt."""
        if isinstance(what, tirx.For):
            ranges = [(what.loop_var, what.min, what.extent)]
        elif isinstance(what, s_tir.SBlockRealize):
            ranges = [(item.var, item.dom.min, item.dom.extent) for item in what.block.iter_vars]
        else:
            ranges = []
        known = {
            variable: int(extent) - 1
            for variable, first, extent in ranges
            if _constant(first) == 0 and _constant(extent) is not None
        }
        condition = what.predicate if isinstance(what, s_tir.SBlockRealize) else None if ranges else what
        empty = any(last < 0 for last in known.values())
        self.last |= known
        self.extents |= {variable: extent for variable, first, extent in ranges if _constant(first) == 0}
        self.unreached += empty
        with self.guarded(condition) if isinstance(condition, tvm.ir.Expr) else _nothing():
            yield
        self.unreached -= empty

    @contextmanager
    def guarded(self, condition: Any) -> Iterator[None]:
        """Know that a condition holds."""
        if _constant(condition) == 1:
            yield
            return
        self.conditions.append(condition)
        yield
        self.conditions.pop()

    def of_loads(self, expr: Any) -> Any:
        """Return an expression with the indices of its loads clamped."""
        if isinstance(expr, tvm.ir.TensorLoad):
            if self._is_empty(expr):
                return tirx.const(0, str(expr.ty.dtype))
            indices = self._within(expr.source, [self.of_loads(index) for index in expr.indices])
            same = all(new.same_as(old) for new, old in zip(indices, expr.indices, strict=True))
            return expr if same else tirx.BufferLoad(expr.source, indices)
        choice = choice_of(expr)
        if choice is None:
            return map_expression(expr, self.of_loads)
        holds = [None, choice[0], tirx.Not(choice[0])]  # in the order in which map_expression visits the parts

        def visit(part: Any) -> Any:
            condition = holds.pop(0)
            if condition is None:
                return self.of_loads(part)
            with self.guarded(condition):
                return self.of_loads(part)

        return map_expression(expr, visit)

    def _is_empty(self, load: Any) -> bool:
        empty = load.source in self.arguments and any(_constant(size) == 0 for size in load.source.shape)
        return empty and any(any_expression(index, _loads) for index in load.indices)

    def of_store(self, buffer: Any, indices: list[Any]) -> list[Any]:
        """Return the clamped indices of a store."""
        return self._within(buffer, [self.of_loads(index) for index in indices])

    def _within(self, buffer: Any, indices: list[Any]) -> list[Any]:
        shape = list(buffer.shape)
        if len(shape) != len(indices):
            return indices
        return [self._bounded(buffer, i, extent) for i, extent in zip(indices, shape, strict=True)]

    def _bounded(self, buffer: Any, index: Any, extent: Any) -> Any:
        size = _constant(extent)
        if any_expression(index, _loads):
            return _clamped(index, extent) if buffer in self.arguments else index
        if self.unreached or isinstance(index, tirx.Ramp):
            return index
        if size is None:
            return index if self._is_proven(index, extent) else _clamped(index, extent)
        last = self.last.get(index) if isinstance(index, tirx.Var) else _constant(index)
        if last is not None and 0 <= last < size:
            return index
        variables = list(tirx.analysis.undefined_vars(index))
        known = all(variable in self.last for variable in variables)
        if not known and buffer not in self.arguments:
            return index
        low, high = self._range(index, variables, size)
        if low >= 0 and high < size:
            return index
        if known and (exact := self._exact_range(index, variables)) is not None:
            low, high = exact
            if low >= 0 and high < size:
                return index
            raise UnsupportedModelError(
                f"a kernel would reach beyond its tensor {_name(buffer)!r}: it computes indices from {low} to {high} for a "
                f"dimension of size {size}; change the sizes or attributes of the operator so that they fit its input"
            )
        return _clamped(index, extent)

    def _is_proven(self, index: Any, extent: Any) -> bool:
        """Whether an index lies inside of a dimension of symbolic size."""
        analyzer = sym.Analyzer()
        for variable, count in self.extents.items():
            analyzer.bind(variable, tvm.ir.Range(tirx.IntImm(str(variable.ty.dtype), 0), count))
        with _holding(analyzer, self.conditions):
            return bool(analyzer.can_prove(index >= 0) and analyzer.can_prove(index < extent))

    def _range(self, index: Any, variables: list[Any], size: int) -> tuple[int, int]:
        """Return the least and the largest value of an index, as far as they can be proven."""
        analyzer = sym.Analyzer()
        used = {*variables, *(v for c in self.conditions for v in tirx.analysis.undefined_vars(c))}
        for variable in used & self.last.keys():
            kind = str(variable.ty.dtype)
            extent = tirx.IntImm(kind, self.last[variable] + 1)
            analyzer.bind(variable, tvm.ir.Range(tirx.IntImm(kind, 0), extent))
        with _holding(analyzer, self.conditions):
            bound = analyzer.const_int_bound(analyzer.simplify(index))
            low, high = int(bound.min_value), int(bound.max_value)
            if low < 0 and analyzer.can_prove(index >= 0):
                low = 0
            if high >= size and analyzer.can_prove(index < size):
                high = size - 1
        return low, high

    def _exact_range(self, index: Any, variables: list[Any]) -> tuple[int, int] | None:
        """Return the least and largest value of an index where the conditions hold, by evaluation; None if it is unknown."""
        used = list(dict.fromkeys([*variables, *(v for c in self.conditions for v in tirx.analysis.undefined_vars(c))]))
        if any(v not in self.last for v in used) or prod(self.last[v] + 1 for v in used) > _MOST_VALUES:
            return None
        axes = np.ix_(*(np.arange(self.last[v] + 1) for v in used))
        values = dict(zip(used, axes, strict=True))
        holds = [evaluate(_plain(condition), values) for condition in self.conditions]
        found = evaluate(index, values)
        if found is None or any(each is None for each in holds):
            return None
        *holds, found = np.broadcast_arrays(*holds, found)
        found = found[np.logical_and.reduce(holds)] if holds else found
        return (int(found.min()), int(found.max())) if found.size else (0, 0)


@contextmanager
def _nothing() -> Iterator[None]:
    yield


@contextmanager
def _holding(analyzer: sym.Analyzer, conditions: list[Any]) -> Iterator[None]:
    if not conditions:
        yield
        return
    condition, *others = conditions
    with analyzer.constraint_scope(_plain(condition)), _holding(analyzer, others):
        yield


def _plain(condition: Any) -> Any:
    """Return a condition without the hint that it is likely."""
    return condition.args[0] if isinstance(condition, tvm.ir.Call) and intrinsic(condition) == "likely" else condition


def _constant(expr: Any) -> int | None:
    return int(expr.value) if isinstance(expr, tirx.IntImm) else None


def _name(buffer: Any) -> str:
    return str(getattr(buffer, "name", buffer))


def _loads(expr: Any) -> bool:
    return isinstance(expr, tvm.ir.TensorLoad)


def _clamped(index: Any, extent: Any) -> Any:
    if str(index.ty.dtype) not in ("int32", "int64"):  # a narrower type may not represent the extent
        index = index.astype("int64")
    kind = str(index.ty.dtype)
    last = tirx.Sub(extent.astype(kind), tirx.IntImm(kind, 1))
    return tirx.Max(tirx.Min(index, last), tirx.IntImm(kind, 0))
