"""Rewrite operators on empty tensors, for which TVM's kernels do not write their results or cannot be built."""

from __future__ import annotations

import math
from itertools import pairwise

import numpy as np
import tvm
from tvm import relax

from ..ir.tensor_types import static_shape

_NEUTRAL = {
    "relax.matmul": 0.0,
    "relax.sum": 0.0,
    "relax.prod": 1.0,
    "relax.mean": math.nan,
    "relax.nn.conv1d": 0.0,
    "relax.nn.conv2d": 0.0,
    "relax.nn.conv3d": 0.0,
}
"""Results of reductions over no elements. Their kernels write nothing, since they initialise in the first iteration."""


_WRITTEN = {"relax.index_put": 2, "relax.scatter_elements": 2, "relax.scatter_nd": 2, "relax.slice_scatter": 1}
"""Operators that write into a copy of their first operand, and the position of what they write."""


def rewrite_empty(call: relax.Call) -> relax.Expr:
    """Return a call, or an equivalent expression if an operand or the result is empty."""
    operation = call.op.name if isinstance(call.op, tvm.ir.Op) else ""
    if _is_legalized(operation) and _size(call) == 0:
        dtype = call.ty.dtype.dtype
        return relax.op.full(call.ty.shape, relax.const(0, str(dtype)), dtype)
    if operation in _NEUTRAL and any(_size(argument) == 0 for argument in call.args) and _size(call):
        dtype = call.ty.dtype.dtype
        return relax.op.full(call.ty.shape, relax.const(_NEUTRAL[operation], str(dtype)), dtype)
    if operation in _WRITTEN and _size(call.args[_WRITTEN[operation]]) == 0:
        return call.args[0]
    if operation == "relax.concat" and isinstance(call.args[0], relax.Tuple):
        parts = [part for part in call.args[0].fields if _size(part) != 0]
        if len(parts) < len(call.args[0].fields):
            return relax.op.concat(parts, call.attrs.axis) if len(parts) > 1 else parts[0]
    if operation == "relax.split" and isinstance(call.ty, relax.TupleType):
        return _split(call)
    return call


def _split(call: relax.Call) -> relax.Expr:
    """Replace a split with empty parts by slices, since TVM requires increasing positions."""
    if all(_size(part) != 0 for part in call.ty.fields):
        return call
    axis = int(call.attrs.axis) % call.args[0].ty.ndim
    sizes = [int(part.shape[axis]) for part in call.ty.fields]
    ends = np.cumsum([0, *sizes]).tolist()
    slices = [relax.op.strided_slice(call.args[0], [axis], [start], [end]) for start, end in pairwise(ends)]
    return relax.Tuple(slices)


def _is_legalized(operation: str) -> bool:
    """Whether a name is a Relax operator that is legalised, and not a call of a kernel."""
    return bool(operation) and tvm.ir.Op.get(operation).has_attr("FLegalize")


def _size(value: relax.Expr | relax.Type) -> int | None:
    """Return the number of elements, or None if it is unknown."""
    shape = static_shape(value)
    return None if shape is None else math.prod(shape)
