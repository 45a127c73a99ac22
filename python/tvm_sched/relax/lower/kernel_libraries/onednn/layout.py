"""Convert a module to channels last, the layout in which oneDNN's convolutions are fastest."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np
import tvm
from tvm import relax

from ....ir.sizes import sizes_of
from ..kernel_library import KernelSet, Names
from ..rewrite import Rewriter, axis_order, constant_value, is_float32, is_tensor_of, operation, transpose_constant
from .describe import channels_last, dense, to_first, to_last
from .integer_products import BYTES, SUMS, is_integer_product
from .local_response import find_local_response
from .normalization import OPERATORS as NORMALIZATIONS
from .normalization import groups_of
from .products import CONVOLUTIONS, LAYOUTS, TRANSPOSED, known_layouts, layouts

UNARY = {
    *("abs", "astype", "clip", "erf", "exp", "log", "negative", "round", "rsqrt", "sigmoid", "sqrt", "square", "tanh"),
    *(f"nn.{name}" for name in ("gelu", "gelu_tanh", "leakyrelu", "relu", "relu6", "selu", "silu", "softplus")),
}
OF_INTEGERS = {
    *("astype", "clip", "add", "subtract", "multiply", "maximum", "minimum", "nn.max_pool2d", "nn.relu"),
    *(*CONVOLUTIONS, "concat", "permute_dims"),
}
"""Operators that are also converted for integers."""
BINARY = {"add", "subtract", "multiply", "divide", "maximum", "minimum", "power"}
POOLS = {f"nn.{kind}_pool{n}d" for kind in ("max", "avg", "adaptive_avg") for n in (1, 2, 3)}
REDUCTIONS = {"mean", "sum", "max", "min"}
FEW_CHANNELS = 8
"""Fewest output channels for which oneDNN's transposed convolution fills its vectors."""


@dataclass(frozen=True)
class Plain:
    """A new value in the old value's layout."""

    value: Any


