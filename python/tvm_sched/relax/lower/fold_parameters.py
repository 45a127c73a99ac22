"""Constant folding of operators that depend on parameters only, with numpy, before anything is compiled."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import tvm
from tvm import relax

from tvm_frontends.imported_model import data_address

from ..ir.tensor_types import static_shape

Names = dict[int, str]


def _axes(call: Any) -> tuple[int, ...] | None:
    axis = call.attrs.axis
    return None if axis is None else tuple(int(a) for a in axis)


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
    """Begin, end and step of a slice that is written to; nothing where they are no constants, or count from the end."""
    found = [getattr(number, "value", None) for number in call.args[2:]]
    known = [int(number) for number in found if isinstance(number, (int, tvm.tirx.IntImm))]
    return known if len(known) == len(found) == 3 and min(known) >= 0 < known[2] else []


def _numbers(call: Any) -> list[list[int]]:
    """Axes, begins, ends and, where there are some, steps of a slice; nothing where they are no constants or go back."""
    parts = call.args[1:]
    known = all(isinstance(p, relax.Tuple) and all(isinstance(f, tvm.tirx.IntImm) for f in p.fields) for p in parts)
    numbers = [[int(f) for f in part.fields] for part in parts] if known else []
    forward = len(numbers) == 3 or (len(numbers) == 4 and all(step > 0 for step in numbers[3]))
    return numbers if forward else []


def _take(call: Any, x: Any, index: Any) -> Any:
    return np.take(x, index, int(call.attrs.axis), mode="clip")


def _indices_fit(call: Any, x: Any, index: Any) -> bool:
    """Whether a take reads along an axis, at positions that all exist: modes differ for others only."""
    axis = call.attrs.axis
    return axis is not None and bool(((index >= 0) & (index < x.shape[int(axis)])).all())


def _pad(call: Any, x: Any) -> Any:
    widths = [int(width) for width in call.attrs.pad_width]
    return np.pad(x, list(zip(widths[::2], widths[1::2], strict=True)), constant_values=float(call.attrs.pad_value))


_SUPPORTED: dict[str, Callable[..., bool]] = {
    "relax.strided_slice": lambda call, x: bool(_numbers(call)),
    "relax.slice_scatter": lambda call, *_: bool(_places(call)),
    "relax.take": _indices_fit,
    "relax.nn.pad": lambda call, x: str(call.attrs.pad_mode) == "constant",
}
"""Of functions that compute only some calls: which, of a call and the values of its tensors."""
_FUNCTIONS: dict[str, Callable[..., Any]] = {
    "relax.reshape": _reshape,
    "relax.flatten": _reshape,
    "relax.expand_dims": _reshape,
    "relax.squeeze": _reshape,
    "relax.permute_dims": _permute,
    "relax.broadcast_to": _broadcast,
    "relax.strided_slice": _slice,
    "relax.slice_scatter": _slice_scatter,
    "relax.nn.pad": _pad,
    "relax.take": _take,
    "relax.astype": lambda call, x: x,  # the result takes the call's dtype in any case
    "relax.add": lambda call, x, y: x + y,
    "relax.subtract": lambda call, x, y: x - y,
    "relax.multiply": lambda call, x, y: x * y,
    "relax.divide": lambda call, x, y: x / y,
    "relax.maximum": lambda call, x, y: np.maximum(x, y),
    "relax.minimum": lambda call, x, y: np.minimum(x, y),
    "relax.negative": lambda call, x: -x,
    "relax.sqrt": lambda call, x: np.sqrt(x),
    "relax.rsqrt": lambda call, x: 1 / np.sqrt(x),
    "relax.exp": lambda call, x: np.exp(x),
    "relax.log": lambda call, x: np.log(x),
    "relax.tanh": lambda call, x: np.tanh(x),
    "relax.sin": lambda call, x: np.sin(x),
    "relax.cos": lambda call, x: np.cos(x),
    "relax.floor": lambda call, x: np.floor(x),
    "relax.ceil": lambda call, x: np.ceil(x),
    "relax.abs": lambda call, x: np.abs(x),
    "relax.square": lambda call, x: x * x,
    "relax.isnan": lambda call, x: np.isnan(x),
    "relax.isinf": lambda call, x: np.isinf(x),
    "relax.isfinite": lambda call, x: np.isfinite(x),
    "relax.equal": lambda call, x, y: x == y,
    "relax.not_equal": lambda call, x, y: x != y,
    "relax.less": lambda call, x, y: x < y,
    "relax.less_equal": lambda call, x, y: x <= y,
    "relax.greater": lambda call, x, y: x > y,
    "relax.greater_equal": lambda call, x, y: x >= y,
    "relax.logical_and": lambda call, x, y: np.logical_and(x, y),
    "relax.logical_or": lambda call, x, y: np.logical_or(x, y),
    "relax.logical_not": lambda call, x: np.logical_not(x),
    "relax.where": lambda call, condition, x, y: np.where(condition, x, y),
    "relax.full": lambda call, value: np.full([int(d) for d in call.ty.shape], value),
}
_FLOAT_ONLY = {
    *(f"relax.{name}" for name in ("divide", "sqrt", "rsqrt", "exp", "log", "tanh", "sin", "cos", "floor", "ceil")),
    *(f"relax.{name}" for name in ("isnan", "isinf", "isfinite")),
}
_GROWTH = 1 << 20
"""A result may be this many bytes larger than its arguments; larger ones are cheaper to compute than to carry."""


@relax.expr_functor.mutator
class _Folder(relax.PyExprMutator):
    """Replaces calls on constants by their values; ``names`` tells where a constant comes from."""

    def __init__(self, mod: tvm.IRModule, names: Names) -> None:
        super().__init__(mod)
        self.names = names
        self.constants: list[Any] = []  # kept alive: an address names a constant only while the constant lives
        self.filled: dict[Any, relax.Expr] = {}

    def visit_call_(self, call: relax.Call) -> relax.Expr:
        call = self.visit_expr_post_order(call)
        operator = call.op.name if isinstance(call.op, tvm.ir.Op) else ""
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
            return call  # whole numbers divide differently in numpy
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
    """Fold `main`'s calls of common operators on constants.

    TVM's ``FoldConstant`` compiles each PrimFunc for that, some 0.1 s each: 20 s for the batch normalisations of
    densenet121. This does the usual ones in no time and leaves the others to it.

    Parameters
    ----------
    names : dict of int to str
        Name of constants by `data_address`; what is folded is added, named after its first argument.

    Returns
    -------
    mod : tvm.IRModule
    constants : list
        The new constants, to be kept while their addresses are used.
    """
    folder = _Folder(mod, names)
    result = mod.clone()
    result.update_func(mod.get_global_var("main"), folder.visit_expr(mod["main"]))
    return relax.transform.CanonicalizeBindings()(result), folder.constants
