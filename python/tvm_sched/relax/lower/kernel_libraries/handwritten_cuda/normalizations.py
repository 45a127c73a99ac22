"""Normalisations and softmax of rows on GPUs as one kernel each: claims, and CUDA source (`rows.cuh`)."""

from __future__ import annotations

from collections.abc import Mapping
from math import isfinite, prod
from typing import Any, NamedTuple

from tvm import relax

from ....ir.tensor_types import dtype_of, static_shape
from ..kernel_library import KernelSet
from ..rewrite import Rewriter, is_tensor_of, operation
from .attention_source import ELEMENTS, describe_launch

HEADER = "rows.cuh"
_HALF = ("float16", "bfloat16")
_THREADS = 256
_MOST_ROWS = (1 << 31) - 1


class Norm(NamedTuple):
    """A normalisation of the last axis."""

    kind: str
    source: Any
    vectors: tuple[Any, ...]
    """Weight and bias, if present, with the length of the last axis."""
    epsilon: float
    end: Any
    """The result."""


class RowClaimer(Rewriter):
    """Replaces row operators in half precision, for which TVM generates separate casts, and decomposed RMS norms."""

    def __init__(self, mod: Any, kernels: KernelSet, settings: dict[str, Any]) -> None:
        super().__init__(mod)
        self.kernels = kernels
        self.settings = settings
        self.norms: dict[Any, Norm] | None = None

    def visit(self, variable: Any, value: Any) -> Any:
        """Rewrite one binding."""
        if self.norms is None:
            each = (self._find(v, call) for v, call in self.definitions.items() if isinstance(call, relax.Call))
            self.norms = {norm.end: norm for norm in each if norm is not None and self._takes(norm)}
        if variable in self.norms:
            return self.emit(self._call(self.norms[variable]))
        return super().visit(variable, value)

    def _find(self, variable: Any, call: Any) -> Norm | None:
        name = operation(call)
        if name == "multiply":
            return self._written_out(variable, call)
        if name not in ("nn.layer_norm", "nn.rms_norm", "nn.softmax") or dtype_of(call) not in _HALF:
            return None
        rank = len(static_shape(call) or ())
        axes = [call.attrs.axis] if name == "nn.softmax" else call.attrs.axes
        if [int(axis) % rank for axis in axes] != [rank - 1]:
            return None
        if name == "nn.layer_norm" and not (call.attrs.center and call.attrs.scale):
            return None
        epsilon = 0.0 if name == "nn.softmax" else float(call.attrs.epsilon)
        return Norm(name.removeprefix("nn."), call.args[0], tuple(call.args[1:]), epsilon, variable)

    def _written_out(self, variable: Any, call: Any) -> Norm | None:
        """Match ``x * rsqrt(mean(x * x) + epsilon)``, optionally followed by a cast and a product with a weight."""
        for value, factor in ((call.args[0], call.args[1]), (call.args[1], call.args[0])):
            epsilon = self._inverse_root(factor, self.resolve(value))
            if epsilon is not None:
                break
        else:
            return None
        source: Any = self.resolve(value)
        cast: Any = self.defined(source)
        if operation(cast) == "astype" and dtype_of(cast.args[0]) in _HALF:
            source = cast.args[0]
        width = (static_shape(call) or ())[-1]
        end, weights = variable, tuple[Any, ...]()
        while not weights and len(users := self.uses[end]) == 1 and users[0] is not None:
            user = self.definitions[users[0]]
            if operation(user) == "multiply" and (weight := self._weight(user, end, width)) is not None:
                weights = (weight,)
            elif operation(user) != "astype" or dtype_of(user) not in ELEMENTS:
                break
            end = users[0]
        return Norm("rms_norm", source, weights, epsilon, end)

    def _inverse_root(self, expr: Any, x: Any) -> float | None:
        """Return the epsilon of ``rsqrt(mean(x * x) + epsilon)`` along the last axis; None for any other expression."""
        root: Any = self.defined(expr)
        total: Any = self.defined(root.args[0]) if operation(root) == "rsqrt" else None
        mean: Any = self.defined(total.args[0]) if operation(total) == "add" else None
        epsilon = None if mean is None else self.number(total.args[1])
        if epsilon is None or operation(mean) != "mean" or not mean.attrs.keepdims or mean.attrs.axis is None:
            return None
        rank = len(static_shape(mean) or ())
        square: Any = self.defined(mean.args[0])
        squared = operation(square) == "multiply" and all(self.resolve(a).same_as(x) for a in square.args)
        return epsilon if squared and [int(a) % rank for a in mean.attrs.axis] == [rank - 1] else None

    def _weight(self, product: Any, value: Any, width: int) -> Any:
        """Return the other factor of a product with a value if it is a vector along the last axis, else None."""
        factors = list(product.args)
        for factor, other in (factors, factors[::-1]):
            shape = static_shape(other)
            if self.resolve(factor).same_as(value) and shape is not None and shape[-1:] == (width,):
                return other if prod(shape) == width and dtype_of(other) in ELEMENTS else None
        return None

    def _takes(self, norm: Norm) -> bool:
        shape = static_shape(norm.source) or ()
        whole = all(is_tensor_of(expr, tuple(ELEMENTS)) for expr in (norm.source, norm.end, *norm.vectors))
        rows = prod(shape[:-1])
        one_type = len({dtype_of(vector) for vector in norm.vectors}) <= 1
        return whole and one_type and shape == static_shape(norm.end) and rows <= _MOST_ROWS and isfinite(norm.epsilon)

    def _call(self, norm: Norm) -> Any:
        shape = static_shape(norm.source) or ()
        kernel = {
            "kind": norm.kind,
            "dtype": dtype_of(norm.source),
            "result_dtype": dtype_of(norm.end),
            "vector_dtype": dtype_of(norm.vectors[0]) if norm.vectors else None,
            "vectors": len(norm.vectors),
            "rows": prod(shape[:-1]),
            "width": shape[-1],
            "epsilon": norm.epsilon,
            **self.settings,
        }
        arguments = [self.value(expr) for expr in (norm.source, *norm.vectors)]
        return self.kernels.call(norm.kind, kernel, arguments, norm.end.ty, 8 * prod(shape))


