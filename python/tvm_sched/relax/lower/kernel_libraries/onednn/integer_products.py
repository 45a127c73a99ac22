"""Convolutions and products of 8-bit tensors with constant weights, with exact sums in int32.

Importers write them on wider types with the zero point subtracted: ``conv2d(astype(x) - zero, weights)``. The kernel reads
``x`` itself and computes the same sums. Some models dequantise before they convolve (ONNX's QDQ form:
``conv2d((astype(x) - zero) * scale, weights)``). Their weights are factored into integers and a scale for each output, and
the scales multiply the sums. TVM compiles the elementwise operators that follow (bias, scales, rounding).

Kernels of our own (`exact_products`) compute them together with what follows. oneDNN's take their place for convolutions of
volumes, on processors with AVX512-VNNI, AVX-VNNI or AMX: on others its sums saturate.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np
import tvm
from tvm import relax

from ....ir.attributes import get_compile_target
from ....ir.sizes import sizes_of
from ....ir.tensor_types import dtype_of
from ....toolchain.compile_target import CompileTarget, features_of
from ..rewrite import RESHAPES, Rewriter, axis_order, constant_value, operation
from .describe import channels_last, dense, window
from .products import CONVOLUTIONS, implementation, known_layouts, layouts

BYTES = ("int8", "uint8")
SUMS = ("int32", "float32")
"""Types in which importers write the sums; float32 only if it represents every sum exactly."""
INSTRUCTIONS = ("avx512vnni", "avxvnni")
"""Instruction sets of which the processor must have one, by LLVM's names."""
MOST_TERMS = (1 << 31) // (255 * 128) - 1
"""Most terms of a sum that cannot overflow int32."""
_FEW = 32
"""Elements of a row that are tested before the whole row."""


@dataclass(frozen=True)
class IntegerProduct:
    """A kernel that replaces a convolution or product."""

    kernel: dict[str, Any]
    """Description of the kernel."""
    source: Any
    """The old 8-bit tensor, to be transposed by ``order``."""
    order: tuple[int, ...]
    weights: np.ndarray[Any, Any]
    """Int8."""
    zero: Any = None
    """The old zero point to subtract from the source, if the kernel does not subtract it."""
    scale: Any = None
    """Factor of the sums: one number, or one per output."""


@dataclass(frozen=True)
class Integers:
    """A convolution or product of an 8-bit tensor with whole numbers, in wider types."""

    source: Source
    weights: np.ndarray[Any, Any]
    """Int8, or int16 if that does not hold them."""
    scale: Any
    """Factor of the sums: one number, or one per output."""
    dynamic_scale: Any = None
    """A further factor, one number that is known only when the model runs."""


def find_integers(rewriter: Rewriter, call: Any) -> Integers | None:
    """Return the integers that a convolution or product with constant weights multiplies; None for other calls."""
    name = operation(call)
    if dtype_of(call) not in SUMS or (name != "matmul" and name not in CONVOLUTIONS):
        return None
    source = _source(rewriter, call.args[0], name == "matmul")
    value = None if source is None else known_value(rewriter, call.args[1])
    if source is None or value is None or sizes_of(call) is None:
        return None
    weights, scale, dynamic = _bytes(value), source.scale, None
    if isinstance(scale, relax.Expr):
        scale, dynamic = np.float32(1), scale
    if scale is not None:
        parts = factored(value, 1 if name == "matmul" else 0)
        if parts is None:
            return None
        weights, scale = parts[0], np.float32(scale) * parts[1]
    return None if weights is None else Integers(source, weights, scale, dynamic)


def integer_product(rewriter: Rewriter, call: Any, integers: Integers) -> IntegerProduct | None:
    """Return oneDNN's kernel for a product of integers; None if it has no fast and exact one."""
    name, source, weights, scale = operation(call), integers.source, integers.weights, integers.scale
    if (
        weights.dtype != np.int8
        or integers.dynamic_scale is not None
        or not has_instructions(get_compile_target(rewriter.mod))
    ):
        return None
    terms = weights.size // max(weights.shape[1 if name == "matmul" else 0], 1)
    if terms > MOST_TERMS:
        return None
    product = (_matmul if name == "matmul" else _convolution)(call, weights, source, scale)
    return product if product is not None and is_exact(implementation(product.kernel)) else None


def factored(weights: Any, axis: int) -> tuple[Any, Any] | None:
    """Factor weights exactly into whole numbers up to 255 and a float32 scale for each index along an axis; else None."""
    if weights.dtype != np.float32 or weights.size == 0 or not np.isfinite(weights).all():
        return None
    rows = np.moveaxis(weights, axis, 0).reshape(weights.shape[axis], -1)
    greatest = np.abs(rows).max(1)
    scales = np.where(greatest > 0, np.nan, 1).astype(np.float32)
    for count in range(1, 256):  # the integer that the greatest weight of a row may be
        near = (greatest / np.float32(count)).astype(np.float32)
        for scale in (near, np.nextafter(near, np.float32(0)), np.nextafter(near, np.float32(np.inf))):
            left = np.flatnonzero(np.isnan(scales))
            few = rows[left, :_FEW]
            left = left[_are_multiples(few, scale[left])]
            left = left[_are_multiples(rows[left], scale[left])]
            scales[left] = scale[left]
    if np.isnan(scales).any():
        return None
    along = scales.reshape([-1 if d == axis else 1 for d in range(weights.ndim)])
    whole = np.rint(weights / along)
    short = _bytes(whole)
    return None if short is None else (short, scales)


