"""Fold operators on constants with numpy, before anything is compiled."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import tvm
from tvm import relax

from tvm_frontends.imported_model import data_address

from ..ir.tensor_types import static_shape
from ..ir.virtual_devices import copied_to

Names = dict[int, str]


def _permute(call: Any, x: Any) -> Any:
    axes = call.attrs.axes
    return np.transpose(x, None if axes is None else [int(a) for a in axes])


def _reshape(call: Any, x: Any) -> Any:
    return np.reshape(x, [int(d) for d in call.ty.shape])


def _broadcast(call: Any, x: Any) -> Any:
    return np.broadcast_to(x, [int(d) for d in call.ty.shape])


def _slice(call: Any, x: Any) -> Any:
    index = [slice(None)] * x.ndim
    for axis, first, last, *step in zip(*_numbers(call), strict=True):
        index[axis] = slice(first, last, *step)
    return x[tuple(index)]


def _slice_scatter(call: Any, x: Any, part: Any) -> Any:
    index = [slice(None)] * x.ndim
    index[int(call.attrs.axis)] = slice(*_places(call))
    result = x.copy()
    result[tuple(index)] = part
    return result


def _places(call: Any) -> list[int]:
    """Return begin, end and step of a slice_scatter; empty if they are not constants, or count from the end."""
    numbers = [getattr(number, "value", None) for number in call.args[2:]]
    known = [int(number) for number in numbers if isinstance(number, (int, tvm.tirx.IntImm))]
    return known if len(known) == len(numbers) == 3 and min(known) >= 0 < known[2] else []


def _numbers(call: Any) -> list[list[int]]:
    """Return axes, begins, ends and any steps of a slice; empty if they are not constants, or a step is negative."""
    parts = call.args[1:]
    known = all(isinstance(p, relax.Tuple) and all(isinstance(f, tvm.tirx.IntImm) for f in p.fields) for p in parts)
    numbers = [[int(f) for f in part.fields] for part in parts] if known else []
    forward = len(numbers) == 3 or (len(numbers) == 4 and all(step > 0 for step in numbers[3]))
    return numbers if forward else []


def _take(call: Any, x: Any, index: Any) -> Any:
    return np.take(x, index, int(call.attrs.axis), mode="clip")


def _indices_fit(call: Any, x: Any, index: Any) -> bool:
    """Whether a take reads along an axis, at valid positions only: its modes differ only for invalid positions."""
    axis = call.attrs.axis
    return axis is not None and bool(((index >= 0) & (index < x.shape[int(axis)])).all())


def _pad(call: Any, x: Any) -> Any:
    widths = [int(width) for width in call.attrs.pad_width]
    return np.pad(x, list(zip(widths[::2], widths[1::2], strict=True)), constant_values=float(call.attrs.pad_value))


def _reduction(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a reduction over a call's axes that adds and multiplies floating-point values in float64."""

    def reduced(call: Any, x: Any) -> Any:
        axes = None if call.attrs.axis is None else tuple(int(a) for a in call.attrs.axis)
        return function(
            x.astype(np.float64) if x.dtype.kind == "f" else x, axis=axes, keepdims=bool(call.attrs.keepdims)
        )

    return reduced


_REDUCTIONS = ("sum", "mean", "prod", "max", "min")
_SUPPORTED: dict[str, Callable[..., bool]] = {
    **{f"relax.{name}": lambda call, x: x.size > 0 and x.dtype.kind in "fiu" for name in _REDUCTIONS},
    "relax.strided_slice": lambda call, x: bool(_numbers(call)),
    "relax.slice_scatter": lambda call, *_: bool(_places(call)),
    "relax.take": _indices_fit,
    "relax.nn.pad": lambda call, x: str(call.attrs.pad_mode) == "constant",
}
"""Conditions under which `_FUNCTIONS` can compute a call, from the call and the values of its tensors."""


