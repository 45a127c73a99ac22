"""Claim products and convolutions for cuBLASLt and cuDNN, fused with following bias and activation."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from math import prod
from typing import Any

import numpy as np
from tvm import relax

from ....ir.attributes import get_compile_target
from ....ir.tensor_types import dtype_of, static_shape
from ....toolchain.compile_target import TF32
from ..kernel_library import KernelSet, Names
from ..memory_views import View, ViewRewriter
from ..rewrite import constant_value, is_tensor_of, operation

ACTIVATIONS = {"nn.conv2d": {"nn.relu": "relu"}, "matmul": {"nn.relu": "relu", "nn.gelu_tanh": "gelu_tanh"}}
"""Activations that the libraries can fuse; cuBLASLt's GELU is the approximation by tanh."""
TYPES = ("float32", "float16", "bfloat16")
RESULTS = {
    "float32": ("float32",), "float16": ("float16", "float32"), "bfloat16": ("bfloat16", "float32"), "int8": ("int32",),
}  # fmt: skip
"""Result types of a product, by the type of its operands."""

LAYOUTS = (("NCHW", "OIHW", "NCHW"), ("NHWC", "OHWI", "NHWC"))
"""Layouts of input, weights and output of a convolution."""


@dataclass
class Epilogue:
    """The operators fused to a product: ``end`` is the last value, ``inside`` are the values before it."""

    end: Any
    inside: list[Any] = field(default_factory=list)
    weights: Any = None  # multiplied by the following factors; None if there are none
    bias: Any = None  # of constant summands
    given: Any = None  # a bias that is computed or an argument; then there are no constant summands
    residual: Any = None  # another tensor that is added
    activation: str = ""


