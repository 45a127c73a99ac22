"""Make kernels that compute some rows of another kernel's result: of the batch, the tokens, or an image.

Unlike a slice (`kernel_slicing`), a window is for one position. It keeps the kernel's behaviour at the edges, may read rows
that its neighbours read too (convolutions overlap), and may differ from them in size. Only its reads have to be bounded; a
tensor without a bound is read whole.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import tvm
from tvm import tirx
from tvm.sym import Analyzer

from .kernel_parts import Blocks, Interval, Values, loads, plain_blocks, shrunk, uses, written_along


@dataclass(frozen=True)
class Window:
    """A part of a kernel's result."""

    needs: tuple[Interval | None, ...]  # the interval of each input that the part reads; None: all, or not known
    _function: tirx.PrimFunc
    _blocks: Blocks
    _variables: dict[Any, Values]
    _tensors: dict[Any, Interval]

    def kernel(self, available: tuple[Interval | None, ...]) -> tirx.PrimFunc:
        """Make the part's kernel for inputs of which only the intervals ``available`` exist (None: all).

        Each interval contains the one that the part needs.
        """
        inputs = self._function.params[:-1]
        tensors = {t: interval for t, interval in self._tensors.items() if not any(t.same_as(p) for p in inputs)}
        for parameter, needed, interval in zip(inputs, self.needs, available, strict=True):
            if interval is not None:
                assert needed is not None  # else the part needs all of it
                assert interval.axis == needed.axis
                assert interval.begin <= needed.begin
                assert needed.end <= interval.end
                tensors[parameter] = interval
        return shrunk(self._function, self._blocks, self._variables, tensors)


def window(function: tirx.PrimFunc, part: Interval) -> Window | None:
    """Cut a kernel to a part of its result; return None if its blocks do not allow that.

    The kernel has blocks, as TVM makes them from operators, fused or alone; its last argument is its result.
    """
    blocks, result = plain_blocks(function), function.params[-1]
    if blocks is None:
        return None
    tensors: dict[Any, Interval | None] = {result: part}
    variables: dict[Any, Values] = {}
    for realize in reversed(blocks.all):
        tensor = realize.block.body.buffer
        cut = tensors.get(tensor)
        if tensor not in blocks.writer:
            return None
        variable = None if cut is None else written_along(realize, cut.axis)
        if cut is not None and variable is not None:
            variables[realize] = Values(variable, cut.begin, cut.end)
        else:
            tensors[tensor] = None
        values = variables.get(realize)
        analyzer = None if values is None else _analyzer(realize.block, values)
        for load in blocks.loads[realize]:
            if not load.source.same_as(tensor):
                needed = None if values is None else _needed(analyzer, values, load)
                tensors[load.source] = hull(tensors[load.source], needed) if load.source in tensors else needed
    if tensors[result] is None:
        return None
    kept = {t: i for t, i in tensors.items() if i is not None and i.end - i.begin < int(t.shape[i.axis])}
    needs = tuple(kept.get(parameter) for parameter in function.params[:-1])
    return Window(needs, function, blocks, variables, kept)


def hull(one: Interval | None, other: Interval | None) -> Interval | None:
    """Return the smallest interval that contains two; None (the whole tensor) if their axes differ."""
    if one is None or other is None or one.axis != other.axis:
        return None
    return Interval(one.axis, min(one.begin, other.begin), max(one.end, other.end))


def _analyzer(block: Any, values: Values) -> Analyzer:
    """Make an analyzer with the bounds of a block's variables, one of which has only some values."""
    analyzer = Analyzer()
    for each in block.iter_vars:
        cut = each.var.same_as(values.variable)
        begin, end = (
            (values.begin, values.end) if cut else (int(each.dom.min), int(each.dom.min) + int(each.dom.extent))
        )
        kind = str(each.var.ty.dtype)
        analyzer.bind(each.var, tvm.ir.Range.from_min_extent(tirx.IntImm(kind, begin), tirx.IntImm(kind, end - begin)))
    return analyzer


def _needed(analyzer: Analyzer, values: Values, load: Any) -> Interval | None:
    """Return the interval that a load reads along the axis with the smallest share; None if it reads all."""
    shares: list[tuple[float, Interval]] = []
    for axis, (index, extent) in enumerate(zip(load.indices, load.source.shape, strict=True)):
        if not uses(index, values.variable) or any(True for _ in loads(index)):
            continue
        size, bound = int(extent), analyzer.const_int_bound(analyzer.simplify(index))
        # nothing outside of the tensor is read: padding kernels test their indices
        begin = max(min(bound.min_value, size - 1), 0)
        end = max(min(bound.max_value + 1, size), begin + 1)
        if end - begin < size:
            shares.append(((end - begin) / size, Interval(axis, begin, end)))
    return min(shares)[1] if shares else None
