"""Compute half-precision operators in float32: sums (5,000 float16 ones give 2,048), functions that GPUs lack, maxima."""

from __future__ import annotations

from collections.abc import Callable
from inspect import signature
from typing import Any

from tvm import relax

from ..ir.tensor_types import dtype_of
from .kernel_libraries.rewrite import Rewriter, operation

HALF = ("float16", "bfloat16")
_DIMENSIONS = ("1d", "2d", "3d")
_SUMS = (
    "nn.softmax", "nn.log_softmax",
    "sum", "mean", "prod", "variance", "std", "nn.layer_norm", "nn.group_norm", "nn.instance_norm", "nn.rms_norm",
    *(f"nn.avg_pool{dims}" for dims in _DIMENSIONS), *(f"nn.adaptive_avg_pool{dims}" for dims in _DIMENSIONS),
)  # fmt: skip
_PRODUCTS: dict[str, Callable[..., relax.Expr]] = {
    "relax.matmul": relax.op.matmul,
    **{f"relax.nn.conv{dims}": getattr(relax.op.nn, f"conv{dims}") for dims in _DIMENSIONS},
    **{f"relax.nn.conv{dims}_transpose": getattr(relax.op.nn, f"conv{dims}_transpose") for dims in _DIMENSIONS},
}
_FUNCTIONS = (
    "acos", "acosh", "asin", "asinh", "atan", "atanh", "cosh", "sinh", "round", "isnan", "isinf", "isfinite",
    "power", "mod", "floor_mod", "max", "min",
)  # fmt: skip
"""Operators that TVM 0.27 cannot compile to CUDA in half precision, refuses for bfloat16, or compiles wrongly: in a bfloat16
reduction the threads of a block do not synchronise for the last 32 values."""
Legalize = Callable[[relax.BlockBuilder, relax.Call], relax.Expr]


def legalizations() -> dict[str, Legalize]:
    """Return legalization functions for `LegalizeOps`; operators of other types are lowered as in TVM."""
    wide = {f"relax.{name}": _wide for name in (*_SUMS, *_FUNCTIONS)}
    return {**wide, **dict.fromkeys(_PRODUCTS, _product), "relax.einsum": _einsum}


class WidenHalf(Rewriter):
    """Computes products, convolutions and sums of half precision in float32, where libraries have float32 kernels alone.

    Operands are cast to float32, weights when the model is compiled; each result is rounded once.
    """

    operators = tuple(name.removeprefix("relax.") for name in (*_PRODUCTS, *_SUMS))

    def visit(self, variable: Any, value: Any) -> Any:
        """Rewrite one binding."""
        if operation(value) not in self.operators or not _is_half(value):
            return super().visit(variable, value)
        values = [self.value(each) for each in value.args]
        wide = [self.emit(relax.op.astype(x, "float32")) if _is_half(x) else x for x in values]
        product = _wide_product if value.op.name in _PRODUCTS else relax.Call
        result = product(value.op, wide, value.attrs)
        return self.emit(relax.op.astype(self.emit(result), dtype_of(value)))


def _lower(builder: relax.BlockBuilder, expr: relax.Expr) -> relax.Expr:
    call = builder.normalize(expr)
    return builder.emit(call.op.get_attr("FLegalize")(builder, call))


def _is_half(value: relax.Expr) -> bool:
    return dtype_of(value) in HALF


def _wide(builder: relax.BlockBuilder, call: relax.Call) -> relax.Expr:
    """Lower an operator with half-precision operands cast to float32."""
    if not any(_is_half(x) for x in call.args):
        return call.op.get_attr("FLegalize")(builder, call)
    operands = [_lower(builder, relax.op.astype(x, "float32")) if _is_half(x) else x for x in call.args]
    wide = _lower(builder, relax.Call(call.op, operands, call.attrs))
    return _lower(builder, relax.op.astype(wide, call.ty.dtype.dtype)) if _is_half(call) else wide


def _einsum(builder: relax.BlockBuilder, call: relax.Call) -> relax.Expr:
    """Lower an Einstein sum with half-precision operands cast to float32."""
    operands = call.args[0]
    if isinstance(operands, relax.Var):
        operands = builder.lookup_binding(operands)
    if not _is_half(call) or not isinstance(operands, relax.Tuple):
        return call.op.get_attr("FLegalize")(builder, call)
    wide = relax.Tuple([_lower(builder, relax.op.astype(x, "float32")) for x in operands.fields])
    result = _lower(builder, relax.Call(call.op, [wide], call.attrs))
    return _lower(builder, relax.op.astype(result, call.ty.dtype.dtype))


def _product(builder: relax.BlockBuilder, call: relax.Call) -> relax.Expr:
    """Lower a product to a kernel that reads half-precision operands and sums in float32, so that weights stay small."""
    if not _is_half(call):
        return call.op.get_attr("FLegalize")(builder, call)
    wide = _wide_product(call.op, call.args, call.attrs)
    return _lower(builder, relax.op.astype(_lower(builder, wide), call.ty.dtype.dtype))


def _wide_product(op: Any, operands: Any, attrs: Any) -> relax.Expr:
    """Return a call of one of `_PRODUCTS` with a result in float32."""
    build = _PRODUCTS[op.name]
    attributes = {name: getattr(attrs, name) for name in signature(build).parameters if hasattr(attrs, name)}
    return build(*operands, **{**attributes, "out_dtype": "float32"})