class ChannelsLast(Rewriter):
    """Converts the convolutions that oneDNN computes, and the operators after them, to (N, H, W, C).

    Tensors are transposed where an operator needs channels first. Local response normalisations, which importers
    decompose, become kernels.
    """

    def __init__(self, mod: Any, kernels: KernelSet, names: Names) -> None:
        super().__init__(mod)
        self.kernels, self.names = kernels, names
        self.last: dict[Any, Any] = {}  # the channels-last value of old variables
        self.rules: dict[str, Callable[[Any], Any]] = {
            **dict.fromkeys((*CONVOLUTIONS, *TRANSPOSED), self._convolution),
            **dict.fromkeys((*POOLS, "image.resize2d"), self._image),
            **dict.fromkeys(REDUCTIONS, self._reduction),
            **dict.fromkeys(UNARY, self._unary),
            **dict.fromkeys(BINARY, self._binary),
            "concat": self._concatenation,
            **dict.fromkeys(NORMALIZATIONS, self._normalization),
            "nn.pad": self._pad,
            "nn.prelu": self._prelu,
            "permute_dims": self._permute,
            "reshape": self._shuffle,
            "strided_slice": self._slice,
            "take": self._take,
        }
        self.operators = self.rules

    def visit(self, variable: Any, value: Any) -> Any:
        """Rewrite one binding; None if the value exists only with channels last."""
        rule = self.rules.get(operation(value))
        if rule is not None and (is_float32(value) or _is_of_integers(value)):
            new = rule(value)
            if isinstance(new, Plain):
                return new.value
            if new is not None and self._is_last(new, sizes_of(value) or ()):
                self.last[variable] = new
                return None
            if new is not None:
                return new
        elif isinstance(value, relax.Var) and self.resolve(value) in self.last:
            self.last[variable] = self.last[self.resolve(value)]
            return None
        elif isinstance(value, relax.TupleGetItem):
            part = self._part(value)
            if part is not None:
                self.last[variable] = part
                return None
        return super().visit(variable, value)

    def value(self, expr: Any) -> Any:
        """Return an old expression with channels first, for operators that need this layout."""
        if isinstance(expr, relax.Var) and expr in self.last and self.values.get(expr) is None:
            last = self.last[expr]
            shape = sizes_of(last) or ()
            self.values[expr] = self._moved(last, to_first(len(shape)))
        return super().value(expr)

    def _moved(self, value: Any, order: tuple[int, ...]) -> Any:
        """Transpose a value; a reshape is enough if only dimensions of extent 1 move."""
        shape = sizes_of(value) or ()
        if [k for k in order if shape[k] > 1] == [k for k in range(len(shape)) if shape[k] > 1]:
            return self.emit(relax.op.reshape(value, [shape[k] for k in order]))
        return self.emit(relax.op.permute_dims(value, list(order)))

    @staticmethod
    def _is_last(new: Any, shape: tuple[int, ...]) -> bool:
        """Whether a new value has an old value's shape with channels last."""
        return len(shape) in LAYOUTS and sizes_of(new) == tuple(shape[k] for k in to_last(len(shape)))

    def _known(self, expr: Any) -> bool:
        return isinstance(expr, relax.Var) and expr in self.last

    def _to_last(self, expr: Any) -> Any:
        """Return an old value of three or more dimensions with channels last, transposed if necessary."""
        if not self._known(expr):
            moved = self._moved(self.value(expr), to_last(len(sizes_of(expr) or ())))
            if not isinstance(expr, relax.Var):
                return moved
            self.last[expr] = moved
        return self.last[expr]

    def _convolution(self, call: Any) -> Any:
        if not convolution_fits(call) and not self._of_integers(call):
            return self._written_with_channels_last(call)
        upsampled = self._upsampled(call) if operation(call) in TRANSPOSED else None
        if upsampled is not None:
            return upsampled
        layout = LAYOUTS[len(sizes_of(call) or ())][1]
        arguments = [self._to_last(call.args[0]), self.value(self.resolve(call.args[1]))]
        return self.emit(_with(call, arguments, data_layout=layout, out_layout=layout))

    def _written_with_channels_last(self, call: Any) -> Any:
        """Reorder the weights of a convolution that already has channels last to the layout that kernels support."""
        weights, known = self.resolve(call.args[1]), known_layouts(call, last=True)
        value, (data, layout, out) = constant_value(weights), layouts(call)
        if value is None or known is None or (data, out) != known[::2] or not is_float32(weights):
            return None
        if layout == known[1] or sorted(layout) != sorted(known[1]):
            return None
        order = tuple(layout.index(letter) for letter in known[1])
        ordered = self.kernels.derived_constant(transpose_constant(value, order), weights, self.names)
        return Plain(self.emit(_with(call, [self.value(call.args[0]), ordered], kernel_layout=known[1])))

    def _of_integers(self, call: Any) -> bool:
        """Whether a call is a claimable convolution with channels first of integers in a wider type."""
        return layouts(call) == known_layouts(call, last=False) and is_integer_product(self, call)

    def _upsampled(self, call: Any) -> Any:
        """Compute a transposed convolution with few channels and disjoint windows as a matrix product and a transposition.

        oneDNN's transposed convolution computes whole vectors of output channels at each position of the window.
        """
        attrs, weights = call.attrs, self.resolve(call.args[1])
        value, source = constant_value(weights), sizes_of(call.args[0]) or ()
        if value is None or value.shape[1] >= FEW_CHANNELS or int(attrs.groups) != 1:
            return None
        kernel, image, count = value.shape[2:], source[2:], len(source) - 2
        grown = tuple(size * step for size, step in zip(image, kernel, strict=True))
        if (
            tuple(int(s) for s in attrs.strides) != kernel
            or (sizes_of(call) or ())[2:] != grown
            or any(int(p) for p in attrs.padding)
        ):
            return None
        columns = np.moveaxis(value, 1, -1).reshape(value.shape[0], -1)
        packed = self.kernels.derived_constant(columns, weights, self.names, ".columns")
        product = self.emit(relax.op.matmul(self._to_last(call.args[0]), packed))
        product = self.emit(relax.op.reshape(product, (source[0], *image, *kernel, value.shape[1])))
        pairs = [axis for k in range(count) for axis in (1 + k, 1 + k + count)]
        product = self.emit(relax.op.permute_dims(product, [0, *pairs, 1 + 2 * count]))
        return self.emit(relax.op.reshape(product, (source[0], *grown, value.shape[1])))

    def _image(self, call: Any) -> Any:
        """Convert pooling and resizing, which support both layouts."""
        plain, layout = LAYOUTS.get(len(sizes_of(call) or ()), ("", ""))
        out = str(getattr(call.attrs, "out_layout", plain))
        if not self._known(call.args[0]) or str(call.attrs.layout) != plain or out not in ("", plain):
            return None
        changed = {"layout": layout, **({"out_layout": layout} if hasattr(call.attrs, "out_layout") else {})}
        return self.emit(_with(call, [self._to_last(call.args[0]), *call.args[1:]], **changed))

    def _unary(self, call: Any) -> Any:
        if not self._known(call.args[0]):
            return None
        return self.emit(_with(call, [self._to_last(call.args[0]), *call.args[1:]]))

    def _prelu(self, call: Any) -> Any:
        rank = len(sizes_of(call) or ())
        if not self._known(call.args[0]) or int(call.attrs.axis) % rank not in (1, rank - 1):
            return None
        slope = self.resolve(call.args[1])
        if int(call.attrs.axis) % rank != 1 and (sizes_of(slope) or (0,)) != (1,):
            return None
        return self.emit(_with(call, [self._to_last(call.args[0]), self.value(slope)], axis=rank - 1))

    def _binary(self, call: Any) -> Any:
        if operation(call) == "divide":
            normalised = self._local_response(call)
            if normalised is not None:
                return normalised
        rank = len(sizes_of(call) or ())
        if not any(self._known(a) and len(sizes_of(a) or ()) == rank for a in call.args):
            return None
        arguments = [self._operand(argument, rank) for argument in call.args]
        return None if any(a is None for a in arguments) else self.emit(_with(call, arguments))

    def _operand(self, expr: Any, rank: int) -> Any:
        expr = self.resolve(expr)
        shape, value = sizes_of(expr) or (), constant_value(expr)
        if value is not None:
            if value.size == 1:
                return expr
            return self.kernels.derived_constant(transpose_constant(value, to_last(rank)), expr, self.names)
        if shape == ():
            return self.value(expr)
        return self._to_last(expr) if len(shape) == rank else None

    def _concatenation(self, call: Any) -> Any:
        parts = self.resolve(call.args[0])
        parts = self.definitions.get(parts, parts)
        rank = len(sizes_of(call) or ())
        if not isinstance(parts, relax.Tuple) or not any(self._known(self.resolve(part)) for part in parts.fields):
            return None
        axis = _axis_in_last(int(call.attrs.axis or 0), rank)
        return self.emit(relax.op.concat([self._to_last(self.resolve(part)) for part in parts.fields], axis=axis))

    def _reduction(self, call: Any) -> Any:
        """Convert a reduction that keeps its dimensions or reduces the whole image."""
        rank = len(sizes_of(call.args[0]) or ())
        axes = [int(a) % rank for a in call.attrs.axis or []]
        whole = sorted(axes) == list(range(2, rank))
        if not self._known(call.args[0]) or not axes or not (call.attrs.keepdims or whole):
            return None
        moved = sorted(_axis_in_last(axis, rank) for axis in axes)
        return self.emit(_with(call, [self._to_last(call.args[0])], axis=moved))

    def _pad(self, call: Any) -> Any:
        if not self._known(call.args[0]):
            return None
        widths = [int(w) for w in call.attrs.pad_width]
        order = to_last(len(widths) // 2)
        moved = [width for k in order for width in widths[2 * k : 2 * k + 2]]
        return self.emit(_with(call, [self._to_last(call.args[0])], pad_width=moved))

    def _slice(self, call: Any) -> Any:
        rank = len(sizes_of(call) or ())
        if not self._known(call.args[0]) or not isinstance(call.args[1], relax.Tuple):
            return None
        axes = [_axis_in_last(_integer(axis), rank) for axis in call.args[1].fields]
        inbound = bool(call.attrs.assume_inbound)
        source = self._to_last(call.args[0])
        return self.emit(relax.op.strided_slice(source, axes, *call.args[2:], assume_inbound=inbound))

    def _take(self, call: Any) -> Any:
        """Convert a gather along one axis, such as padding by reflection."""
        rank = len(sizes_of(call.args[0]) or ())
        if not self._known(call.args[0]) or call.attrs.axis is None or len(sizes_of(call.args[1]) or ()) != 1:
            return None
        axis = _axis_in_last(int(call.attrs.axis), rank)
        return self.emit(_with(call, [self._to_last(call.args[0]), self.value(call.args[1])], axis=axis))

    def _normalization(self, call: Any) -> Any:
        """Compute a group normalisation by a kernel for the moments, a multiplication and an addition."""
        groups = groups_of(call)
        if groups is None:
            return None
        shape = sizes_of(call) or ()
        batch, channels, places = shape[0], shape[1], prod(shape[2:])
        each, last = channels // groups, self._known(self.resolve(call.args[0]))
        value = self._to_last(self.resolve(call.args[0])) if last else self.value(call.args[0])
        whole = channels * places
        along = [each, 1, channels] if last else [each * places, places, 1]
        numbers = dense((channels,))
        kernel = {
            "primitive": "moments",
            "numbers": [float(call.attrs.epsilon)],
            "operands": [
                {"dims": [batch, groups, each, places], "strides": [whole, *along]},
                numbers,
                numbers,
                dense((2, batch, channels)),
            ],
        }
        ty = relax.TensorType((2, batch, channels), "float32")
        arguments = [value, *(self.value(a) for a in call.args[1:])]
        moments = self.emit(self.kernels.call("moments", kernel, arguments, ty, 4 * batch * whole))
        one = (1,) * (len(shape) - 2)
        each_channel = (batch, *one, channels) if last else (batch, channels, *one)
        factor, summand = (
            self.emit(relax.op.reshape(self.emit(relax.op.strided_slice(moments, [0], [k], [k + 1])), each_channel))
            for k in (0, 1)
        )
        result = self.emit(relax.op.add(self.emit(relax.op.multiply(value, factor)), summand))
        return result if last else Plain(result)

    def _part(self, item: Any) -> Any:
        """Return a part of a split value, with channels last."""
        call: Any = self.defined(item.tuple_value)
        if operation(call) != "split" or not self._known(self.resolve(call.args[0])) or not is_float32(item):
            return None
        source = self._to_last(self.resolve(call.args[0]))
        shape, part = sizes_of(call.args[0]) or (), sizes_of(item) or ()
        axis = int(call.attrs.axis) % len(shape)
        begin = sum(int(field.shape.values[axis]) for field in list(call.ty.fields)[: item.index])
        end = begin + part[axis]
        sliced = self.emit(relax.op.strided_slice(source, [_axis_in_last(axis, len(shape))], [begin], [end]))
        return sliced if self._is_last(sliced, part) else None

    def _permute(self, call: Any) -> Any:
        """Convert a transposition; a transposition from or to channels last disappears."""
        source = self.resolve(call.args[0])
        axes = axis_order(call)
        if len(axes) not in LAYOUTS:
            return None
        if not self._known(source):
            return self.value(source) if axes == to_first(len(axes)) else None
        order = tuple(to_first(len(axes))[a] for a in axes)
        last = self.last[source]
        return Plain(last if order == tuple(range(len(axes))) else self._moved(last, order))

    def _shuffle(self, call: Any) -> Any:
        """Convert a reshape of images only, a flattening of 1 x 1 images, or a channel shuffle.

        A shuffle splits the channel axis, swaps the parts and joins them.
        """
        source = self.resolve(call.args[0])
        shape, given = sizes_of(call) or (), sizes_of(source) or ()
        if self._known(source) and all(size == 1 for size in given[2:]):
            last = self.last[source]
            return Plain(last if sizes_of(last) == shape else self.emit(relax.op.reshape(last, shape)))
        if self._known(source) and len(shape) in LAYOUTS and shape[:2] == given[:2]:
            # Transformers flatten images so, and then have the channels last.
            return self.emit(relax.op.reshape(self.last[source], (shape[0], *shape[2:], shape[1])))
        exchanged: Any = self.defined(source)
        split: Any = self.defined(exchanged.args[0]) if operation(exchanged) == "permute_dims" else None
        if operation(split) != "reshape" or not self._known(self.resolve(split.args[0])):
            return None
        before, middle = sizes_of(split.args[0]), sizes_of(split)
        if axis_order(exchanged) != (0, 2, 1, 3, 4) or before != shape or middle is None or middle[3:] != shape[2:]:
            return None
        groups, each = middle[1], middle[2]
        if groups * each != shape[1]:
            return None
        image = (shape[0], *shape[2:])
        value = self.emit(relax.op.reshape(self.last[self.resolve(split.args[0])], (*image, groups, each)))
        value = self.emit(relax.op.permute_dims(value, [0, 1, 2, 4, 3]))
        return self.emit(relax.op.reshape(value, (*image, groups * each)))

    def _local_response(self, call: Any) -> Any:
        response = find_local_response(self, call)
        if response is None:
            return None
        argument = self._to_last(response.source)
        described = channels_last(sizes_of(argument) or ())
        kernel = {
            "primitive": "local_response_normalization",
            "operands": [described, described],
            "numbers": [response.size, response.alpha, response.beta, response.k],
        }
        return self.emit(self.kernels.call("lrn", kernel, [argument], argument.ty, response.flops))


def convolution_fits(call: Any) -> bool:
    """Whether oneDNN computes a convolution: in float32, with channels first."""
    return all(is_float32(expr) for expr in (*call.args, call)) and layouts(call) == known_layouts(call, last=False)


def _is_of_integers(value: Any) -> bool:
    """Whether a call is an operator of `OF_INTEGERS` on integers, or on float32 that may hold integers."""
    return operation(value) in OF_INTEGERS and is_tensor_of(value, (*SUMS, *BYTES))


def _with(call: Any, arguments: list[Any], **changed: Any) -> Any:
    """Rebuild a call with other arguments and changed attributes."""
    attrs = call.attrs
    if changed:
        info = type(attrs).__tvm_ffi_type_info__
        fields = {field.name: getattr(attrs, field.name) for field in info.fields}
        attrs = tvm.ir.make_node(info.type_key, **{**fields, **changed})
    return relax.Call(call.op, arguments, attrs, call.ty_args)


def _axis_in_last(axis: int, rank: int) -> int:
    return to_first(rank)[axis % rank]


def _integer(expr: Any) -> int:
    return int(getattr(expr, "value", expr))
