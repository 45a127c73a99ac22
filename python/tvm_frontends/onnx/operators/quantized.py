"""Converters of the standard's quantised operators, in the integer arithmetic that it prescribes."""

from __future__ import annotations

import math
from typing import Any

import onnx
from tvm import relax

from ...tensor_types import dtype_of
from .nodes import Node, converter
from .quantized_arithmetic import along, cast, centred, dequantize, quantize, range_of, saturate, sum_dtype
from .small_floats import FLOAT4, SMALL_FLOATS, decode, encode, round_to_float4

_UINT8 = onnx.TensorProto.UINT8


@converter("QuantizeLinear")
@converter("QuantizeLinear", domain="com.microsoft")
def quantize_linear(node: Node) -> relax.Expr:
    """Convert QuantizeLinear per tensor, per axis or in blocks, to integers up to 16 bits and small floats."""
    x, zero = node.inputs[0], node.input(2)
    dtype = _output_dtype(node) if zero is None or node.attribute("output_dtype", 0) else dtype_of(zero)
    scale, zero = (_spread(node, x, value) for value in (node.inputs[1], zero))
    if dtype in SMALL_FLOATS or dtype == FLOAT4:
        # Zero points of small floats are 0.
        quotient = node.emit(relax.op.divide(cast(node, x, "float32"), cast(node, scale, "float32")))
        return (
            round_to_float4(node, quotient)
            if dtype == FLOAT4
            else encode(node, quotient, dtype, bool(node.attribute("saturate", 1)))
        )
    return quantize(node, x, scale, zero, dtype)


@converter("DequantizeLinear")
@converter("DequantizeLinear", domain="com.microsoft")
def dequantize_linear(node: Node) -> relax.Expr:
    """Convert DequantizeLinear to the type of the scale, from integers up to 32 bits and small floats."""
    x, scale = node.inputs[0], node.inputs[1]
    if dtype_of(x) in SMALL_FLOATS:
        factor = cast(node, _spread(node, x, scale), "float32")
        return cast(node, node.emit(relax.op.multiply(decode(node, x), factor)), dtype_of(scale))
    if dtype_of(x) not in ("int8", "uint8", "int16", "uint16", "int32", "float32"):  # float32 stands for float4_e2m1fn
        raise node.unsupported(
            f"its input is {dtype_of(x)}; integers of up to 32 bits and floating point of 8 or 4 bits are allowed"
        )
    dtype = dtype_of(scale)
    scale, zero = (_spread(node, x, value) for value in (scale, node.input(2)))
    return cast(node, dequantize(node, x, scale, zero), dtype)


@converter("DynamicQuantizeLinear")
def dynamic_quantize_linear(node: Node) -> list[relax.Expr]:
    """Convert DynamicQuantizeLinear: quantise to uint8 by the data's range; outputs are data, scale and zero point."""
    return list(dynamically_quantized(node, node.inputs[0]))


def dynamically_quantized(node: Node, x: relax.Expr) -> tuple[relax.Expr, relax.Expr, relax.Expr]:
    """Return a float32 tensor as uint8, its scale and its zero point; the range always contains 0."""
    op, zero = relax.op, relax.const(0.0, "float32")
    least = node.emit(op.minimum(node.emit(op.min(x)), zero))
    greatest = node.emit(op.maximum(node.emit(op.max(x)), zero))
    width = node.emit(op.subtract(greatest, least))
    scale = node.emit(op.divide(width, relax.const(255.0, "float32")))
    empty = node.emit(op.equal(width, zero))
    scale = node.emit(op.where(empty, relax.const(1.0, "float32"), scale))
    start = node.emit(op.divide(node.emit(op.negative(least)), scale))
    point = saturate(node, start, None, "uint8")
    return quantize(node, x, scale, point, "uint8"), scale, point


@converter("MatMulInteger")
def matmul_integer(node: Node) -> relax.Expr:
    """Convert MatMulInteger: the product of 8-bit matrices, as int32."""
    a, b, *zeros = (node.input(k) for k in range(4))
    return cast(node, integer_matmul(node, a, b, *zeros), "int32")


def integer_matmul(
    node: Node, a: relax.Expr, b: relax.Expr, a_zero: relax.Expr | None, b_zero: relax.Expr | None
) -> relax.Expr:
    """Emit the exact product of quantised matrices minus their zero points: float32 if that holds it, else int32.

    A zero point is a scalar, one number for each row of ``a``, or one for each column of ``b``.
    """
    terms = node.size(a, -1, "its first matrix")
    dtype = sum_dtype(node, a, b, b_zero, terms)
    rows = None if a_zero is None else per_matrix(node, a_zero, a, -2)
    columns = None if b_zero is None else per_matrix(node, b_zero, b, -1)
    return node.emit(relax.op.matmul(centred(node, a, rows, dtype), centred(node, b, columns, dtype)))


