"""Make kernels that compute some rows of another kernel's result: of its batch, its tokens, or a picture.

Other than a slice (`slicing`) a window is for one place: it keeps what its kernel does at the edges, reads what
its neighbours read too (rows of a convolution overlap), and need not be as wide as another. Nothing has to be proved of
it but where it reads, for which bounds suffice; what it may not need it reads in whole.
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
    """A part of a kernel's result.

    Attributes
    ----------
    needs : tuple of Interval or None
        Of each input what the part reads of it; None: all, or none in particular.
    """

    needs: tuple[Interval | None, ...]
    _function: tirx.PrimFunc
    _blocks: Blocks
    _variables: dict[Any, Values]
    _tensors: dict[Any, Interval]

    def kernel(self, given: tuple[Interval | None, ...]) -> tirx.PrimFunc:
        """The kernel of the part.

        Parameters
        ----------
        given : tuple of Interval or None
            Of each input what is there of it, which has all that the part needs; None: all.
        """
        inputs = self._function.params[:-1]
        tensors = {t: interval for t, interval in self._tensors.items() if not any(t.same_as(p) for p in inputs)}
        for parameter, needed, here in zip(inputs, self.needs, given, strict=True):
            if here is not None:
                assert needed is not None  # else all would be needed
                assert here.axis == needed.axis
                assert here.begin <= needed.begin
                assert needed.end <= here.end
                tensors[parameter] = here
        return shrunk(self._function, self._blocks, self._variables, tensors)


def window(function: tirx.PrimFunc, part: Interval) -> Window | None:
    """What a part of a kernel's result takes; None where its blocks cannot be cut to it.

    Parameters
    ----------
    function : tvm.tirx.PrimFunc
        With blocks, as TVM makes it of operators, fused or alone; its last argument is its result.
    part : Interval
        Of the result.
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
    """What has both parts of a tensor; None, all of it, where they are along different axes."""
    if one is None or other is None or one.axis != other.axis:
        return None
    return Interval(one.axis, min(one.begin, other.begin), max(one.end, other.end))


def _analyzer(block: Any, values: Values) -> Analyzer:
    """What knows the bounds of a block's variables, of which one has only some values."""
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
    """What a block reads of a tensor, along the axis along which that is least; None where it is all."""
    found: list[tuple[float, Interval]] = []
    for axis, (index, extent) in enumerate(zip(load.indices, load.source.shape, strict=True)):
        if not uses(index, values.variable) or any(True for _ in loads(index)):
            continue
        size, bound = int(extent), analyzer.const_int_bound(analyzer.simplify(index))
        # what is outside of a tensor is not read: kernels that pad ask before
        begin = max(min(bound.min_value, size - 1), 0)
        end = max(min(bound.max_value + 1, size), begin + 1)
        if end - begin < size:
            found.append(((end - begin) / size, Interval(axis, begin, end)))
    return min(found)[1] if found else None