class Claimer(ViewRewriter):
    """Replaces products and convolutions in float32, float16 and bfloat16 by calls of kernels, with sums in float32.

    A factor for each channel is folded into constant weights, and a constant summand becomes the bias. The call takes the
    place of the last fused operator. Convolutions are in NCHW or NHWC. Transposed operands of products are read in place.
    """

    types = TYPES
    fuses_depthwise = False
    """Whether what follows a depthwise convolution is fused to it: cuDNN 9 does not."""

    def __init__(self, mod: Any, kernels: KernelSet, names: Names) -> None:
        super().__init__(mod)
        self.kernels, self.names = kernels, names
        self.inside: set[Any] = set()
        self.ends: dict[Any, Callable[[], Any]] = {}

    def visit(self, variable: Any, value: Any) -> Any:
        """Rewrite one binding; None for intermediate values of kernels."""
        name = operation(value)
        if variable not in self.inside and variable not in self.ends:
            describe = {"nn.conv2d": self._describe_convolution, "matmul": self._describe_matmul}.get(name)
            described = describe(value) if describe else None
            if described is not None:
                self._begin(variable, value, *described)
        if variable in self.ends:
            return self.emit(self.ends[variable]())
        return None if variable in self.inside else super().visit(variable, value)

    def _begin(self, variable: Any, call: Any, kernel: dict[str, Any], operands: list[Any]) -> None:
        epilogue = self._epilogue(variable, call)
        self.ends[epilogue.end] = lambda: self._call(call, kernel, operands, epilogue)
        self.inside.update(epilogue.inside)

    def _call(self, call: Any, kernel: dict[str, Any], operands: list[Any], epilogue: Epilogue) -> Any:
        name = operation(call)
        weights = self.resolve(call.args[1])
        arguments = [self.value(operand) for operand in operands]
        if epilogue.weights is not None:
            arguments[1] = self._constant(epilogue.weights, dtype_of(weights), weights)
        if epilogue.bias is not None:
            arguments.append(self._constant(epilogue.bias, dtype_of(call), weights))
        if epilogue.residual is not None:
            arguments.append(self.value(epilogue.residual))
            kernel["residual"] = True
        if epilogue.given is not None:
            arguments.insert(2, self.value(epilogue.given))
        has_bias = epilogue.bias is not None or epilogue.given is not None
        kernel.update(bias=has_bias, activation=epilogue.activation)
        out = static_shape(call) or ()
        source, filters = static_shape(call.args[0]) or (), static_shape(weights) or ()
        depth = prod(filters[1:]) if name == "nn.conv2d" else source[-1]
        steps = {"bias": has_bias, "add": epilogue.residual is not None}
        steps[epilogue.activation] = bool(epilogue.activation)
        flops = prod(out) * (2 * depth + sum(steps.values()))
        words = [kernel["kind"], *(step for step, fused in steps.items() if fused)]
        return self.kernels.call("_".join(words), kernel, arguments, epilogue.end.ty, flops)

    def _constant(self, value: Any, dtype: str, source: Any) -> Any:
        value = np.ascontiguousarray(value.astype(dtype))  # numpy knows bfloat16 by ml_dtypes, which TVM imports
        return self.kernels.derived_constant(value, source, self.names, ".folded")

    def _epilogue(self, start: Any, call: Any) -> Epilogue:
        result = Epilogue(start)
        last = operation(call) == "matmul" or str(call.attrs.data_layout) == "NHWC"
        axis = len(static_shape(call) or ()) - 1 if last else 1
        weights = constant_value(self.resolve(call.args[1]))
        while not result.activation:
            users = self.uses[result.end]
            if len(users) != 1 or users[0] is None or users[0] in self.ends or users[0] in self.inside:
                break
            if not self._take(result, self.definitions[users[0]], operation(call), axis, weights):
                break
            result.inside.append(result.end)
            result.end = users[0]
        return result

    def _take(self, result: Epilogue, user: Any, product: str, axis: int, weights: Any) -> bool:
        """Fuse the next operator into ``result`` if the library can compute it; return whether it can."""
        same_type = _have_one_type(user, result.end) and static_shape(user) == static_shape(result.end)
        if dtype_of(user) not in TYPES or not same_type:
            return False
        name = operation(user)
        if name in ACTIVATIONS[product]:
            # cuDNN fuses an activation with a bias only.
            if product == "nn.conv2d" and result.bias is None and result.given is None:
                return False
            result.activation = ACTIVATIONS[product][name]
            return True
        if name not in ("add", "subtract", "multiply", "divide"):
            return False
        left = self.resolve(user.args[0]).same_as(self.resolve(result.end))
        other = self.resolve(user.args[1 if left else 0])
        vector = _per_channel(constant_value(other), static_shape(user) or (), axis)
        depthwise = product == "nn.conv2d" and weights is not None and weights.shape[1 if axis == 1 else 3] == 1
        if depthwise and not self.fuses_depthwise:
            return False  # both take 48 us on an H100, the convolution alone 20 us
        if vector is None:
            if name == "add" and self._is_bias(result, other, static_shape(user) or (), axis):
                result.given = other
                return True
            return name == "add" and product == "nn.conv2d" and self._add_tensor(result, other)
        if result.residual is not None or result.given is not None or (name in ("subtract", "divide") and not left):
            return False
        if name in ("subtract", "divide"):
            if name == "divide" and not vector.all():
                return False
            name, vector = ("add", -vector) if name == "subtract" else ("multiply", 1 / vector)
        if name == "add":
            result.bias = vector if result.bias is None else result.bias + vector
            return True
        if weights is None or (product == "matmul" and weights.ndim != 2):
            return False
        along = vector.reshape(-1, 1, 1, 1) if product == "nn.conv2d" else vector
        result.weights = (weights.astype(np.float32) if result.weights is None else result.weights) * along
        result.bias = None if result.bias is None else result.bias * vector
        return True

    def _is_bias(self, result: Epilogue, other: Any, shape: tuple[int, ...], axis: int) -> bool:
        """Whether a variable that is added has one number per channel, and no other summand came before it."""
        wanted = (1,) * axis + (shape[axis],) + (1,) * (len(shape) - axis - 1)
        own = static_shape(other) if isinstance(other, relax.Var) else None
        before = result.bias is not None or result.given is not None or result.residual is not None
        fits = own is not None and len(own) <= len(shape) and (1,) * (len(shape) - len(own)) + own == wanted
        return fits and own != shape and not before and _have_one_type(other, result.end)

    def _add_tensor(self, result: Epilogue, other: Any) -> bool:
        """Fuse the addition of another tensor of the same shape and type; cuDNN does so with a bias only."""
        same = static_shape(other) == static_shape(result.end) and _have_one_type(other, result.end)
        if (
            result.residual is not None
            or (result.bias is None and result.given is None)
            or not same
            or not isinstance(other, relax.Var)
        ):
            return False
        result.residual = other
        return True

    def _describe_convolution(self, call: Any) -> tuple[dict[str, Any], list[Any]] | None:
        attrs = call.attrs
        layouts = (str(attrs.data_layout), str(attrs.kernel_layout), str(attrs.out_layout) or "NCHW")
        layout = layouts[0]
        if layouts not in LAYOUTS or not is_tensor_of(call, TYPES) or not _have_one_type(*call.args, call):
            return None
        top, left, bottom, right = (int(p) for p in attrs.padding)
        if (top, left) != (bottom, right):
            return None  # cuDNN pads both ends by the same amount
        channels_of_group = (static_shape(call.args[1]) or (0, 0, 0, 0))[1 if layout == "NCHW" else 3]
        if channels_of_group == 1 and int(attrs.groups) > 1 and dtype_of(call) == "float32":
            return None  # on an H100, TVM's kernel with its epilogue takes 19 us, cuDNN's without one 21 to 28 us
        shapes = [static_shape(expr) or () for expr in (call.args[0], call.args[1], call)]
        if layout == "NHWC":
            shapes = [(shape[0], shape[3], *shape[1:3]) for shape in shapes]
        kernel = {
            "kind": "conv2d",
            **self._types(call.args[0]),
            "layout": layout,
            **dict(zip(("input", "weights", "output"), map(list, shapes), strict=True)),
            "padding": [top, left],
            "strides": [int(s) for s in attrs.strides],
            "dilation": [int(d) for d in attrs.dilation],
            "groups": int(attrs.groups),
            "residual": False,
        }
        return kernel, list(call.args)

    def _describe_matmul(self, call: Any) -> tuple[dict[str, Any], list[Any]] | None:
        a, b = (static_shape(e) or () for e in call.args)
        if len(a) < 2 or len(b) < 2 or not _have_one_type(*call.args) or not is_tensor_of(call, (*TYPES, "int32")):
            return None
        if dtype_of(call) not in RESULTS.get(dtype_of(call.args[0]), ()) or 0 in (*a, *b):
            return None
        sizes = {"n": b[-1], "k": a[-1]}
        if len(b) == 2:  # one matrix for the whole batch: one product with more rows
            batch, rows = 1, prod(a[:-1])
        elif a[:-2] == b[:-2]:
            batch, rows = prod(a[:-2]), a[-2]
        else:
            return None
        first = self._matrix(call.args[0], (batch, rows, a[-1]))
        second = self._matrix(call.args[1], (batch, *b[-2:]))
        kernel = {
            "kind": "matmul", **self._types(call.args[0]), "result_dtype": dtype_of(call),
            "batch": batch, "m": rows, **sizes, "a": _matrix_layout(first), "b": _matrix_layout(second),
        }  # fmt: skip
        if kernel["dtype"] == "int8" and not _rows_are_aligned(kernel):
            return None
        return kernel, [first.base, second.base]

    def _types(self, operand: Any) -> dict[str, Any]:
        dtype = dtype_of(operand)
        return {"dtype": dtype, "tf32": dtype == "float32" and get_compile_target(self.mod).precision == TF32}

    def _matrix(self, expr: Any, shape: tuple[int, ...]) -> View:
        """Return a batch of matrices as a view if the library can read it in place, else as a dense value."""
        view = self.view(expr, shape)
        usable = view is not None and view.scale == 1 and view.offset == 0 and view.has_matrices
        return view if view is not None and usable else self.whole(expr, shape)