def _of_values(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function of a call and its tensors' values that ignores the call."""
    return lambda call, *values: function(*values)


_NUMPY = (
    *(
        "add",
        "subtract",
        "multiply",
        "divide",
        "maximum",
        "minimum",
        "negative",
        "sqrt",
        "exp",
        "log",
        "tanh",
        "sin",
        "cos",
    ),
    *(
        "floor",
        "ceil",
        "abs",
        "square",
        "isnan",
        "isinf",
        "isfinite",
        "equal",
        "not_equal",
        "less",
        "less_equal",
        "greater",
    ),
    *("greater_equal", "logical_and", "logical_or", "logical_not", "where"),
)
"""Operators that numpy computes by a function of the same name."""
_FUNCTIONS: dict[str, Callable[..., Any]] = {
    **{f"relax.{name}": _of_values(getattr(np, name)) for name in _NUMPY},
    **dict.fromkeys(("relax.reshape", "relax.flatten", "relax.expand_dims", "relax.squeeze"), _reshape),
    "relax.permute_dims": _permute,
    "relax.broadcast_to": _broadcast,
    "relax.strided_slice": _slice,
    "relax.slice_scatter": _slice_scatter,
    "relax.nn.pad": _pad,
    "relax.take": _take,
    "relax.astype": lambda call, x: x,  # the result is cast to the call's dtype in any case
    "relax.rsqrt": lambda call, x: 1 / np.sqrt(x),
    **{f"relax.{name}": _reduction(getattr(np, name)) for name in _REDUCTIONS},
    "relax.full": lambda call, value: np.full([int(d) for d in call.ty.shape], value),
}
_FLOAT_ONLY = {
    *(
        f"relax.{name}"
        for name in ("divide", "mean", "sqrt", "rsqrt", "exp", "log", "tanh", "sin", "cos", "floor", "ceil")
    ),
    *(f"relax.{name}" for name in ("isnan", "isinf", "isfinite")),
}
_GROWTH = 1 << 20
"""Bytes by which a folded result may exceed its arguments; larger results are cheaper to compute than to store."""


@relax.expr_functor.mutator
class _Folder(relax.PyExprMutator):
    """Replaces calls on constants by their values; ``names`` are the constants' names by address."""

    def __init__(self, mod: tvm.IRModule, names: Names) -> None:
        super().__init__(mod)
        self.names = names
        self.constants: list[Any] = []  # kept alive, since an address is valid only while its constant lives
        self.filled: dict[Any, relax.Expr] = {}

    def visit_call_(self, call: relax.Call) -> relax.Expr:
        call = self.visit_expr_post_order(call)
        operator = call.op.name if isinstance(call.op, tvm.ir.Op) else ""
        if copied_to(call) and (copied := self._constant(call.args[1].fields[0])) is not None:
            return copied
        if operator not in _FUNCTIONS or not isinstance(call.ty, relax.TensorType):
            return call
        arguments = [self._constant(a) for a in call.args if isinstance(a.ty, relax.TensorType)]
        if not arguments or any(a is None for a in arguments) or static_shape(call) is None:
            return call
        return self._fold(operator, call, arguments)

    def _constant(self, expr: relax.Expr) -> Any:
        if isinstance(expr, relax.Var):
            expr = self.lookup_binding(expr)
        return expr if isinstance(expr, tvm.ir.GenericConst) and isinstance(expr.ty, relax.TensorType) else None

    def _fold(self, operator: str, call: relax.Call, arguments: list[Any]) -> relax.Expr:
        values = [a.value.numpy() for a in arguments]
        supported = _SUPPORTED.get(operator)
        if supported is not None and not supported(call, *values):
            return call
        if operator in _FLOAT_ONLY and not all(v.dtype.kind == "f" for v in values):
            return call  # numpy divides integers differently
        dtype = call.ty.dtype.dtype
        with np.errstate(all="ignore"):
            result = np.ascontiguousarray(_FUNCTIONS[operator](call, *values)).astype(dtype, copy=False)
        result = result.reshape([int(d) for d in call.ty.shape])
        if result.nbytes > sum(v.nbytes for v in values) + _GROWTH:
            return call
        filled = (values[0].tobytes(), str(dtype), result.shape) if operator == "relax.full" else None
        if filled in self.filled:
            return self.filled[filled]
        folded = relax.const(tvm.runtime.tensor(result))
        if filled is not None:
            self.filled[filled] = folded
        name = next((self.names[data_address(a)] for a in arguments if data_address(a) in self.names), None)
        if name is not None:
            self.names[data_address(folded)] = f"{name}.{operator.removeprefix('relax.')}"
        self.constants.append(folded)
        return folded


def fold_parameters(mod: tvm.IRModule, names: Names) -> tuple[tvm.IRModule, list[Any]]:
    """Fold `main`'s calls of common operators on constants; return the module and the new constants.

    TVM's ``FoldConstant`` compiles each PrimFunc for this, in about 0.1 s each: 20 s for the batch normalisations of
    densenet121. Calls of other operators are left to it.

    ``names`` maps `data_address` to the names of constants. New constants are added, named after their first named argument.
    The caller must keep them alive while their addresses are used.
    """
    folder = _Folder(mod, names)
    result = mod.clone()
    result.update_func(mod.get_global_var("main"), folder.visit_expr(mod["main"]))
    return relax.transform.CanonicalizeBindings()(result), folder.constants
