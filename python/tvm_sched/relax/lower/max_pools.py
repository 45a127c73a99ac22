"""Maxima of windows that are right for NaN and infinities.

TVM's start from the least finite number, so the maximum of minus infinities is -3.4e38, and leave NaN out.
"""

from __future__ import annotations

import tvm
from tvm import relax, te

from ..ir.tensor_types import dtype_of, static_shape
from .half_precision import Legalize


def legalizations() -> dict[str, Legalize]:
    """Return legalization functions for `LegalizeOps`; maxima of integers are lowered as in TVM."""
    return {f"relax.nn.max_pool{dims}": _max_pool for dims in ("1d", "2d", "3d")}


def _max_pool(builder: relax.BlockBuilder, call: relax.Call) -> relax.Expr:
    shape, result, attrs = static_shape(call.args[0]), static_shape(call), call.attrs
    layout, kind = str(attrs.layout), dtype_of(call.args[0])
    known = shape is not None and result is not None and str(attrs.out_layout) in ("", layout) and layout.isupper()
    if not known or not kind.startswith(("float", "bfloat")):
        return call.op.get_attr("FLegalize")(builder, call)
    image = [axis for axis, name in enumerate(layout) if name in "DHW"]
    size, strides, dilation, before = (
        [int(n) for n in numbers] for numbers in (attrs.pool_size, attrs.strides, attrs.dilation, attrs.padding)
    )
    infinity = tvm.tirx.const(float("inf"), kind)

    def greater(p: tvm.tirx.Expr, q: tvm.tirx.Expr) -> tvm.tirx.Expr:
        number = (q <= infinity).astype("int8")
        return tvm.tirx.Select(number == tvm.tirx.const(0, "int8"), q, tvm.tirx.Select(q > p, q, p))

    reducer = te.comm_reducer(greater, lambda kind: tvm.tirx.const(float("-inf"), kind), name="largest_or_nan")

    def compute(a: te.Tensor) -> te.Tensor:
        inner = [te.reduce_axis((0, extent), f"k{d}") for d, extent in enumerate(size)]

        def element(*at: tvm.tirx.Var) -> tvm.tirx.Expr:
            place = list(at)
            for d, axis in enumerate(image):
                place[axis] = at[axis] * strides[d] + inner[d] * dilation[d] - before[d]
            inside = tvm.tirx.all(
                *(condition for axis in image for condition in (place[axis] >= 0, place[axis] < a.shape[axis]))
            )
            return reducer(tvm.tirx.if_then_else(inside, a(*place), -infinity), axis=inner)

        return te.compute(result, element, name="max_pool")

    return builder.call_te(compute, call.args[0], primfunc_name_hint=f"max_pool{len(image)}d")