def render(symbol: str, kernel: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
    """Return the source of a kernel, and its launches for ``cpp/kernels/cuda/image.h``."""
    element, result = ELEMENTS[kernel["dtype"]], ELEMENTS[kernel["result_dtype"]]
    count = kernel["vectors"]
    vector = ELEMENTS[kernel["vector_dtype"]] if count else "float"
    names = ["weight", "bias"][:count]
    parameters = [f"const {element}* in", *(f"const {vector}* {name}" for name in names), f"{result}* out"]
    if kernel["kind"] == "softmax":
        call = f"softmax<{element}, {result}, {kernel['width']}>(in, out)"
    else:
        flags = [kernel["kind"] == "layer_norm", count > 0, count > 1]
        types = ", ".join([element, vector, result, str(kernel["width"]), *(str(flag).lower() for flag in flags)])
        vectors = ", ".join([*names, *["nullptr"] * (2 - count)])
        call = f"normalise<{types}>(in, {vectors}, out, static_cast<float>({kernel['epsilon']!r}))"
    source = (
        f'extern "C" __global__ void __launch_bounds__({_THREADS}) {symbol}_kernel({", ".join(parameters)}) {{\n'
        f"  tvm_sched::{call};\n}}\n"
    )
    pointers = [["tensor", k] for k in range(2 + count)]
    launch = describe_launch(f"{symbol}_kernel", [kernel["rows"], 1, 1], _THREADS, pointers)
    return source, {"tensors": 2 + count, "workspaces": [], "launches": [launch]}
