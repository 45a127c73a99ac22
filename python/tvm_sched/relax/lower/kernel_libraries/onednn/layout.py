"""Convert a module to channels last, the layout in which oneDNN's convolutions are fastest."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np
import tvm
from tvm import relax

from tvm_frontends.imported_model import data_address

from ....ir.tensor_types import dtype_of, static_shape
from ..kernel_library import KernelSet, Names
from ..rewrite import Rewriter, axis_order, constant_value, is_float32, operation, transpose_constant
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
OF_INTEGERS = {"astype", "clip", "add", "subtract", "multiply", "maximum", "minimum", "nn.max_pool2d", "nn.relu"} | {
    *CONVOLUTIONS,
    *("concat", "permute_dims"),
}
"""Operators that may be computed with channels last on integers, too."""
BINARY = {"add", "subtract", "multiply", "divide", "maximum", "minimum", "power"}
POOLS = {f"nn.{kind}_pool{n}d" for kind in ("max", "avg", "adaptive_avg") for n in (1, 2, 3)}
REDUCTIONS = {"mean", "sum", "max", "min"}
FEW_CHANNELS = 8
"""From this many on, a transposed convolution to channels last fills vectors well enough."""


@dataclass(frozen=True)
class Plain:
    """A new value in the old value's layout, not with channels last."""

    value: Any


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
        self.wanted = self.rules

    def visit(self, variable: Any, value: Any) -> Any:
        """Rewrite one binding; None where only the value with channels last is known."""
        rule = self.rules.get(operation(value))
        if rule is not None and (is_float32(value) or _is_of_integers(value)):
            made = rule(value)
            if isinstance(made, Plain):
                return made.value
            if made is not None and self._is_last(made, static_shape(value) or ()):
                self.last[variable] = made
                return None
            if made is not None:
                return made
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
        """An old expression with channels first, for operators that know no other."""
        if isinstance(expr, relax.Var) and expr in self.last and self.values.get(expr) is None:
            last = self.last[expr]
            shape = static_shape(last) or ()
            self.values[expr] = self._moved(last, to_first(len(shape)))
        return super().value(expr)

    def _moved(self, value: Any, order: tuple[int, ...]) -> Any:
        """A transposition, which is a reshape where all that changes its place has one element."""
        shape = static_shape(value) or ()
        if [k for k in order if shape[k] > 1] == [k for k in range(len(shape)) if shape[k] > 1]:
            return self.emit(relax.op.reshape(value, [shape[k] for k in order]))
        return self.emit(relax.op.permute_dims(value, list(order)))

    @staticmethod
    def _is_last(made: Any, shape: tuple[int, ...]) -> bool:
        """Whether a new value holds an old one of a shape with channels last."""
        return len(shape) in LAYOUTS and static_shape(made) == tuple(shape[k] for k in to_last(len(shape)))

    def _known(self, expr: Any) -> bool:
        return isinstance(expr, relax.Var) and expr in self.last

    def _to_last(self, expr: Any) -> Any:
        """An old value of three dimensions or more, transposed where it is not."""
        if not self._known(expr):
            made = self._moved(self.value(expr), to_last(len(static_shape(expr) or ())))
            if not isinstance(expr, relax.Var):
                return made
            self.last[expr] = made
        return self.last[expr]

    def _convolution(self, call: Any) -> Any:
        if not convolution_fits(call) and not self._of_integers(call):
            return self._given_last(call)
        made = self._upsampled(call) if operation(call) in TRANSPOSED else None
        if made is not None:
            return made
        layout = LAYOUTS[len(static_shape(call) or ())][1]
        arguments = [self._to_last(call.args[0]), self.value(self.resolve(call.args[1]))]
        return self.emit(_with(call, arguments, data_layout=layout, out_layout=layout))

    def _given_last(self, call: Any) -> Any:
        """A convolution that is written with channels last, its weights in the order that kernels are made for."""
        weights, known = self.resolve(call.args[1]), known_layouts(call, last=True)
        value, (data, given, out) = constant_value(weights), layouts(call)
        if value is None or known is None or (data, out) != known[::2] or not is_float32(weights):
            return None
        if given == known[1] or sorted(given) != sorted(known[1]):
            return None
        order = tuple(given.index(letter) for letter in known[1])
        name = self.names.get(data_address(weights))
        ordered = self.kernels.constant(transpose_constant(value, order), name, self.names)
        return Plain(self.emit(_with(call, [self.value(call.args[0]), ordered], kernel_layout=known[1])))

    def _of_integers(self, call: Any) -> bool:
        """Whether it is a convolution of integers in wider types, with channels first, that could be claimed."""
        return layouts(call) == known_layouts(call, last=False) and is_integer_product(self, call)

    def _upsampled(self, call: Any) -> Any:
        """A transposed convolution to few channels whose windows do not overlap: a matrix product, whose columns move.

        oneDNN's own computes whole vectors of output channels for each place of the window.
        """
        attrs, weights = call.attrs, self.resolve(call.args[1])
        value, source = constant_value(weights), static_shape(call.args[0]) or ()
        if value is None or value.shape[1] >= FEW_CHANNELS or int(attrs.groups) != 1:
            return None
        kernel, image, count = value.shape[2:], source[2:], len(source) - 2
        grown = tuple(size * step for size, step in zip(image, kernel, strict=True))
        given = tuple(int(s) for s in attrs.strides)
        if given != kernel or (static_shape(call) or ())[2:] != grown or any(int(p) for p in attrs.padding):
            return None
        columns = np.moveaxis(value, 1, -1).reshape(value.shape[0], -1)
        name = self.names.get(data_address(weights))
        packed = self.kernels.constant(columns, None if name is None else f"{name}.columns", self.names)
        made = self.emit(relax.op.matmul(self._to_last(call.args[0]), packed))
        made = self.emit(relax.op.reshape(made, (source[0], *image, *kernel, value.shape[1])))
        pairs = [axis for k in range(count) for axis in (1 + k, 1 + k + count)]
        made = self.emit(relax.op.permute_dims(made, [0, *pairs, 1 + 2 * count]))
        return self.emit(relax.op.reshape(made, (source[0], *grown, value.shape[1])))

    def _image(self, call: Any) -> Any:
        """Pooling and resizing, which know both layouts."""
        plain, layout = LAYOUTS.get(len(static_shape(call) or ()), ("", ""))
        given = (str(call.attrs.layout), str(getattr(call.attrs, "out_layout", plain)))
        if not self._known(call.args[0]) or given[0] != plain or given[1] not in ("", plain):
            return None
        changed = {"layout": layout, **({"out_layout": layout} if hasattr(call.attrs, "out_layout") else {})}
        return self.emit(_with(call, [self._to_last(call.args[0]), *call.args[1:]], **changed))

    def _unary(self, call: Any) -> Any:
        if not self._known(call.args[0]):
            return None
        return self.emit(_with(call, [self._to_last(call.args[0]), *call.args[1:]]))

    def _prelu(self, call: Any) -> Any:
        rank = len(static_shape(call) or ())
        if not self._known(call.args[0]) or int(call.attrs.axis) % rank not in (1, rank - 1):
            return None
        slope = self.resolve(call.args[1])
        if int(call.attrs.axis) % rank != 1 and (static_shape(slope) or (0,)) != (1,):
            return None
        return self.emit(_with(call, [self._to_last(call.args[0]), self.value(slope)], axis=rank - 1))

    def _binary(self, call: Any) -> Any:
        if operation(call) == "divide":
            normalised = self._local_response(call)
            if normalised is not None:
                return normalised
        rank = len(static_shape(call) or ())
        if not any(self._known(a) and len(static_shape(a) or ()) == rank for a in call.args):
            return None
        arguments = [self._operand(argument, rank) for argument in call.args]
        if None in [None if a is None else 0 for a in arguments]:
            return None
        return self.emit(_with(call, arguments))

    def _operand(self, expr: Any, rank: int) -> Any:
        expr = self.resolve(expr)
        shape, value = static_shape(expr) or (), constant_value(expr)
        if value is not None:
            if value.size == 1:
                return expr
            name = self.names.get(data_address(expr))
            return self.kernels.constant(transpose_constant(value, to_last(rank)), name, self.names)
        if shape == ():
            return self.value(expr)
        return self._to_last(expr) if len(shape) == rank else None

    def _concatenation(self, call: Any) -> Any:
        parts = self.resolve(call.args[0])
        parts = self.definitions.get(parts, parts)
        rank = len(static_shape(call) or ())
        if not isinstance(parts, relax.Tuple) or not any(self._known(self.resolve(part)) for part in parts.fields):
            return None
        axis = _axis_in_last(int(call.attrs.axis or 0), rank)
        return self.emit(relax.op.concat([self._to_last(self.resolve(part)) for part in parts.fields], axis=axis))

    def _reduction(self, call: Any) -> Any:
        """Over dimensions that stay, or over the whole image."""
        rank = len(static_shape(call.args[0]) or ())
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
        rank = len(static_shape(call) or ())
        if not self._known(call.args[0]) or not isinstance(call.args[1], relax.Tuple):
            return None
        axes = [_axis_in_last(_integer(axis), rank) for axis in call.args[1].fields]
        made = relax.op.strided_slice(
            self._to_last(call.args[0]), axes, *call.args[2:], assume_inbound=bool(call.attrs.assume_inbound)
        )
        return self.emit(made)

    def _take(self, call: Any) -> Any:
        """Places along an axis in another order, as padding by reflection."""
        rank = len(static_shape(call.args[0]) or ())
        if not self._known(call.args[0]) or call.attrs.axis is None or len(static_shape(call.args[1]) or ()) != 1:
            return None
        axis = _axis_in_last(int(call.attrs.axis), rank)
        return self.emit(_with(call, [self._to_last(call.args[0]), self.value(call.args[1])], axis=axis))

    def _normalization(self, call: Any) -> Any:
        """Over groups of channels: a kernel for the moments, and a multiplication and an addition."""
        groups = groups_of(call)
        if groups is None:
            return None
        shape = static_shape(call) or ()
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
        made = self.emit(relax.op.add(self.emit(relax.op.multiply(value, factor)), summand))
        return made if last else Plain(made)

    def _part(self, item: Any) -> Any:
        """A part of a split value."""
        call: Any = self.defined(item.tuple_value)
        if operation(call) != "split" or not self._known(self.resolve(call.args[0])) or not is_float32(item):
            return None
        source = self._to_last(self.resolve(call.args[0]))
        shape, mine = static_shape(call.args[0]) or (), static_shape(item) or ()
        axis = int(call.attrs.axis) % len(shape)
        before = [part.shape.values[axis] for part in list(call.ty.fields)[: item.index]]
        begin = sum(int(size) for size in before)
        made = relax.op.strided_slice(source, [_axis_in_last(axis, len(shape))], [begin], [begin + mine[axis]])
        made = self.emit(made)
        return made if self._is_last(made, mine) else None

    def _permute(self, call: Any) -> Any:
        """A transposition from or to channels last, which may disappear."""
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
        """Shuffled channels: split the channels in two, exchange both, join them; and flattening of 1 x 1 images."""
        source = self.resolve(call.args[0])
        shape, given = static_shape(call) or (), static_shape(source) or ()
        if self._known(source) and all(size == 1 for size in given[2:]):
            return Plain(self._as(self.last[source], shape))
        exchanged: Any = self.defined(source)
        split: Any = self.defined(exchanged.args[0]) if operation(exchanged) == "permute_dims" else None
        if operation(split) != "reshape" or not self._known(self.resolve(split.args[0])):
            return None
        before, middle = static_shape(split.args[0]), static_shape(split)
        if axis_order(exchanged) != (0, 2, 1, 3, 4) or before != shape or middle is None or middle[3:] != shape[2:]:
            return None
        groups, each = middle[1], middle[2]
        if groups * each != shape[1]:
            return None
        image = (shape[0], *shape[2:])
        value = self.emit(relax.op.reshape(self.last[self.resolve(split.args[0])], (*image, groups, each)))
        value = self.emit(relax.op.permute_dims(value, [0, 1, 2, 4, 3]))
        return self.emit(relax.op.reshape(value, (*image, groups * each)))

    def _as(self, value: Any, shape: tuple[int, ...]) -> Any:
        return value if static_shape(value) == shape else self.emit(relax.op.reshape(value, shape))

    def _local_response(self, call: Any) -> Any:
        response = find_local_response(self, call)
        if response is None:
            return None
        argument = self._to_last(response.source)
        described = channels_last(static_shape(argument) or ())
        kernel = {
            "primitive": "local_response_normalization",
            "operands": [described, described],
            "numbers": [response.size, response.alpha, response.beta, response.k],
        }
        return self.emit(self.kernels.call("lrn", kernel, [argument], argument.ty, response.flops))


def convolution_fits(call: Any) -> bool:
    """Whether oneDNN takes a convolution: float32, channels first."""
    return all(is_float32(expr) for expr in (*call.args, call)) and layouts(call) == known_layouts(call, last=False)


def _is_of_integers(value: Any) -> bool:
    """Whether it is an operator around convolutions of integers."""
    shape = static_shape(value)
    known = operation(value) in OF_INTEGERS and shape is not None and 0 not in shape
    return known and dtype_of(value) in (*SUMS, *BYTES)


def _with(call: Any, arguments: list[Any], **changed: Any) -> Any:
    """The same operator on other arguments, with some attributes changed."""
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
