"""Which operators cuBLASLt and cuDNN compute, each with bias and activation where these follow."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from math import prod
from typing import Any

import numpy as np

from ...importers.model import data_address
from ..registry import KernelSet, Names
from ..rewrite import Rewriter, constant_value, is_float32, operation, shape_of

ACTIVATIONS = {"nn.conv2d": {"nn.relu": "relu"}, "matmul": {"nn.relu": "relu", "nn.gelu_tanh": "gelu_tanh"}}
"""What each can compute on the way out: cuBLASLt's GELU is the approximation by tanh."""


@dataclass
class Epilogue:
    """What follows a product: ``end`` is the last value, ``inside`` are those before it."""

    end: Any
    inside: list[Any] = field(default_factory=list)
    weights: Any = None  # with the factors that follow, where there are any
    bias: Any = None
    activation: str = ""


class Claimer(Rewriter):
    """Replaces float32 products and convolutions (NCHW) by calls of kernels.

    A factor for each channel goes into constant weights, a constant summand becomes the bias. The call stands where the last
    of these stood.
    """

    def __init__(self, mod: Any, kernels: KernelSet, names: Names) -> None:
        super().__init__(mod)
        self.kernels, self.names = kernels, names
        self.inside: set[Any] = set()
        self.ends: dict[Any, Callable[[], Any]] = {}

    def visit(self, variable: Any, value: Any) -> Any:
        """Rewrite one binding; None for values that no longer exist outside a kernel."""
        name = operation(value)
        if variable not in self.inside and variable not in self.ends:
            describe = {"nn.conv2d": _describe_convolution, "matmul": _describe_matmul}.get(name)
            kernel = describe(value) if describe else None
            if kernel is not None:
                self._begin(variable, value, kernel)
        if variable in self.ends:
            return self.emit(self.ends[variable]())
        return None if variable in self.inside else super().visit(variable, value)

    def _begin(self, variable: Any, call: Any, kernel: dict[str, Any]) -> None:
        epilogue = self._epilogue(variable, call)
        self.ends[epilogue.end] = lambda: self._call(call, kernel, epilogue)
        self.inside.update(epilogue.inside)

    def _call(self, call: Any, kernel: dict[str, Any], epilogue: Epilogue) -> Any:
        name = operation(call)
        weights = self.resolve(call.args[1])
        arguments = [self.value(call.args[0]), self.value(weights)]
        if epilogue.weights is not None:
            arguments[1] = self._constant(epilogue.weights, weights)
        if epilogue.bias is not None:
            arguments.append(self._constant(epilogue.bias, weights))
        kernel.update(bias=epilogue.bias is not None, activation=epilogue.activation)
        out = shape_of(call) or ()
        depth = prod((shape_of(weights) or ())[1:]) if name == "nn.conv2d" else (shape_of(call.args[0]) or ())[-1]
        flops = prod(out) * (2 * depth + (epilogue.bias is not None) + bool(epilogue.activation))
        words = [kernel["kind"], *(["bias"] if kernel["bias"] else []), *filter(None, [epilogue.activation])]
        return self.kernels.call("_".join(words), kernel, arguments, epilogue.end.ty, flops)

    def _constant(self, value: Any, source: Any) -> Any:
        name = self.names.get(data_address(source)) if constant_value(source) is not None else None
        return self.kernels.constant(value, None if name is None else f"{name}.folded", self.names)

    def _epilogue(self, start: Any, call: Any) -> Epilogue:
        result = Epilogue(start)
        axis = 1 if operation(call) == "nn.conv2d" else len(shape_of(call) or ()) - 1
        weights = constant_value(self.resolve(call.args[1]))
        while not result.activation:
            users = self.uses[result.end]
            if len(users) != 1 or users[0] is None or users[0] in self.ends:
                break
            if not self._take(result, self.definitions[users[0]], operation(call), axis, weights):
                break
            result.inside.append(result.end)
            result.end = users[0]
        return result

    def _take(self, result: Epilogue, user: Any, product: str, axis: int, weights: Any) -> bool:
        """Whether the operator that follows can be computed with the product; if so, it is noted."""
        if not is_float32(user) or shape_of(user) != shape_of(result.end):
            return False
        name = operation(user)
        if name in ACTIVATIONS[product]:
            # cuDNN fuses an activation with a bias only.
            if product == "nn.conv2d" and result.bias is None:
                return False
            result.activation = ACTIVATIONS[product][name]
            return True
        if name not in ("add", "multiply"):
            return False
        left = self.resolve(user.args[0]).same_as(self.resolve(result.end))
        vector = _per_channel(constant_value(self.resolve(user.args[1 if left else 0])), shape_of(user) or (), axis)
        if vector is None:
            return False
        if name == "add":
            result.bias = vector if result.bias is None else result.bias + vector
            return True
        if weights is None or (product == "matmul" and weights.ndim != 2):
            return False
        along = vector.reshape(-1, 1, 1, 1) if product == "nn.conv2d" else vector
        result.weights = np.ascontiguousarray((weights if result.weights is None else result.weights) * along)
        result.bias = None if result.bias is None else result.bias * vector
        return True


def _per_channel(value: Any, shape: tuple[int, ...], axis: int) -> Any:
    """The element for each channel of a constant that is the same for everything else, else None."""
    if value is None or value.dtype != np.float32 or value.ndim > len(shape) or not np.isfinite(value).all():
        return None
    full = value.reshape((1,) * (len(shape) - value.ndim) + value.shape)
    if any(extent != 1 for k, extent in enumerate(full.shape) if k != axis):
        return None
    return np.ascontiguousarray(np.broadcast_to(full.reshape(-1), (shape[axis],)))


def _describe_convolution(call: Any) -> dict[str, Any] | None:
    attrs = call.attrs
    shapes = [shape_of(expr) for expr in (call.args[0], call.args[1], call)]
    if not all(is_float32(expr) for expr in (*call.args, call)):
        return None
    if (
        str(attrs.data_layout) != "NCHW"
        or str(attrs.kernel_layout) != "OIHW"
        or str(attrs.out_layout) not in ("", "NCHW")
    ):
        return None
    top, left, bottom, right = (int(p) for p in attrs.padding)
    if (top, left) != (bottom, right):
        return None  # cuDNN pads both ends alike
    return {
        "kind": "conv2d",
        "dtype": "float32",
        **dict(zip(("input", "weights", "output"), (list(shape or ()) for shape in shapes), strict=True)),
        "padding": [top, left],
        "strides": [int(s) for s in attrs.strides],
        "dilation": [int(d) for d in attrs.dilation],
        "groups": int(attrs.groups),
    }


def _describe_matmul(call: Any) -> dict[str, Any] | None:
    if not all(is_float32(expr) for expr in (*call.args, call)):
        return None
    a, b = shape_of(call.args[0]) or (), shape_of(call.args[1]) or ()
    if len(a) < 2 or len(b) < 2:
        return None
    described = {"kind": "matmul", "dtype": "float32", "n": b[-1], "k": a[-1], "one_b": False}
    if len(b) == 2:  # one matrix for all: one product with as many rows
        return {**described, "batch": 1, "m": prod(a[:-1])}
    if a[:-2] != b[:-2]:
        return None
    return {**described, "batch": prod(a[:-2]), "m": a[-2]}
