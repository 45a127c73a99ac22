"""Comparisons that are right for NaN.

LLVM gets TVM's ``!=`` as an ordered comparison, which is false where an operand is NaN, and TVM's simplifier makes ``>=``
of ``not <`` and true of ``x == x``. What is lowered here leaves it nothing of that kind to rewrite: a negation asks whether
an integer is 0.
"""

from __future__ import annotations

from typing import Any

import tvm
from tvm import relax, te, topi

from .half import Legalize


def legalizations() -> dict[str, Legalize]:
    """How `LegalizeOps` lowers them; those of whole numbers as TVM does it."""
    return {"relax.equal": _equal, "relax.not_equal": _not_equal, "relax.logical_not": _logical_not}


def _usual(builder: relax.BlockBuilder, call: relax.Call) -> relax.Expr:
    return call.op.get_attr("FLegalize")(builder, call)


def _kind(value: relax.Expr) -> str:
    ty = value.ty
    return str(ty.dtype.dtype) if isinstance(ty, relax.TensorType) and ty.dtype is not None else ""


def _same(call: relax.Call) -> bool:
    a, b = call.args
    return isinstance(a, relax.Var) and a.same_as(b)


def _negated(condition: Any) -> Any:
    return condition.astype("int8") == tvm.tirx.const(0, "int8")


def _isnan(builder: relax.BlockBuilder, x: relax.Expr) -> relax.Expr:
    return builder.call_te(topi.isnan, x, primfunc_name_hint="isnan")


def _equal(builder: relax.BlockBuilder, call: relax.Call) -> relax.Expr:
    """Of a tensor with itself: where it is not NaN."""
    if "float" not in _kind(call.args[0]) or not _same(call):
        return _usual(builder, call)
    missing = builder.emit(_isnan(builder, call.args[0]))
    return _logical_not(builder, builder.normalize(relax.op.logical_not(missing)))


def _not_equal(builder: relax.BlockBuilder, call: relax.Call) -> relax.Expr:
    if "float" not in _kind(call.args[0]):
        return _usual(builder, call)
    if _same(call):
        return _isnan(builder, call.args[0])

    def compute(a: te.Tensor, b: te.Tensor) -> te.Tensor:
        same = topi.equal(a, b)
        return te.compute(same.shape, lambda *i: _negated(same(*i)), name="not_equal")

    return builder.call_te(compute, *call.args, primfunc_name_hint="not_equal")


def _logical_not(builder: relax.BlockBuilder, call: relax.Call) -> relax.Expr:
    if _kind(call.args[0]) != "bool":
        return _usual(builder, call)

    def compute(x: te.Tensor) -> te.Tensor:
        return te.compute(x.shape, lambda *i: _negated(x(*i)), name="logical_not")

    return builder.call_te(compute, *call.args, primfunc_name_hint="logical_not")
