"""Converter of Slice.

Corrections of TVM 0.27.0, ``relax/frontend/onnx/onnx_frontend.py``:

- ``Slice``: fails on slices that are empty because they end before they start.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from tvm import relax

from ...tensor_types import dtype_of, static_shape
from .nodes import Node, constant_of, converter


@converter("Slice")
def slice_(node: Node) -> relax.Expr:
    """Convert Slice; constant bounds become ``strided_slice``, other bounds are TVM's."""
    value, *positions = node.inputs
    known = [None if position is None else constant_of(position) for position in positions]
    computed = any(k is None and p is not None for k, p in zip(known, positions, strict=True))
    if computed or static_shape(value) is None:
        return node.convert_as("Slice", node.inputs, node.attributes)
    shape = node.shape(value, "its input")
    starts, ends, axes, steps = _numbers(known, len(shape))
    ranges = [
        _positions(first, last, step, shape[axis])
        for axis, first, last, step in zip(axes, starts, ends, steps, strict=True)
    ]
    sizes = list(shape)
    for axis, taken in zip(axes, ranges, strict=True):
        sizes[axis] = len(taken)
    if 0 in sizes:
        return relax.const(np.zeros(sizes, dtype_of(value)), dtype_of(value))
    if sizes == list(shape) and all(taken.step > 0 for taken in ranges):
        return value
    first = [taken.start for taken in ranges]
    last = [_end(taken, shape[axis]) for axis, taken in zip(axes, ranges, strict=True)]
    return node.emit(relax.op.strided_slice(value, axes, first, last, [taken.step for taken in ranges]))


def _positions(start: int, end: int, step: int, size: int) -> range:
    """Return the positions of a slice; ONNX clamps bounds as Python does, except for a start before the first element."""
    start, end = (bound + size if bound < 0 else bound for bound in (start, end))
    if step > 0:
        return range(min(max(start, 0), size), min(max(end, 0), size), step)
    return range(min(max(start, 0), size - 1), min(max(end, -1), size - 1), step)


def _end(taken: range, size: int) -> int:
    """Return the bound behind the last position; before the first element it must not count from the end."""
    beyond = taken[-1] + (1 if taken.step > 0 else -1)
    return beyond if beyond >= 0 else -size - 1


def _numbers(known: list[Any], rank: int) -> tuple[list[int], ...]:
    """Return starts, ends, axes and steps, with the defaults of missing inputs."""
    count = known[0].size
    axes, steps = [*known[2:], None, None][:2]
    axes = range(count) if axes is None else axes.reshape(-1)
    steps = [1] * count if steps is None else steps.reshape(-1)
    starts, ends = (part.reshape(-1) for part in known[:2])
    return tuple([int(number) for number in part] for part in (starts, ends, [axis % rank for axis in axes], steps))
