"""Arithmetic with a constant 0: products and quotients that may be NaN, and sums that turn -0 into 0.

TVM folds ``0 * x`` and ``0 / x`` to 0, and ``x + 0`` to ``x``, as soon as it meets them. As an element of a tensor the 0 is
not known to it.
"""

from __future__ import annotations

from typing import Any

from tvm import relax, te, topi

from ..ir.tensor_types import dtype_of, static_shape
from .half_precision import Legalize
from .kernel_libraries.rewrite import constant_value

_PLACES = {"relax.add": (0, 1), "relax.divide": (0,), "relax.multiply": (0, 1), "relax.subtract": (1,)}
"""Operands that matter if they are 0."""


def legalizations() -> dict[str, Legalize]:
    """Return legalization functions for `LegalizeOps`."""
    return dict.fromkeys(_PLACES, _legalize)


def _legalize(builder: relax.BlockBuilder, call: relax.Call) -> relax.Expr:
    zero = next((place for place in _PLACES[call.op.name] if _is_zero(call.args[place])), None)
    shape = None if zero is None else static_shape(call.args[1 - zero])
    if zero is None or shape is None:
        return call.op.get_attr("FLegalize")(builder, call)
    operands = list(call.args)
    operands[zero] = relax.const(constant_value(operands[zero]).reshape(1), dtype_of(call))
    name = call.op.name.removeprefix("relax.")

    def compute(x: te.Tensor, y: te.Tensor) -> Any:
        result = getattr(topi, name)(x, y)
        return result if shape else te.compute((), lambda: result[0], name=f"{name}_of_scalars")

    return builder.call_te(compute, *operands, primfunc_name_hint=name)


def _is_zero(operand: relax.Expr) -> bool:
    value = constant_value(operand)
    return value is not None and value.ndim == 0 and "float" in dtype_of(operand) and not value.astype("float64").any()
