"""Channels last: oneDNN's convolutions are fastest so, and every other operator works on such tensors, too."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from tvm import relax

from ...importers.model import data_address
from ..registry import KernelSet, Names
from ..rewrite import Rewriter, constant_value, is_float32, operation, shape_of, transpose_constant
from .describe import CHANNELS_LAST, channels_last

TO_LAST, TO_FIRST = (0, 2, 3, 1), CHANNELS_LAST
UNARY = {"nn.relu", "sigmoid", "tanh", "nn.gelu", "nn.gelu_tanh", "nn.silu", "exp", "sqrt", "abs", "negative", "clip"}
BINARY = {"add", "subtract", "multiply", "divide", "maximum", "minimum", "power"}


class ChannelsLast(Rewriter):
    """Lets convolutions that oneDNN takes, and what follows them, compute on (N, H, W, C).

    Tensors are transposed where an operator needs them with channels first; local response normalisations, which
    importers take apart, become kernels on the way.
    """

    def __init__(self, mod: Any, kernels: KernelSet, names: Names) -> None:
        super().__init__(mod)
        self.kernels, self.names = kernels, names
        self.last: dict[Any, Any] = {}  # new value with channels last of old variables
        self.rules: dict[str, Callable[[Any], Any]] = {
            "nn.conv2d": self._convolution,
            "nn.max_pool2d": self._pool,
            "nn.avg_pool2d": self._pool,
            "concat": self._concatenation,
            "mean": self._mean,
            "reshape": self._shuffle,
            **dict.fromkeys(UNARY, self._unary),
            **dict.fromkeys(BINARY, self._binary),
        }

    def visit(self, variable: Any, value: Any) -> Any:
        """Rewrite one binding; None where only the value with channels last is known."""
        rule = self.rules.get(operation(value))
        if rule is not None and is_float32(value):
            shape = shape_of(value) or ()
            made = rule(value)
            if made is not None and len(shape) == 4 and shape_of(made) == tuple(shape[k] for k in TO_LAST):
                self.last[variable] = made
                return None
            if made is not None:
                return made
        elif isinstance(value, relax.Var) and self.resolve(value) in self.last:
            self.last[variable] = self.last[self.resolve(value)]
            return None
        return super().visit(variable, value)

    def value(self, expr: Any) -> Any:
        """An old expression with channels first, for operators that know no other."""
        if isinstance(expr, relax.Var) and expr in self.last and self.values.get(expr) is None:
            last = self.last[expr]
            _, height, width, _ = shape_of(last) or (0, 0, 0, 0)
            if height * width == 1:
                self.values[expr] = self.emit(relax.op.reshape(last, shape_of(expr)))
            else:
                self.values[expr] = self.emit(relax.op.permute_dims(last, list(TO_FIRST)))
        return super().value(expr)

    def _known(self, expr: Any) -> bool:
        return isinstance(expr, relax.Var) and expr in self.last

    def _to_last(self, expr: Any) -> Any:
        """An old value of four dimensions, transposed where it is not."""
        if not self._known(expr):
            made = self.emit(relax.op.permute_dims(self.value(expr), list(TO_LAST)))
            if not isinstance(expr, relax.Var):
                return made
            self.last[expr] = made
        return self.last[expr]

    def _convolution(self, call: Any) -> Any:
        if not convolution_fits(self.resolve(call.args[1]), call):
            return None
        attrs = call.attrs
        return self.emit(
            relax.op.nn.conv2d(
                self._to_last(call.args[0]),
                self.resolve(call.args[1]),
                strides=list(attrs.strides),
                padding=list(attrs.padding),
                dilation=list(attrs.dilation),
                groups=int(attrs.groups),
                data_layout="NHWC",
                kernel_layout="OIHW",
                out_layout="NHWC",
            )
        )

    def _pool(self, call: Any) -> Any:
        attrs = call.attrs
        if not self._known(call.args[0]) or str(attrs.layout) != "NCHW" or str(attrs.out_layout) != "NCHW":
            return None
        pool = relax.op.nn.max_pool2d if operation(call) == "nn.max_pool2d" else relax.op.nn.avg_pool2d
        return self.emit(
            pool(
                self._to_last(call.args[0]),
                list(attrs.pool_size),
                list(attrs.strides),
                list(attrs.padding),
                list(attrs.dilation),
                bool(attrs.ceil_mode),
                bool(attrs.count_include_pad),
                layout="NHWC",
                out_layout="NHWC",
            )
        )

    def _unary(self, call: Any) -> Any:
        if not self._known(call.args[0]):
            return None
        arguments = [self._to_last(call.args[0]), *call.args[1:]]
        return self.emit(relax.Call(call.op, arguments, call.attrs, call.ty_args))

    def _binary(self, call: Any) -> Any:
        if operation(call) == "divide":
            normalised = self._local_response(call)
            if normalised is not None:
                return normalised
        if not any(self._known(argument) for argument in call.args) or len(shape_of(call) or ()) != 4:
            return None
        arguments = [self._operand(argument) for argument in call.args]
        if None in [None if a is None else 0 for a in arguments]:
            return None
        return self.emit(relax.Call(call.op, arguments, call.attrs, call.ty_args))

    def _operand(self, expr: Any) -> Any:
        expr = self.resolve(expr)
        value = constant_value(expr)
        if value is not None:
            if value.size == 1:
                return expr
            name = self.names.get(data_address(expr))
            return self.kernels.constant(transpose_constant(value, TO_LAST), name, self.names)
        return self._to_last(expr) if len(shape_of(expr) or ()) == 4 else None

    def _concatenation(self, call: Any) -> Any:
        parts = self.resolve(call.args[0])
        parts = self.definitions.get(parts, parts)
        if not isinstance(parts, relax.Tuple) or int(call.attrs.axis or 0) not in (1, -3):
            return None
        if len(shape_of(call) or ()) != 4 or not any(self._known(self.resolve(part)) for part in parts.fields):
            return None
        return self.emit(relax.op.concat([self._to_last(self.resolve(part)) for part in parts.fields], axis=3))

    def _mean(self, call: Any) -> Any:
        axes = sorted(int(a) % 4 for a in call.attrs.axis or [])
        if not self._known(call.args[0]) or axes != [2, 3]:
            return None
        return self.emit(relax.op.mean(self._to_last(call.args[0]), [1, 2], bool(call.attrs.keepdims)))

    def _shuffle(self, call: Any) -> Any:
        """Shuffled channels: split the channels in two, exchange both, join them; and flattening of 1 x 1 images."""
        source = self.resolve(call.args[0])
        shape = shape_of(call) or ()
        if self._known(source) and (shape_of(source) or (0, 0, 0))[2:] == (1, 1):
            return self._as(self.last[source], shape)
        exchanged: Any = self.defined(source)
        split: Any = self.defined(exchanged.args[0]) if operation(exchanged) == "permute_dims" else None
        if operation(split) != "reshape" or not self._known(self.resolve(split.args[0])):
            return None
        before, middle = shape_of(split.args[0]), shape_of(split)
        axes = [int(a) for a in exchanged.attrs.axes or []]
        if axes != [0, 2, 1, 3, 4] or before != shape or middle is None or middle[3:] != shape[2:]:
            return None
        groups, each = middle[1], middle[2]
        if groups * each != shape[1]:
            return None
        image = (shape[0], *shape[2:])
        value = self.emit(relax.op.reshape(self.last[self.resolve(split.args[0])], (*image, groups, each)))
        value = self.emit(relax.op.permute_dims(value, [0, 1, 2, 4, 3]))
        return self.emit(relax.op.reshape(value, (*image, groups * each)))

    def _as(self, value: Any, shape: tuple[int, ...]) -> Any:
        return value if shape_of(value) == shape else self.emit(relax.op.reshape(value, shape))

    def _local_response(self, call: Any) -> Any:
        """``x / (k + alpha * mean of x * x over neighbouring channels) ** beta``, as the ONNX frontend writes it."""
        found = self._match_local_response(call)
        if found is None:
            return None
        source, size, alpha, beta, k = found
        argument = self._to_last(source)
        shape = shape_of(argument) or ()
        kernel = {
            "primitive": "local_response_normalization",
            "operands": [channels_last(shape), channels_last(shape)],
            "numbers": [size, alpha * 1.0, beta, k],
        }
        flops = int(np.prod(shape)) * (size + 5)
        return self.emit(self.kernels.call("lrn", kernel, [argument], argument.ty, flops))

    def _match_local_response(self, call: Any) -> tuple[Any, int, float, float, float] | None:
        source = self.resolve(call.args[0])
        power = self._step(call.args[1], "power")
        added = power and self._step(power[0], "add")
        scaled = added and self._step(added[0], "multiply")
        squeezed: Any = self.defined(scaled[0]) if scaled else None
        pooled: Any = self.defined(squeezed.args[0]) if operation(squeezed) == "squeeze" else None
        if power is None or added is None or scaled is None or operation(pooled) != "nn.avg_pool3d":
            return None
        expanded: Any = self.defined(pooled.args[0])
        square: Any = self.defined(expanded.args[0]) if operation(expanded) == "expand_dims" else None
        window = [int(s) for s in pooled.attrs.pool_size]
        size = window[0]
        fits = (
            operation(square) == "multiply"
            and all(self.resolve(a).same_as(source) for a in square.args)
            and len(shape_of(source) or ()) == 4
            and shape_of(expanded) == ((shape_of(source) or (0,))[0], 1, *(shape_of(source) or ())[1:])
            and window == [size, 1, 1]
            and size % 2 == 1
            and [int(p) for p in pooled.attrs.padding] == [size // 2, 0, 0, size // 2, 0, 0]
            and [int(s) for s in pooled.attrs.strides] == [1, 1, 1]
            and bool(pooled.attrs.count_include_pad)
        )
        return (source, size, scaled[1], power[1], added[1]) if fits else None

    def _step(self, expr: Any, name: str) -> tuple[Any, float] | None:
        """The first argument of an operation whose second is a number."""
        call = self.defined(expr)
        value = constant_value(self.resolve(call.args[1])) if operation(call) == name else None
        return (call.args[0], float(value.reshape(-1)[0])) if value is not None and value.size == 1 else None


def convolution_fits(weights: Any, call: Any) -> bool:
    """Whether oneDNN takes a convolution: float32, channels first, weights that are known now."""
    attrs = call.attrs
    return (
        constant_value(weights) is not None
        and all(is_float32(expr) for expr in (call.args[0], weights, call))
        and str(attrs.data_layout) == "NCHW"
        and str(attrs.kernel_layout) == "OIHW"
        and str(attrs.out_layout) in ("", "NCHW")
    )
