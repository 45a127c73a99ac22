"""Convolutions of half precision on GPUs as the tensor cores compute them: with sums in float32, and channels last."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import tvm
from tvm import relax

from tvm_frontends.imported_model import data_address

from ..ir.tensor_types import dtype_of, static_shape
from .fold_parameters import Names, fold_parameters
from .kernel_libraries.rewrite import Rewriter, constant_value, operation

HALF = ("float16", "bfloat16")
_LAYOUTS = ("NCHW", "OIHW", "NCHW")


def prepare_half_convolutions(mod: tvm.IRModule, names: Names) -> tuple[tvm.IRModule, list[Any]]:
    """Undo casts to float32 around convolutions, and convert convolutions of half precision to NHWC.

    A convolution whose operands are cast from half precision to float32 and whose result is cast back is one of half
    precision with sums in float32. cuDNN's kernels for tensor cores read channels last; for tensors in NCHW it transposes
    them through a workspace. In float32, cuDNN's kernels read NCHW, so these convolutions keep it.

    Parameters
    ----------
    mod : tvm.IRModule
    names : dict of int to str
        Names of constants by address; the names of new constants are added.

    Returns
    -------
    tvm.IRModule
    list
        Constants to keep alive, since `data_address` is valid only while a constant lives.
    """
    narrow = _Narrow(mod, names)
    mod = narrow.run()
    if not _has_half_convolutions(mod):
        return mod, narrow.constants

    def layouts(call: Any) -> Mapping[str, list[str]]:
        if operation(call) == "nn.conv2d_transpose":  # TVM legalises it in NCHW only
            return {"relax.nn.conv2d_transpose": ["NCHW", "IOHW"]}
        return {"relax.nn.conv2d": ["NHWC", "OHWI"]} if _converts(call) else {}

    changed = relax.transform.ConvertLayout({}, layout_cb=layouts)(_PositiveAxes(mod).run())
    changed, kept = fold_parameters(changed, names)
    cleanup = [relax.transform.CanonicalizeBindings(), relax.transform.DeadCodeElimination()]
    return tvm.transform.Sequential(cleanup)(changed), [*narrow.constants, *kept]


class _PositiveAxes(Rewriter):
    """Counts the axes of ``squeeze`` from the front: TVM's ConvertLayout (0.27) fails on negative ones."""

    operators = ("squeeze",)

    def visit(self, variable: Any, value: Any) -> Any:
        """Rewrite a squeeze that names its axes."""
        if operation(value) != "squeeze" or value.attrs.axis is None:
            return super().visit(variable, value)
        rank = int(value.args[0].ty.ndim)
        return self.emit(relax.op.squeeze(self.value(value.args[0]), [int(axis) % rank for axis in value.attrs.axis]))


class _Narrow(Rewriter):
    """Computes ``astype(conv2d(astype(x), weights) + bias, half)`` in half precision, if weights and bias are of it."""

    operators = ("nn.conv2d",)

    def __init__(self, mod: tvm.IRModule, names: Names) -> None:
        super().__init__(mod)
        self.names = names
        self.constants: list[Any] = []

    def visit(self, variable: Any, value: Any) -> Any:
        """Rewrite a cast to half precision behind a convolution."""
        if operation(value) == "astype" and dtype_of(value) in HALF:
            narrowed = self._narrowed(value.args[0], dtype_of(value))
            if narrowed is not None:
                return narrowed
        return super().visit(variable, value)

    def _narrowed(self, expr: Any, dtype: str) -> Any:
        call, bias = self.defined(expr), None
        if operation(call) == "add":
            bias = self._exact(call.args[1], dtype)
            if bias is None or len(self.uses[self.resolve(expr)]) != 1:
                return None
            expr = call.args[0]
            call = self.defined(expr)
        if operation(call) != "nn.conv2d" or len(self.uses[self.resolve(expr)]) != 1 or dtype_of(call) != "float32":
            return None
        data, weights = self._uncast(call.args[0], dtype), self._exact(call.args[1], dtype)
        if data is None or weights is None:
            return None
        attrs = call.attrs
        layouts = {name: str(getattr(attrs, name)) for name in ("data_layout", "kernel_layout", "out_layout")}
        numbers = {name: [int(n) for n in getattr(attrs, name)] for name in ("strides", "padding", "dilation")}
        result = self.emit(
            relax.op.nn.conv2d(data, weights, **numbers, groups=int(attrs.groups), **layouts, out_dtype=dtype)
        )
        return result if bias is None else self.emit(relax.op.add(result, bias))

    def _uncast(self, expr: Any, dtype: str) -> Any:
        """Return what was cast from ``dtype``, or None."""
        call = self.defined(expr)
        cast = operation(call) == "astype" and dtype_of(call.args[0]) == dtype
        return self.value(call.args[0]) if cast else None

    def _exact(self, expr: Any, dtype: str) -> Any:
        """Return an operand in ``dtype`` if that changes no value, else None."""
        source = self.resolve(expr)
        value = constant_value(source)
        if value is None:
            return self._uncast(expr, dtype)
        narrow = value.astype(np.dtype(dtype))  # numpy knows bfloat16 by ml_dtypes, which TVM imports
        if not np.array_equal(narrow.astype(value.dtype), value):
            return None
        result = relax.const(tvm.runtime.tensor(np.ascontiguousarray(narrow)))
        if (name := self.names.get(data_address(source))) is not None:
            self.names[data_address(result)] = name
        self.constants.append(result)
        return result


def _has_half_convolutions(mod: tvm.IRModule) -> bool:
    calls: list[Any] = []
    relax.analysis.post_order_visit(mod["main"], lambda expr: calls.append(expr) if _converts(expr) else None)
    return bool(calls)


def _converts(call: Any) -> bool:
    if operation(call) != "nn.conv2d" or {dtype_of(call), *map(dtype_of, call.args)} - set(HALF):
        return False
    attrs = call.attrs
    layouts = (str(attrs.data_layout), str(attrs.kernel_layout), str(attrs.out_layout) or "NCHW")
    return layouts == _LAYOUTS and static_shape(call) is not None
