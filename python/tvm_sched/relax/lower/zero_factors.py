"""Products with a constant 0, and quotients of it, that are NaN where the other operand is NaN or infinite.

TVM folds ``0 * x`` and ``0 / x`` to 0 as soon as it meets them. As an element of a tensor the 0 is not known to it.
"""

from __future__ import annotations

from tvm import relax, topi

from ..ir.tensor_types import dtype_of, static_shape
from .half_precision import Legalize
from .kernel_libraries.rewrite import constant_value


def legalizations() -> dict[str, Legalize]:
    """Return legalization functions for `LegalizeOps`."""
    return {"relax.multiply": _legalize, "relax.divide": _legalize}


def _legalize(builder: relax.BlockBuilder, call: relax.Call) -> relax.Expr:
    places = [0, 1] if call.op.name == "relax.multiply" else [0]
    zero = next((place for place in places if _is_zero(call.args[place])), None)
    if zero is None or not static_shape(call.args[1 - zero]):  # a scalar's result would get an axis
        return call.op.get_attr("FLegalize")(builder, call)
    operands = list(call.args)
    operands[zero] = relax.const(constant_value(operands[zero]).reshape(1), dtype_of(call))
    name = call.op.name.removeprefix("relax.")
    return builder.call_te(getattr(topi, name), *operands, primfunc_name_hint=name)


def _is_zero(operand: relax.Expr) -> bool:
    value = constant_value(operand)
    return value is not None and value.ndim == 0 and "float" in dtype_of(operand) and not value.astype("float64").any()
