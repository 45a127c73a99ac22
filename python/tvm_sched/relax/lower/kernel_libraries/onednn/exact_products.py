"""Our own kernels for convolutions and products of 8-bit integers.

They multiply bytes if the processor has instructions that add their products exactly (AMX, VNNI), and otherwise widen them
to 16 bits. The same kernel computes the operators that follow, one by one as the model writes them: a bias, a factor and
a summand for each output, bounds, and quantisation to 8 bits.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from math import inf, prod
from typing import Any

import numpy as np
from tvm import relax

from ....ir.sizes import sizes_of
from ....ir.tensor_types import dtype_of
from ..rewrite import Rewriter, operation
from .byte_functions import byte_function
from .describe import channels_last, dense, window
from .integer_products import BYTES, Integers, Source, eight_bit_number, known_value
from .products import known_layouts, layouts

COLUMNS = 16
"""Outputs that the kernel computes together (`kColumns`)."""
PRIMITIVE = "integer_convolution"
_RANGES = {"int8": (-128.0, 127.0), "uint8": (0.0, 255.0)}
_FUNCTIONS = {"nn.relu": (0.0, inf), "nn.relu6": (0.0, 6.0)}


@dataclass
class Epilogue:
    """The operators that a kernel applies to its sums."""

    end: Any
    """The value that the kernel returns."""
    inside: list[Any] = field(default_factory=list)
    """All values before it."""
    bias: Any = None
    """Int32, for each output."""
    factor: Any = None
    summand: Any = None
    """Float32: one number, or one for each output."""
    bounds: tuple[float, float] = (-inf, inf)
    quantised: tuple[float, float] | None = None
    """The scale, a divisor, and the zero point."""
    table: Any = None
    """The result for each of the 256 values of the quantised sum."""


@dataclass(frozen=True)
class ExactProduct:
    """A product or convolution for which there is a kernel."""

    kernel: dict[str, Any]
    source: Source
    weights: np.ndarray[Any, Any]
    zero: Any
    scale: Any
    dynamic_scale: Any
    flops: int


def exact_product(rewriter: Rewriter, call: Any, integers: Integers) -> ExactProduct | None:
    """Return the kernel for a product of integers in wider types; None if there is none."""
    source, weights = integers.source, integers.weights
    axis = 1 if operation(call) == "matmul" else 0
    terms = np.abs(np.moveaxis(weights, axis, 0).astype(np.int64)).reshape(weights.shape[axis], -1).sum(1)
    zero = None if source.zero is None else rewriter.number(source.zero)
    low, high = _RANGES[dtype_of(source.expr)]
    if int(terms.max(initial=0)) * 255 >= 1 << 31 or (zero is not None and not low <= zero <= high):
        return None
    dynamic_zero = None
    if source.zero is not None and zero is None:
        dynamic_zero = eight_bit_number(rewriter, source.zero)
        if dtype_of(dynamic_zero) != dtype_of(source.expr):
            return None
    geometry = (_product if operation(call) == "matmul" else _convolution)(call, source)
    if geometry is None:
        return None
    described, groups = geometry
    kernel, packed = packed_kernel(weights, operation(call) == "matmul", groups, described)
    if zero:
        kernel["source_zero"] = int(zero)
    flops = 2 * prod(sizes_of(call) or ()) * (weights.size // max(weights.shape[axis], 1))
    return ExactProduct(kernel, source, packed, dynamic_zero, integers.scale, integers.dynamic_scale, flops)


def _product(call: Any, source: Source) -> tuple[dict[str, Any], int] | None:
    out, shape = sizes_of(call) or (), source.shape
    if len(shape) < 2 or len(sizes_of(call.args[1]) or ()) != 2:
        return None
    rows = prod(shape[:-1])
    images = [channels_last((1, rows, 1, shape[-1])), channels_last((1, rows, 1, out[-1]))]
    return {**window((1, 1), (0,) * 4, (1, 1), (1, 1), (rows, 1), (rows, 1)), "kernel": [1, 1], "images": images}, 1


def _convolution(call: Any, source: Source) -> tuple[dict[str, Any], int] | None:
    attrs, out, shape = call.attrs, sizes_of(call) or (), source.shape
    size = (sizes_of(call.args[1]) or ())[2:]
    if layouts(call) != known_layouts(call, last=True) or len(size) > 2:
        return None
    geometry: dict[str, Any] = window(attrs.strides, attrs.padding, attrs.dilation, size, shape[1:-1], out[1:-1])
    geometry["kernel"] = list(size)
    if len(size) == 1:
        # A line is cut into tasks along its first dimension; neighbouring pixels are read together along the second.
        upright = shape[-1] % 2 == 0
        for name, value in geometry.items():
            one = 1 if name in ("kernel", "strides") else 0
            geometry[name] = [*value, one] if upright else [one, *value]
        shape, out = ((s[0], s[1], 1, s[2]) if upright else (s[0], 1, *s[1:]) for s in (shape, out))
    return {**geometry, "images": [channels_last(shape), channels_last(out)]}, int(attrs.groups)


def packed_kernel(weights: Any, product: bool, groups: int, geometry: dict[str, Any]) -> tuple[dict[str, Any], Any]:
    """Return the description of a kernel, without types, and its weights as it reads them."""
    kernel = {"primitive": PRIMITIVE, **{name: value for name, value in geometry.items() if name != "images"}}
    source, result = geometry["images"]
    if product:
        weights = weights.T[:, :, None, None]
    elif weights.ndim == 3:
        weights = weights[..., None] if kernel["kernel"][1] == 1 else weights[:, :, None]
    outputs, each = weights.shape[:2]
    if each == 1 and groups == outputs == source["dims"][1]:
        packed = pack_depthwise(weights)
        kernel["algorithm"] = "depthwise"
    else:
        packed = pack(weights, groups, merged=groups == 1 and kernel["dilation"][1] == 0)
    kernel["operands"] = [source, {**dense(packed.shape, parameter=True), "type": packed.dtype.name}, result]
    return kernel, packed


def pack(weights: Any, groups: int, merged: bool) -> Any:
    """Lay weights (outputs, channels, height, width) out as (groups, tiles, segments, pairs, columns, 2).

    A segment is contiguous in the image: the channels of one position of the window, or with ``merged`` those of one of
    its rows.
    """
    outputs, each, height, _ = weights.shape
    lines = weights.transpose(0, 2, 3, 1).reshape(groups, outputs // groups, *((height, -1) if merged else (-1, each)))
    columns, length = -lines.shape[1] % COLUMNS, lines.shape[3] % 2
    lines = np.pad(lines, ((0, 0), (0, columns), (0, 0), (0, length)))
    tiles = lines.reshape(groups, -1, COLUMNS, lines.shape[2], lines.shape[3] // 2, 2)
    return np.ascontiguousarray(tiles.transpose(0, 1, 3, 4, 2, 5))


def pack_depthwise(weights: Any) -> Any:
    """Lay weights (channels, 1, height, width) out as (tiles, places of the window, columns)."""
    lines = weights.reshape(weights.shape[0], -1).astype(np.int16)
    lines = np.pad(lines, ((0, -len(lines) % COLUMNS), (0, lines.shape[1] % 2)))
    return np.ascontiguousarray(lines.reshape(-1, COLUMNS, lines.shape[1]).transpose(0, 2, 1))


class EpilogueFinder:
    """Follows a product while its kernel can compute the operators that read it.

    Parameters
    ----------
    rewriter : Rewriter
    is_claimed : callable
        Whether another kernel computes a variable.
    start : relax.Var
        The product, whose last dimension is the outputs.
    scale : numpy.ndarray or None
        Factor of the kernel's sums that gives the product.
    """

    def __init__(self, rewriter: Rewriter, is_claimed: Callable[[Any], bool], start: Any, scale: Any) -> None:
        self.rewriter, self.is_claimed = rewriter, is_claimed
        self.shape = sizes_of(start) or ()
        self.epilogue = Epilogue(start, factor=scale)
        self.whole = scale is None  # whether the values are still sums

    def find(self) -> Epilogue:
        """Return the longest epilogue."""
        while (reader := self._reader(self.epilogue.end)) is not None:
            steps = self._take(reader)
            if not steps:
                break
            self.epilogue.inside += [self.epilogue.end, *steps[:-1]]
            self.epilogue.end = steps[-1]
            if self.epilogue.quantised is not None:
                self._take_byte_function()
                break
        return self.epilogue

    def _take_byte_function(self) -> None:
        epilogue, function = self.epilogue, byte_function(self.rewriter, self.epilogue.end, self.is_claimed)
        if function is not None and dtype_of(function.end) == dtype_of(epilogue.end):
            epilogue.inside += [epilogue.end, *function.inside]
            epilogue.end, epilogue.table = function.end, function.table

    def _reader(self, variable: Any) -> Any:
        """Return the only reader of a value, if it has the product's shape."""
        users = self.rewriter.uses[variable]
        if len(users) != 1 or users[0] is None or self.is_claimed(users[0]):
            return None
        return users[0] if sizes_of(users[0]) == self.shape else None

    def _take(self, variable: Any) -> list[Any]:
        """Fuse the next operators; return their variables, or none if the kernel cannot compute them."""
        epilogue, call = self.epilogue, self.rewriter.definitions[variable]
        if isinstance(call, relax.Var):
            return [variable]
        name, dtype = operation(call), dtype_of(variable)
        if name == "astype":
            return [variable] if self.whole and dtype in ("int32", "float32") else []
        if self.whole and dtype == "int32":
            return [variable] if name in ("add", "subtract") and self._take_bias(call, name) else []
        if dtype != "float32":
            return []
        if name == "divide" or name == "round":
            return self._take_quantisation(variable, call)
        self.whole = False
        unbounded = epilogue.bounds == (-inf, inf)
        if name == "multiply" and epilogue.factor is None and epilogue.summand is None and unbounded:
            epilogue.factor = self._operand(call)
            return [] if epilogue.factor is None else [variable]
        if name in ("add", "subtract") and epilogue.summand is None and unbounded:
            operand = self._operand(call, first=name == "subtract")
            if name == "subtract":
                operand = -operand if isinstance(operand, np.ndarray) else None
            epilogue.summand = operand
            return [] if operand is None else [variable]
        return [variable] if self._take_bounds(call, name) else []

    def _take_bias(self, call: Any, name: str) -> bool:
        value = self._operand(call, first=name == "subtract")
        if value is None or isinstance(self.epilogue.bias, relax.Expr):
            return False
        if isinstance(value, relax.Expr):  # known only when the model runs
            if name != "add" or self.epilogue.bias is not None or (sizes_of(value) or (0,))[-1] != self.shape[-1]:
                return False
            self.epilogue.bias = value
            return True
        value = np.broadcast_to(value, (self.shape[-1],)).astype(np.int32)
        before = np.zeros_like(value) if self.epilogue.bias is None else self.epilogue.bias
        self.epilogue.bias = before + value if name == "add" else before - value
        return True

    def _take_bounds(self, call: Any, name: str) -> bool:
        if name in ("maximum", "minimum"):
            operand = self._operand(call)
            if not isinstance(operand, np.ndarray) or operand.size != 1 or np.isnan(operand).any():
                return False
            number = float(operand.reshape(-1)[0])
            low, high = (number, inf) if name == "maximum" else (-inf, number)
        elif name == "clip":
            low, high = _bounds(call)
        elif name in _FUNCTIONS:
            low, high = _FUNCTIONS[name]
        else:
            return False
        least, greatest = max(self.epilogue.bounds[0], low), min(self.epilogue.bounds[1], high)
        if not least <= greatest:
            return False
        self.epilogue.bounds = least, greatest
        return True

    def _take_quantisation(self, variable: Any, call: Any) -> list[Any]:
        """Take ``astype(clip(round(value / scale) + zero, least, greatest))``."""
        scale, zero, steps = 1.0, 0.0, [variable]
        if operation(call) == "divide":
            divisor = self.rewriter.number(call.args[1])
            if divisor is None or not 0 < divisor < inf or (variable := self._reader(variable)) is None:
                return []
            scale, call = divisor, self.rewriter.definitions[variable]
            steps.append(variable)
        if operation(call) != "round" or (variable := self._reader(variable)) is None:
            return []
        steps.append(variable)
        call = self.rewriter.definitions[variable]
        if operation(call) == "add":
            number = self.rewriter.number(call.args[1])
            if number is None or (variable := self._reader(variable)) is None:
                return []
            zero, call = number, self.rewriter.definitions[variable]
            steps.append(variable)
        if operation(call) != "clip" or (end := self._reader(variable)) is None:
            return []
        steps.append(end)
        dtype, last = dtype_of(end), self.rewriter.definitions[end]
        if operation(last) != "astype" or dtype not in BYTES or _bounds(call) != _RANGES[dtype]:
            return []
        if not _RANGES[dtype][0] <= zero <= _RANGES[dtype][1] or not zero.is_integer():
            return []
        self.epilogue.quantised = scale, zero
        return steps

    def _operand(self, call: Any, first: bool = False) -> Any:
        """Return the operand beside the value: an array if it is known; None if it has another shape.

        With ``first``, the value must be the first operand.
        """
        value = self.epilogue.end
        others = [a for a in call.args if not self.rewriter.resolve(a).same_as(self.rewriter.resolve(value))]
        if len(others) != 1 or (first and call.args[1].same_as(value)):
            return None
        shape = sizes_of(others[0])
        if shape is None or dtype_of(others[0]) != dtype_of(call):
            return None
        if prod(shape) != 1 and (prod(shape) != self.shape[-1] or shape[-1] != self.shape[-1]):
            return None
        known = known_value(self.rewriter, others[0])
        if known is None:
            return others[0]
        return known.reshape(-1) if np.isfinite(known).all() else None


