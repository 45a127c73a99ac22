"""Maxima and minima along axes, also of infinities.

Corrections of TVM 0.27.0, ``relax/frontend/onnx/onnx_frontend.py``:

- ``ReduceMax``: starts from the least finite number, so the maximum of minus infinities is -3.4e38; booleans fail.
  ``ReduceMin`` likewise. The cause is the initial value in ``topi``'s reductions.
"""

from __future__ import annotations

import numpy as np
import tvm
from tvm import relax, te

from ...tensor_types import dtype_of
from .nodes import Node, converter
from .upstream import convert_upstream


@converter("ReduceMax", "ReduceMin")
def extremum(node: Node) -> relax.Expr:
    """ReduceMax and ReduceMin, also of rows of infinities, as attention masks have them."""
    x = node.input(0)
    kind = dtype_of(x)
    shape = node.shape(x, "its input")
    axes = _axes(node, len(shape))
    if axes is None:
        return x
    keep = bool(node.attribute("keepdims", 1))
    if not kind.startswith(("float", "bfloat")):
        if kind == "bool":
            if not all(shape[axis] for axis in axes):  # the extremum of nothing
                return relax.const(np.full(reduced(shape, axes, keep), node.operator == "ReduceMin"))
            wide = relax.op.astype(x, "int8")
            function = relax.op.max if node.operator == "ReduceMax" else relax.op.min
            return relax.op.astype(function(wide, axes, keep), "bool")
        return convert_upstream(node)
    if not axes:
        return x
    largest = node.operator == "ReduceMax"

    def compute(a: te.Tensor) -> te.Tensor:
        start = -np.inf if largest else np.inf
        reducer = te.comm_reducer(
            lambda p, q: tvm.tirx.Max(p, q) if largest else tvm.tirx.Min(p, q),
            lambda dtype: tvm.tirx.const(start, dtype),
            name="largest" if largest else "smallest",
        )
        inner = {axis: te.reduce_axis((0, shape[axis]), f"k{axis}") for axis in axes}

        def element(*i: tvm.tirx.Var) -> tvm.tirx.Expr:
            outer = iter(i)
            index = []
            for axis in range(len(shape)):
                place = next(outer) if keep or axis not in inner else None
                index.append(inner.get(axis, place))
            return reducer(a(*index), axis=list(inner.values()))

        return te.compute(reduced(shape, axes, keep), element, name="extremum")

    return node.builder.emit_te(compute, x, primfunc_name_hint="reduce_max" if largest else "reduce_min")


def reduced(shape: tuple[int, ...], axes: list[int], keep: bool) -> list[int]:
    """The shape of a reduced tensor."""
    return [1 if axis in axes else size for axis, size in enumerate(shape) if keep or axis not in axes]


def _axes(node: Node, rank: int) -> list[int] | None:
    """The axes; None where nothing is to be reduced."""
    given = node.constant(1) if node.opset >= 18 else node.attribute("axes")
    if given is None or len(given) == 0:
        return None if node.attribute("noop_with_empty_axes", 0) else list(range(rank))
    return sorted(int(axis) % rank for axis in given)
