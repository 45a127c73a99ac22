"""Which operators become kernels of oneDNN, each with what follows it where that can be computed on the way out."""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from typing import Any

from tvm import relax

from ...importers.model import data_address
from ..registry import KernelSet, Names
from ..rewrite import Rewriter, constant_value, is_float32, operation, shape_of
from .chain import Chain, ChainFinder
from .describe import channels_last, dense, window


class Claimer(Rewriter):
    """Replaces operators by calls of kernels.

    Convolutions and matrix products take bias, activation, residual additions and more with them: the call stands where
    the last of these stood, so all that it reads is there.
    """

    def __init__(self, mod: Any, kernels: KernelSet, names: Names) -> None:
        super().__init__(mod)
        self.kernels, self.names = kernels, names
        self.inside: set[Any] = set()  # values within a kernel
        self.ends: dict[Any, Callable[[], Any]] = {}  # what to emit at the end of a chain
        self.rules: dict[str, Callable[[Any], Any]] = {
            "nn.max_pool2d": self._pool,
            "nn.avg_pool2d": self._pool,
            "mean": self._mean,
            "nn.softmax": self._softmax,
            "nn.log_softmax": self._softmax,
            "nn.layer_norm": self._layer_norm,
            "concat": self._concatenation,
        }

    def visit(self, variable: Any, value: Any) -> Any:
        """Rewrite one binding; None for values that no longer exist outside a kernel."""
        name = operation(value)
        if name in ("nn.conv2d", "matmul") and variable not in self.ends:
            self._begin(variable, value, name)
        if variable in self.ends:
            return self.emit(self.ends[variable]())
        if variable in self.inside:
            return None
        if name in self.rules and is_float32(value):
            made = self.rules[name](value)
            if made is not None:
                return self.emit(made)
        return super().visit(variable, value)

    def _begin(self, variable: Any, call: Any, name: str) -> None:
        fits = _convolution_fits(call, self.resolve(call.args[1])) if name == "nn.conv2d" else _matmul_fits(call)
        if not fits:
            return
        weights = constant_value(self.resolve(call.args[1]))
        scalable = weights is not None and (name == "nn.conv2d" or weights.ndim == 2)
        chain = ChainFinder(self, lambda v: v in self.ends or v in self.inside).find(
            variable, weights if scalable else None
        )
        make = self._convolution if name == "nn.conv2d" else self._matmul
        self.ends[chain.end] = lambda: make(call, chain)
        self.inside.update(chain.inside)

    def _convolution(self, call: Any, chain: Chain) -> Any:
        shape, weights_shape, out = (shape_of(e) or () for e in (call.args[0], call.args[1], call))
        groups, (height, width) = int(call.attrs.groups), weights_shape[2:]
        weights = dense(weights_shape, parameter=True)
        if groups > 1:
            split = (groups, weights_shape[0] // groups, *weights_shape[1:])
            weights = dense(split, parameter=True)
        kernel: dict[str, Any] = {
            "primitive": "convolution",
            **window(
                call.attrs.strides, call.attrs.padding, call.attrs.dilation, (height, width), shape[1:3], out[1:3]
            ),
        }
        flops = 2 * prod(out) * weights_shape[1] * height * width
        return self._with_chain(
            "conv2d", kernel, call, chain, [channels_last(shape), weights], channels_last(out), flops
        )

    def _matmul(self, call: Any, chain: Chain) -> Any:
        a, b, out = (shape_of(e) or () for e in (call.args[0], call.args[1], call))
        parameter = constant_value(self.resolve(call.args[1])) is not None
        if len(b) == 2:
            shapes: list[tuple[int, ...]] = [(prod(a[:-1]), a[-1]), b, (prod(out[:-1]), out[-1])]
        elif a[:-2] == b[:-2]:
            shapes = [(prod(s[:-2]), *s[-2:]) for s in (a, b, out)]
        else:
            shapes = [(1,) * (len(out) - len(s)) + s for s in (a, b, out)]
        flops = 2 * prod(out) * a[-1]
        operands = [dense(shapes[0]), dense(shapes[1], parameter)]
        return self._with_chain("matmul", {"primitive": "matmul"}, call, chain, operands, dense(shapes[2]), flops)

    def _with_chain(
        self,
        kind: str,
        kernel: dict[str, Any],
        call: Any,
        chain: Chain,
        operands: list[dict[str, Any]],
        result: dict[str, Any],
        flops: int,
    ) -> Any:
        """The call of a kernel that has weights, with its bias and what follows."""
        weights = self.resolve(call.args[1])
        if chain.scale is not None:
            weights = self._folded(chain.scale, weights)
        arguments = [self.value(call.args[0]), self.value(weights)]
        if chain.bias is not None:
            kernel["bias"] = len(arguments)
            arguments.append(self._folded(chain.bias, weights))
            per_channel = (
                (chain.bias.size,) if kind == "conv2d" else (1,) * (len(result["dims"]) - 1) + (chain.bias.size,)
            )
            operands.append(dense(per_channel, parameter=True))
        kernel["post"] = []
        for post in chain.post:
            entry = dict(post.description)
            if post.operand is not None:
                entry["input"] = len(arguments)
                arguments.append(self.value(post.operand))
                operands.append(_post_operand(post.channels, kind, result))
            kernel["post"].append(entry)
        kernel["operands"] = [*operands, result]
        flops += prod(shape_of(call) or ()) * (len(chain.post) + (chain.bias is not None))
        words = [kind, *(["bias"] if chain.bias is not None else []), *(p.description["name"] for p in chain.post)]
        return self.kernels.call("_".join(words), kernel, arguments, chain.end.ty, flops)

    def _folded(self, value: Any, source: Any) -> Any:
        # Named after the weights that it belongs to; a product of two activations has none.
        name = self.names.get(data_address(source)) if constant_value(source) is not None else None
        return self.kernels.constant(value, None if name is None else f"{name}.folded", self.names)

    def _pool(self, call: Any) -> Any:
        attrs = call.attrs
        shape, out, size = shape_of(call.args[0]) or (), shape_of(call) or (), tuple(int(s) for s in attrs.pool_size)
        layout = str(attrs.layout)
        if layout not in ("NHWC", "NCHW") or str(attrs.out_layout) not in ("", layout):
            return None
        describe, image = (channels_last, slice(1, 3)) if layout == "NHWC" else (dense, slice(2, 4))
        found = window(attrs.strides, attrs.padding, attrs.dilation, size, shape[image], out[image])
        average = operation(call) == "nn.avg_pool2d"
        low, high = found["padding_low"], found["padding_high"]
        if any(max(low[k], high[k]) >= size[k] for k in range(2)) or any(found["dilation"]):
            return None
        padded = any(low) or any(high)
        if average and attrs.count_include_pad and high != [int(p) for p in attrs.padding[2:]]:
            return None  # ceil mode: windows beyond the padding are counted in ways of TVM's own
        algorithm = (
            "max" if not average else "average_with_padding" if attrs.count_include_pad and padded else "average"
        )
        kernel = {
            "primitive": "pooling",
            "algorithm": algorithm,
            "kernel": list(size),
            **found,
            "operands": [describe(shape), describe(out)],
        }
        return self._plain("avg_pool2d" if average else "max_pool2d", kernel, call, prod(out) * prod(size))

    def _mean(self, call: Any) -> Any:
        """The mean over an image is an average pool."""
        shape = shape_of(call.args[0]) or ()
        if len(shape) != 4 or [int(a) for a in call.attrs.axis or []] != [1, 2]:
            return None
        image, one = list(shape[1:3]), (shape[0], 1, 1, shape[3])
        kernel = {
            "primitive": "pooling",
            "algorithm": "average",
            "kernel": image,
            "strides": [1, 1],
            "dilation": [0, 0],
            "padding_low": [0, 0],
            "padding_high": [0, 0],
            "operands": [channels_last(shape), channels_last(one)],
        }
        return self._plain("mean", kernel, call, prod(shape))

    def _softmax(self, call: Any) -> Any:
        shape = shape_of(call) or ()
        name = operation(call).removeprefix("nn.")
        kernel = {
            "primitive": "softmax",
            "algorithm": "log" if name == "log_softmax" else "accurate",
            "axis": int(call.attrs.axis) % len(shape),
            "operands": [dense(shape), dense(shape)],
        }
        return self._plain(name, kernel, call, 4 * prod(shape))

    def _layer_norm(self, call: Any) -> Any:
        shape, attrs = shape_of(call) or (), call.attrs
        if [int(a) % len(shape) for a in attrs.axes] != [len(shape) - 1] or not (attrs.center and attrs.scale):
            return None
        if not all(is_float32(a) and shape_of(a) == shape[-1:] for a in call.args[1:]):
            return None
        rows = dense((prod(shape[:-1]), shape[-1]))
        kernel = {
            "primitive": "layer_normalization",
            "numbers": [float(attrs.epsilon)],
            "operands": [rows, dense(shape[-1:]), dense(shape[-1:]), rows],
        }
        return self._plain("layer_norm", kernel, call, 8 * prod(shape))

    def _concatenation(self, call: Any) -> Any:
        parts = self.resolve(call.args[0])
        parts = self.definitions.get(parts, parts)
        if not isinstance(parts, relax.Tuple) or not 2 <= len(parts.fields) <= 64:
            return None
        if not all(is_float32(part) for part in parts.fields):
            return None
        shape = shape_of(call) or ()
        axis = int(call.attrs.axis or 0) % len(shape)
        outer, inner = prod(shape[:axis]), prod(shape[axis + 1 :])
        sizes = [(outer, (shape_of(part) or ())[axis] * inner) for part in parts.fields]
        kernel = {
            "primitive": "concatenation",
            "axis": 1,
            "operands": [*(dense(size) for size in sizes), dense((outer, shape[axis] * inner))],
        }
        arguments = [self.value(part) for part in parts.fields]
        return self.kernels.call("concat", kernel, arguments, call.ty, 0)

    def _plain(self, kind: str, kernel: dict[str, Any], call: Any, flops: int) -> Any:
        return self.kernels.call(kind, kernel, [self.value(a) for a in call.args], call.ty, flops)


def _convolution_fits(call: Any, weights: Any) -> bool:
    return str(call.attrs.data_layout) == "NHWC" and constant_value(weights) is not None and is_float32(call)


def _matmul_fits(call: Any) -> bool:
    if not all(is_float32(expr) for expr in (*call.args, call)):
        return False
    a, b, out = shape_of(call.args[0]) or (), shape_of(call.args[1]) or (), shape_of(call) or ()
    return len(a) >= 2 and len(b) >= 2 and len(out) <= 6


def _post_operand(channels: bool, kind: str, result: dict[str, Any]) -> dict[str, Any]:
    """How a post-operation reads its argument: an element for each channel, or as the result is laid out."""
    if not channels:
        return dict(result)
    axis = 1 if kind == "conv2d" else len(result["dims"]) - 1
    dims = [1] * len(result["dims"])
    dims[axis] = result["dims"][axis]
    return dense(tuple(dims))