def float_product(node: Node, left: tuple[Any, ...], right: tuple[Any, ...], bias: relax.Expr | None) -> relax.Expr:
    """Emit the product of two quantised matrices, each with its scale and zero point, as floats."""
    (a, a_scale, a_zero), (b, b_scale, b_zero) = left, right
    product = cast(node, integer_matmul(node, a, b, a_zero, b_zero), "float32")
    scale = node.emit(relax.op.multiply(per_matrix(node, a_scale, a, -2), per_matrix(node, b_scale, b, -1)))
    result = node.emit(relax.op.multiply(product, scale))
    return result if bias is None else node.emit(relax.op.add(result, bias))


@converter("QLinearMatMul")
def qlinear_matmul(node: Node) -> relax.Expr:
    """Convert QLinearMatMul: an integer product, quantised."""
    a, a_scale, a_zero, b, b_scale, b_zero, y_scale, y_zero = node.inputs
    product = cast(node, integer_matmul(node, a, b, a_zero, b_zero), "float32")
    factor = node.emit(relax.op.multiply(per_matrix(node, a_scale, a, -2), per_matrix(node, b_scale, b, -1)))
    return requantize(node, product, factor, y_scale, y_zero)


def requantize(
    node: Node, value: relax.Expr, factor: relax.Expr, y_scale: relax.Expr, y_zero: relax.Expr
) -> relax.Expr:
    """Quantise ``value * factor``; factor and scale are combined first, as in ONNX Runtime."""
    ratio = node.emit(relax.op.divide(cast(node, factor, "float32"), cast(node, y_scale, "float32")))
    return saturate(node, node.emit(relax.op.multiply(value, ratio)), y_zero, dtype_of(y_zero))


@converter("ConvInteger")
def conv_integer(node: Node) -> relax.Expr:
    """Convert ConvInteger: a convolution of 8-bit tensors, as int32."""
    return cast(node, _integer_conv(node, node.inputs[0], node.inputs[1], node.input(2), node.input(3)), "int32")


@converter("QLinearConv")
def qlinear_conv(node: Node) -> relax.Expr:
    """Convert QLinearConv: an integer convolution, quantised; the int32 bias has the scale x_scale * w_scale."""
    x, x_scale, x_zero, w, w_scale, w_zero, y_scale, y_zero = node.inputs[:8]
    rank = len(node.sizes(x, "its input x"))
    value = _integer_conv(node, x, w, x_zero, w_zero)
    if node.input(8) is not None:
        bias = along(node, node.inputs[8], 1, rank)
        value = node.emit(relax.op.add(cast(node, value, "int32"), bias))
    factor = node.emit(relax.op.multiply(along(node, x_scale, 1, rank), along(node, w_scale, 1, rank)))
    return requantize(node, cast(node, value, "float32"), factor, y_scale, y_zero)


def _integer_conv(
    node: Node, x: relax.Expr, w: relax.Expr, x_zero: relax.Expr | None, w_zero: relax.Expr | None
) -> relax.Expr:
    """Emit the exact convolution of integers minus their zero points; padding has the value of the zero point."""
    shape = node.shape(w, "its weights")
    dtype = sum_dtype(node, x, w, w_zero, math.prod(shape[1:]))
    weights = centred(node, w, None if w_zero is None else along(node, w_zero, 0, len(shape)), dtype)
    zero = None if x_zero is None else along(node, x_zero, 1, len(shape))
    names = ("auto_pad", "dilations", "group", "kernel_shape", "pads", "strides")
    attributes = {name: node.attributes[name] for name in names if name in node.attributes}
    return node.convert_as("Conv", [centred(node, x, zero, dtype), weights], attributes)


def _output_dtype(node: Node) -> str:
    number = node.attribute("output_dtype", 0) or _UINT8
    dtype = str(onnx.helper.tensor_dtype_to_np_dtype(number))
    if dtype not in SMALL_FLOATS and dtype != FLOAT4:
        range_of(node, dtype)
    return dtype


def _spread(node: Node, x: relax.Expr, value: relax.Expr | None) -> relax.Expr | None:
    """Return a scale or zero point in a shape that broadcasts against its tensor."""
    if value is None:
        return None
    shape, parameter_shape = node.sizes(x, "its input x"), node.shape(value, "a scale or zero point")
    rank = len(shape)
    axis = int(node.attribute("axis", 1)) % max(rank, 1)
    block = int(node.attribute("block_size", 0))
    if not block:
        if math.prod(parameter_shape) > 1 and node.size(x, axis, "its input x") != math.prod(parameter_shape):
            raise node.unsupported(
                f"a scale or zero point has shape {parameter_shape}, and axis {axis} of x has {shape[axis]}"
            )
        return along(node, value, axis, rank)
    repeated = node.emit(relax.op.repeat(value, block, axis))
    return node.emit(relax.op.strided_slice(repeated, [axis], [0], [shape[axis]]))


def per_matrix(node: Node, value: relax.Expr, matrix: relax.Expr, axis: int) -> relax.Expr:
    """Reshape a scale or zero point (scalar, vector along an axis, or full tensor) to broadcast against a matrix."""
    shape = node.shape(value, "a scale or zero point")
    rank = len(node.sizes(matrix, "its matrix"))
    if math.prod(shape) == 1:
        return node.emit(relax.op.reshape(value, ()))
    if len(shape) == 1:
        return along(node, value, axis % rank, rank) if rank > 1 else value
    return value