def _are_multiples(rows: Any, scales: Any) -> Any:
    """Whether the elements of each row are integer multiples of the row's scale."""
    with np.errstate(all="ignore"):
        return (np.rint(rows / scales[:, None]) * scales[:, None] == rows).all(1)


def is_integer_product(rewriter: Rewriter, call: Any) -> bool:
    """Whether `integer_product` may find a kernel after conversion to channels last."""
    if dtype_of(call) not in SUMS or _source(rewriter, call.args[0], product=False) is None:
        return False
    return _bytes(known_value(rewriter, call.args[1])) is not None


def has_instructions(target: CompileTarget) -> bool:
    """Whether the target processors have instructions for products of 8-bit integers."""
    return not set(INSTRUCTIONS).isdisjoint(features_of(target.host))


def is_exact(name: str) -> bool:
    """Return whether an implementation of oneDNN, given by its name, adds products of 8-bit numbers without saturation."""
    return ("vnni" in name or "amx" in name) and "ref" not in name


def known_value(rewriter: Rewriter, expr: Any) -> Any:
    """Return the value of a constant, also of cast, shifted, scaled or transposed 8-bit weights; None if unknown."""
    expr = rewriter.resolve(expr)
    call = rewriter.defined(expr)
    if call is None:
        return constant_value(expr)
    name = operation(call)
    if name not in ("astype", "subtract", "multiply", "permute_dims") or sizes_of(call) is None:
        return None
    values = [known_value(rewriter, argument) for argument in call.args]
    if any(value is None for value in values):
        return None
    if name == "astype":
        return values[0].astype(dtype_of(call))
    if name == "permute_dims":
        return values[0].transpose(axis_order(call))
    return values[0] - values[1] if name == "subtract" else values[0] * values[1]


def _bytes(value: Any) -> Any:
    """Convert constant weights to int8, or int16 for 8-bit integers less a zero point; None for other values."""
    if value is None or value.dtype.name not in (*SUMS, *BYTES) or value.size == 0:
        return None
    short = np.clip(np.nan_to_num(value), -255, 255).astype(np.int16)
    if not np.array_equal(short, value):
        return None
    narrow = short.astype(np.int8)
    return narrow if np.array_equal(narrow, short) else short


@dataclass(frozen=True)
class Source:
    """The 8-bit tensor behind a wider one: the order of its dimensions, its zero point and its scale.

    ``scale`` is a number, or an old value of one element that is known only when the model runs.
    """

    expr: Any
    order: tuple[int, ...]
    zero: Any
    scale: Any

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape after transposition by ``order``."""
        shape = sizes_of(self.expr) or ()
        return tuple(shape[k] for k in self.order)


def _source(rewriter: Rewriter, expr: Any, product: bool) -> Source | None:
    """Return the 8-bit tensor that an expression widens; a ``product``'s rows may also be reshaped."""
    order, zero, scale, wider = tuple(range(len(sizes_of(expr) or ()))), None, None, False
    expr = rewriter.resolve(expr)
    while (call := rewriter.defined(expr)) is not None:
        name = operation(call)
        factor = _factor(rewriter, call.args[1]) if name == "multiply" else None
        inner = sizes_of(call.args[0])
        if name == "permute_dims":
            axes = axis_order(call)
            order = tuple(axes[k] for k in order)
        elif name == "subtract" and zero is None and not wider and _is_whole_number(rewriter, call.args[1]):
            zero = rewriter.resolve(call.args[1])
        elif name == "reshape" and product and _keeps_rows(inner, sizes_of(call), order):
            order = tuple(range(len(inner or ())))
        elif factor is not None and scale is None and zero is None and not wider:
            scale = factor
        elif name == "astype" and dtype_of(call.args[0]) in BYTES and dtype_of(call) not in BYTES:
            wider = True
        else:
            break
        if inner is None or len(inner) != len(order):
            return None
        expr = rewriter.resolve(call.args[0])
    return Source(expr, order, zero, scale) if wider and dtype_of(expr) in BYTES else None


def _keeps_rows(inner: tuple[int, ...] | None, shape: tuple[int, ...] | None, order: tuple[int, ...]) -> bool:
    """Whether a reshape changes only the dimensions before the last, and nothing is transposed after it."""
    return bool(inner and shape and inner[-1] == shape[-1] and order == tuple(range(len(order))))