def _matrix_layout(view: View) -> dict[str, Any]:
    """Return the layout of a matrix for the library's description."""
    batch, row, column = view.strides
    transposed = column != 1 or row < view.shape[2]
    return {
        "transposed": transposed,
        "stride": column if transposed else row,
        "batch_stride": batch if view.shape[0] > 1 else 0,
    }


def _rows_are_aligned(kernel: dict[str, Any]) -> bool:
    """Whether rows of 8-bit numbers begin at multiples of 4 bytes, which cuBLASLt requires."""
    numbers = [kernel["n"], kernel["k"], *(kernel[m][name] for m in "ab" for name in ("stride", "batch_stride"))]
    return all(number % 4 == 0 for number in numbers)


def _have_one_type(*exprs: Any) -> bool:
    return len({dtype_of(expr) for expr in exprs}) == 1


def _per_channel(value: Any, shape: tuple[int, ...], axis: int) -> Any:
    """Return one float32 number per channel of a constant that varies only along the channels, else None."""
    if value is None or str(value.dtype) not in TYPES or value.ndim > len(shape):
        return None
    full = value.reshape((1,) * (len(shape) - value.ndim) + value.shape).astype(np.float32)
    if any(extent != 1 for k, extent in enumerate(full.shape) if k != axis) or not np.isfinite(full).all():
        return None
    return np.ascontiguousarray(np.broadcast_to(full.reshape(-1), (shape[axis],)))
