"""Comparisons that are right for NaN.

TVM compiles ``!=`` to an ordered comparison, which is false if an operand is NaN. Its simplifier rewrites ``not <`` to
``>=``, and ``==`` of two expressions to true if fusion makes them equal. The forms here avoid these rewrites: ``==`` becomes
``<=`` and ``>=``, which LLVM merges to one comparison, and a negation tests whether an integer is 0.
"""

from __future__ import annotations

import tvm
from tvm import relax, te, topi

from ..ir.tensor_types import dtype_of
from .half_precision import Legalize


def legalizations() -> dict[str, Legalize]:
    """Return legalization functions for `LegalizeOps`; comparisons of integers are lowered as in TVM."""
    return {"relax.equal": _equal, "relax.not_equal": _not_equal, "relax.logical_not": _logical_not}


def _usual(builder: relax.BlockBuilder, call: relax.Call) -> relax.Expr:
    return call.op.get_attr("FLegalize")(builder, call)


def _same(a: te.Tensor, b: te.Tensor) -> te.Tensor:
    low, high = topi.less_equal(a, b), topi.greater_equal(a, b)
    return te.compute(low.shape, lambda *i: tvm.tirx.all(low(*i), high(*i)), name="equal")


def _negated(condition: te.Tensor, name: str) -> te.Tensor:
    return te.compute(condition.shape, lambda *i: condition(*i).astype("int8") == tvm.tirx.const(0, "int8"), name=name)


def _equal(builder: relax.BlockBuilder, call: relax.Call) -> relax.Expr:
    if "float" not in dtype_of(call.args[0]):
        return _usual(builder, call)
    return builder.call_te(_same, *call.args, primfunc_name_hint="equal")


def _not_equal(builder: relax.BlockBuilder, call: relax.Call) -> relax.Expr:
    if "float" not in dtype_of(call.args[0]):
        return _usual(builder, call)
    return builder.call_te(lambda a, b: _negated(_same(a, b), "not_equal"), *call.args, primfunc_name_hint="not_equal")


def _logical_not(builder: relax.BlockBuilder, call: relax.Call) -> relax.Expr:
    if dtype_of(call.args[0]) != "bool":
        return _usual(builder, call)
    return builder.call_te(lambda x: _negated(x, "logical_not"), call.args[0], primfunc_name_hint="logical_not")
