"""Widen sorts of types that TVM's host functions do not support, and running sums of floating-point numbers.

TVM's sort on CPUs writes bfloat16 past the end of its buffer and refuses 8-bit and 16-bit integers. Its running sums
accumulate in the type of the numbers: those of float16 ones stop at 2,048, those of float32 ones at 16,777,216.
"""

from __future__ import annotations

from inspect import signature
from math import prod

import tvm
from tvm import relax
from tvm.relax.expr_functor import PyExprMutator, mutator

from ..ir.tensor_types import dtype_of, static_shape
from .half_precision import HALF

_SORTED = {"bfloat16": "float32", **dict.fromkeys(("int8", "uint8", "int16", "uint16", "bool"), "int32")}
"""Types to widen before a sort, and the wider type."""
_SORTS = ("relax.sort", "relax.argsort", "relax.topk")
_SCANS = ("relax.cumsum", "relax.cumprod")
_LONG = 1024
"""Numbers from which on running sums of float32 are computed in float64 on CPUs. Those on GPUs add by a tree."""


def widen_scans(mod: tvm.IRModule) -> tvm.IRModule:
    """Widen the sorts and running sums in all functions of a module."""
    widener = _Widener(mod)
    for variable, function in mod.functions_items():
        if isinstance(function, relax.Function):
            widener.builder_.update_func(variable, widener.visit_expr(function))
    return widener.builder_.get()


@mutator
class _Widener(PyExprMutator):
    def visit_call_(self, call: relax.Call) -> relax.Expr:
        """Rewrite one call."""
        call = super().visit_call_(call)
        name = call.op.name if isinstance(call.op, tvm.ir.Op) else ""
        kind = dtype_of(call.args[0]) if name in _SORTS or name in _SCANS else ""
        if name in _SORTS and kind in _SORTED:
            return self._widened(call, kind, _SORTED[kind])
        if name in _SCANS and kind in HALF and dtype_of(call) in ("", kind):
            return self._widened(call, kind, "float32")
        if name == "relax.cumsum" and kind == "float32" and dtype_of(call) in ("", kind) and _is_long(call):
            return self._widened(call, kind, "float64")
        return call

    def _widened(self, call: relax.Call, kind: str, wide: str) -> relax.Expr:
        build = getattr(relax.op, call.op.name.removeprefix("relax."))
        names = list(signature(build).parameters)[1:]
        attributes = {name: getattr(call.attrs, name) for name in names}
        if call.op.name in _SCANS:
            attributes["dtype"] = wide
        source = self.builder_.emit(relax.op.astype(call.args[0], wide))
        result = self.builder_.emit(build(source, **attributes))
        if not isinstance(result.ty, relax.TupleType):
            positions = call.op.name == "relax.argsort" or dtype_of(result) != wide
            return result if positions else relax.op.astype(result, kind)
        values = self.builder_.emit(relax.TupleGetItem(result, 0))
        places = self.builder_.emit(relax.TupleGetItem(result, 1))
        return relax.Tuple([self.builder_.emit(relax.op.astype(values, kind)), places])


def _is_long(call: relax.Call) -> bool:
    shape, axis = static_shape(call.args[0]), call.attrs.axis
    if shape is None or str(tvm.target.Target.current().kind) == "cuda":
        return False
    return (prod(shape) if axis is None else shape[int(axis)]) >= _LONG