def _bounds(call: Any) -> tuple[float, float]:
    low, high = (float(getattr(a.value, "value", a.value)) for a in call.args[1:3])
    return low, high


def emit_exact(rewriter: Any, call: Any, product: ExactProduct, epilogue: Epilogue) -> Any:
    """Emit the call of a kernel with its epilogue; ``rewriter`` is a `Claimer`."""
    source = rewriter.value(product.source.expr)
    if product.source.order != tuple(range(len(product.source.order))):
        source = rewriter.emit(relax.op.permute_dims(source, list(product.source.order)))
    origin = rewriter.resolve(call.args[1])
    arguments = [source, rewriter.folded(product.weights, origin)]
    images = product.kernel["operands"]
    operands = [{**images[0], "type": dtype_of(product.source.expr)}, images[1]]
    kernel, names = dict(product.kernel), list[str]()

    def add(value: Any, kind: str) -> int:
        size = value.size if isinstance(value, np.ndarray) else prod(sizes_of(value) or ())
        arguments.append(rewriter.folded(value, origin) if isinstance(value, np.ndarray) else rewriter.value(value))
        operands.append({**dense((size,)), "type": kind})
        return len(operands) - 1

    if product.zero is not None:
        kernel["source_zero_input"] = add(product.zero, dtype_of(product.source.expr))
    if epilogue.bias is not None:
        kernel["bias"] = add(epilogue.bias, "int32")
        names.append("bias")
    post: list[dict[str, Any]] = []
    factor = epilogue.factor
    if product.dynamic_scale is not None:
        number = rewriter.emit(relax.op.reshape(rewriter.value(product.dynamic_scale), (1,)))
        factor = rewriter.emit(
            relax.op.multiply(number, rewriter.folded(factor.astype(np.float32).reshape(-1), origin))
        )
    for name, value in (("multiply", factor), ("add", epilogue.summand)):
        if value is not None:
            value = value.astype(np.float32) if isinstance(value, np.ndarray) else value
            post.append({"name": name, "input": add(value, "float32")})
    if epilogue.bounds != (-inf, inf):
        low, high = (float(np.clip(bound, *_FLOATS)) for bound in epilogue.bounds)
        post.append({"name": "clip", "alpha": low, "beta": high})
    if epilogue.quantised is not None:
        scale, zero = epilogue.quantised
        post.append({"name": "quantize", "alpha": scale, "beta": zero})
    if epilogue.table is not None:
        post.append({"name": "table", "input": add(epilogue.table, dtype_of(epilogue.end))})
    kernel["post"] = post
    kernel["operands"] = [*operands, {**images[2], "type": dtype_of(epilogue.end)}]
    kind = "_".join([f"exact_{operation(call).removeprefix('nn.')}", *names, *(each["name"] for each in post)])
    ty = relax.TensorType(sizes_of(call), dtype_of(epilogue.end))
    return rewriter.kernels.call(kind, kernel, arguments, ty, product.flops)


_FLOATS = (float(np.finfo(np.float32).min), float(np.finfo(np.float32).max))
"""JSON has no infinities."""