def _factor(rewriter: Rewriter, expr: Any) -> Any:
    """Return a number, or an expression of one float32 element, else None."""
    number = rewriter.number(expr)
    if number is not None:
        return number
    shape = sizes_of(expr)
    return expr if shape is not None and prod(shape) == 1 and dtype_of(expr) == "float32" else None


def _is_whole_number(rewriter: Rewriter, expr: Any) -> bool:
    """Whether an expression is one 8-bit number: a constant from -128 to 255, or an 8-bit value cast and reshaped."""
    shape = sizes_of(expr)
    if shape is None or prod(shape) != 1:
        return False
    number = rewriter.number(expr)
    if number is not None:
        return number.is_integer() and -128 <= number <= 255  # sums with larger numbers might overflow int32
    return dtype_of(eight_bit_number(rewriter, expr)) in BYTES


def eight_bit_number(rewriter: Rewriter, expr: Any) -> Any:
    """Return the tensor behind casts and reshapes: an 8-bit one if a zero point is known only at run time."""
    while dtype_of(expr) not in BYTES and operation(call := rewriter.defined(expr)) in ("astype", *RESHAPES):
        expr = call.args[0]
    return expr


def _convolution(call: Any, weights: Any, source: Source, scale: Any) -> IntegerProduct | None:
    attrs, out, shape = call.attrs, sizes_of(call) or (), source.shape
    number = _number(source.zero)
    if number is None or layouts(call) != known_layouts(call, last=True):
        return None
    groups = int(attrs.groups)
    split = (groups, weights.shape[0] // groups, *weights.shape[1:])
    filters = dense(split if groups > 1 else weights.shape, parameter=True)
    kernel = {
        "primitive": "convolution",
        **window(attrs.strides, attrs.padding, attrs.dilation, weights.shape[2:], shape[1:-1], out[1:-1]),
        "source_zero": number,
        "operands": [
            {**channels_last(shape), "type": dtype_of(source.expr)},
            {**filters, "type": "int8"},
            {**channels_last(out), "type": _sum_type(call, scale)},
        ],
    }
    return IntegerProduct(kernel, source.expr, source.order, weights, scale=scale)


def _sum_type(call: Any, scale: Any) -> str:
    """Return the type of the kernel's sums: int32 for a scaled float32 product, whose sums float32 may not hold exactly."""
    return dtype_of(call) if scale is None else "int32"


def _number(zero: Any) -> int | None:
    """Return a constant zero point from -128 to 255, which kernels take; None for any other."""
    value = np.zeros(1) if zero is None else constant_value(zero)
    if value is None or not -128 <= float(value.reshape(-1)[0]) <= 255:
        return None
    return int(value.reshape(-1)[0])


def _matmul(call: Any, weights: Any, source: Source, scale: Any) -> IntegerProduct | None:
    out, shape = sizes_of(call) or (), source.shape
    if weights.ndim != 2 or len(shape) < 2:
        return None
    kernel = {
        "primitive": "matmul",
        "operands": [
            {**dense((prod(shape[:-1]), shape[-1])), "type": dtype_of(source.expr)},
            {**dense(weights.shape, parameter=True), "type": "int8"},
            {**dense((prod(out[:-1]), out[-1])), "type": _sum_type(call, scale)},
        ],
    }
    return IntegerProduct(kernel, source.expr, source.order, weights, source.zero, scale)


def emit_product(rewriter: Any, call: Any, product: IntegerProduct) -> Any:
    """Emit the call of a kernel, the correction for the zero point and the scaling; ``rewriter`` is a `Claimer`."""
    source = rewriter.value(product.source)
    if product.order != tuple(range(len(product.order))):
        source = rewriter.emit(relax.op.permute_dims(source, list(product.order)))
    weights = rewriter.folded(product.weights, rewriter.resolve(call.args[1]))
    shape = sizes_of(call) or ()
    outputs = product.weights.shape[1 if operation(call) == "matmul" else 0]
    flops = 2 * prod(shape) * (product.weights.size // max(outputs, 1))
    kind = f"integer_{operation(call).removeprefix('nn.')}"
    dtype = _sum_type(call, product.scale)
    ty = relax.TensorType(shape, dtype)
    result = rewriter.emit(rewriter.kernels.call(kind, product.kernel, [source, weights], ty, flops))
    if product.zero is not None:
        # sum((x - zero) * w) = sum(x * w) - zero * sum(w)
        sums = _constant(product.weights.astype(np.int64).sum(0).astype(dtype))
        zero = rewriter.emit(relax.op.reshape(rewriter.value(product.zero), ()))
        zero = rewriter.emit(relax.op.astype(zero, dtype))
        result = rewriter.emit(relax.op.subtract(result, rewriter.emit(relax.op.multiply(zero, sums))))
    if product.scale is None:
        return result
    result = rewriter.emit(relax.op.astype(result, "float32"))
    return rewriter.emit(relax.op.multiply(result, _constant(product.scale.astype(np.float32))))


def _constant(value: Any) -> Any:
    return relax.const(tvm.runtime.tensor(value))
