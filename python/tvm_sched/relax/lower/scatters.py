"""Scatters that are right for NaN and for indices that cover a part of the tensor.

TVM compiles ``max(a, b)`` to ``a > b ? a : b``, which forgets a NaN of ``a``. Its kernel of ``scatter_elements`` takes the
tensor to be as large as the indices along all axes but the one that they index.
"""

from __future__ import annotations

from typing import Any

import tvm
import tvm_ffi
from tvm import relax, te, tirx

from ..ir.tensor_types import dtype_of, static_shape
from .half_precision import Legalize


def legalizations() -> dict[str, Legalize]:
    """Return legalization functions for `LegalizeOps`."""
    return {"relax.scatter_elements": _scatter_elements, "relax.scatter_nd": _scatter}


def _scatter(builder: relax.BlockBuilder, call: relax.Call) -> relax.Expr:
    lowered = call.op.get_attr("FLegalize")(builder, call)
    if call.attrs.reduction in ("max", "min") and "float" in dtype_of(call.args[0]):
        name = lowered.args[0]
        function = builder.get()[name]
        kept = tvm_ffi.structural_map(function.body, ((tirx.Max, tirx.Min), _first_nan_stays))
        builder.update_func(name, function.with_body(kept))
    return lowered


def _first_nan_stays(extremum: Any) -> tirx.Expr:
    first = extremum.a
    tested = first.astype("float32") if str(first.ty.dtype) == "bfloat16" else first  # TVM has no isnan of bfloat16
    return tirx.Select(tirx.isnan(tested), first, extremum)


def _scatter_elements(builder: relax.BlockBuilder, call: relax.Call) -> relax.Expr:
    data, indices, updates = call.args
    shape, covered = static_shape(data), static_shape(indices)
    if shape is None or covered is None:
        return _scatter(builder, call)
    axis = int(call.attrs.axis) % len(shape)
    region = [shape[k] if k == axis else size for k, size in enumerate(covered)]
    if region == list(shape):
        return _scatter(builder, call)
    if 0 in covered:
        return data

    def cut(a: te.Tensor) -> te.Tensor:
        return te.compute(region, lambda *i: a(*i), name="region")

    def merge(whole: te.Tensor, part: te.Tensor) -> te.Tensor:
        def element(*i: tvm.tirx.Var) -> tvm.tirx.Expr:
            inside = tirx.all(*(place < size for place, size in zip(i, region, strict=True)))
            return te.if_then_else(inside, part(*i), whole(*i))

        return te.compute(shape, element, name="merged")

    part = builder.emit(builder.call_te(cut, data, primfunc_name_hint="region"))
    scattered = relax.op.scatter_elements(part, indices, updates, axis, call.attrs.reduction)
    scattered = builder.emit(_scatter(builder, builder.normalize(scattered)))
    return builder.call_te(merge, data, scattered, primfunc_name_hint="merge_region")
