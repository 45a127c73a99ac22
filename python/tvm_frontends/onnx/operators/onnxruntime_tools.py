"""Converters of com.microsoft's operators that ONNX Runtime's quantisation and graph optimisation tools write."""

from __future__ import annotations

import math

from tvm import relax

from ...tensor_types import dtype_of
from .nodes import Node, converter
from .quantized import dynamically_quantized, float_product, integer_matmul, per_matrix, requantize
from .quantized_arithmetic import cast, dequantize, quantize

_DOMAIN = "com.microsoft"
_ACTIVATIONS = ("Relu", "Tanh", "Sigmoid", "LeakyRelu", "Clip", "HardSigmoid")


@converter("DynamicQuantizeMatMul", domain=_DOMAIN)
def dynamic_quantize_matmul(node: Node) -> relax.Expr:
    """Convert DynamicQuantizeMatMul: quantise A by its range, multiply integers, return floats.

    Inputs: A (float), B, its scale, its zero point, a bias.
    """
    a, b, b_scale, b_zero, bias = (node.input(k) for k in range(5))
    quantized, a_scale, a_zero = dynamically_quantized(node, a)
    return float_product(node, (quantized, a_scale, a_zero), (b, b_scale, b_zero), bias)


@converter("MatMulIntegerToFloat", domain=_DOMAIN)
def matmul_integer_to_float(node: Node) -> relax.Expr:
    """Convert MatMulIntegerToFloat: multiply integers, return floats.

    Inputs: A, B, their scales, their zero points, a bias.
    """
    a, b, a_scale, b_scale, a_zero, b_zero, bias = (node.input(k) for k in range(7))
    return float_product(node, (a, a_scale, a_zero), (b, b_scale, b_zero), bias)


@converter("QLinearAdd", "QLinearMul", domain=_DOMAIN)
def qlinear_binary(node: Node) -> relax.Expr:
    """Convert QLinearAdd and QLinearMul: dequantise, compute in float32, quantise.

    Inputs: A, its scale and zero point, B, its scale and zero point, scale and zero point of the result.
    """
    a, a_scale, a_zero, b, b_scale, b_zero, scale, zero = (node.input(k) for k in range(8))
    operation = relax.op.add if node.operator == "QLinearAdd" else relax.op.multiply
    values = dequantize(node, a, a_scale, a_zero), dequantize(node, b, b_scale, b_zero)
    return quantize(node, node.emit(operation(*values)), scale, zero, dtype_of(a))


@converter("QLinearSigmoid", "QLinearLeakyRelu", domain=_DOMAIN)
def qlinear_activation(node: Node) -> relax.Expr:
    """Convert QLinearSigmoid and QLinearLeakyRelu: dequantise, compute in float32, quantise.

    Inputs: X, its scale and zero point, scale and zero point of the result.
    """
    x, x_scale, x_zero, scale, zero = (node.input(k) for k in range(5))
    value = dequantize(node, x, x_scale, x_zero)
    if node.operator == "QLinearSigmoid":
        result = node.emit(relax.op.sigmoid(value))
    else:
        result = node.emit(relax.op.nn.leakyrelu(value, float(node.attribute("alpha", 0.01))))
    return quantize(node, result, scale, zero, dtype_of(x))


@converter("QLinearSoftmax", domain=_DOMAIN)
def qlinear_softmax(node: Node) -> relax.Expr:
    """Convert QLinearSoftmax; the attribute ``opset`` is that of the original Softmax, whose meaning changed in 13.

    Inputs: as for QLinearSigmoid.
    """
    x, x_scale, x_zero, scale, zero = (node.input(k) for k in range(5))
    opset = int(node.attribute("opset", 13))
    axis = int(node.attribute("axis", -1 if opset >= 13 else 1))
    value = dequantize(node, x, x_scale, x_zero)
    shape = node.shape(x, "its input X")
    if opset < 13:  # the axes from this one on are flattened
        start = axis % len(shape)
        value = node.emit(relax.op.reshape(value, (math.prod(shape[:start]), math.prod(shape[start:]))))
        axis = -1
    result = node.emit(relax.op.reshape(node.emit(relax.op.nn.softmax(value, axis)), shape))
    return quantize(node, result, scale, zero, dtype_of(x))


@converter("QLinearConcat", domain=_DOMAIN)
def qlinear_concat(node: Node) -> relax.Expr:
    """Convert QLinearConcat: dequantise, concatenate, quantise.

    Inputs: scale and zero point of the result, then each tensor with its scale and zero point.
    """
    scale, zero, *parts = node.inputs
    values = [dequantize(node, *parts[k : k + 3]) for k in range(0, len(parts), 3)]
    joined = node.emit(relax.op.concat(values, int(node.attributes["axis"])))
    return quantize(node, joined, scale, zero, dtype_of(zero))


@converter("QLinearGlobalAveragePool", "QLinearAveragePool", domain=_DOMAIN)
def qlinear_pool(node: Node) -> relax.Expr:
    """Convert QLinearAveragePool and QLinearGlobalAveragePool in float32; channels_last is refused.

    Inputs: X, its scale and zero point, scale and zero point of the result.
    """
    if node.attribute("channels_last", 0):
        raise node.unsupported("its attribute channels_last is set; only channels before the image are supported")
    x, x_scale, x_zero, scale, zero = (node.input(k) for k in range(5))
    attributes = {k: v for k, v in node.attributes.items() if k != "channels_last"}
    pooled = node.convert_as(node.operator.removeprefix("QLinear"), [dequantize(node, x, x_scale, x_zero)], attributes)
    return quantize(node, pooled, scale, zero, dtype_of(x))


@converter("QGemm", domain=_DOMAIN)
def qgemm(node: Node) -> relax.Expr:
    """Convert QGemm: an integer product plus C, scaled to floats or quantised again.

    Inputs: A, its scale and zero point, B, its scale and zero point, C (int32), scale and zero point of the result.
    """
    a, a_scale, a_zero, b, b_scale, b_zero, c, scale, zero = (node.input(k) for k in range(9))
    if node.attribute("transA", 0):
        a = node.emit(relax.op.permute_dims(a))
    if node.attribute("transB", 0):
        b = node.emit(relax.op.permute_dims(b))
    product = integer_matmul(node, a, b, a_zero, b_zero)
    if c is not None:
        product = node.emit(relax.op.add(cast(node, product, "int32"), c))
    factor = node.emit(relax.op.multiply(per_matrix(node, a_scale, a, -2), per_matrix(node, b_scale, b, -1)))
    alpha = float(node.attribute("alpha", 1.0))
    factor = node.emit(relax.op.multiply(factor, relax.const(alpha, "float32")))
    product = cast(node, product, "float32")
    if scale is None:
        return node.emit(relax.op.multiply(product, factor))
    return requantize(node, product, factor, scale, zero)


@converter("FusedMatMul", domain=_DOMAIN)
def fused_matmul(node: Node) -> relax.Expr:
    """Convert FusedMatMul: ``alpha * A @ B``; either may be transposed, or have its batch axis before the last."""
    factors = []
    for name, value in zip("AB", node.inputs, strict=True):
        rank = len(node.sizes(value, f"its input {name}"))
        if node.attribute(f"transBatch{name}", 0):
            value = node.emit(relax.op.permute_dims(value, [*range(1, rank - 1), 0, rank - 1]))
        if node.attribute(f"trans{name}", 0) and rank > 1:
            value = node.emit(relax.op.permute_dims(value, [*range(rank - 2), rank - 1, rank - 2]))
        factors.append(value)
    product = node.emit(relax.op.matmul(*factors))
    alpha = float(node.attribute("alpha", 1.0))
    return product if alpha == 1 else node.emit(relax.op.multiply(product, relax.const(alpha, dtype_of(product))))


@converter("FusedConv", "FusedGemm", domain=_DOMAIN)
def fused_activation(node: Node) -> relax.Expr:
    """Convert FusedConv and FusedGemm: the operator, then an activation. A convolution's fourth input is added before it."""
    operator = node.operator.removeprefix("Fused")
    attributes = {k: v for k, v in node.attributes.items() if not k.startswith("activation")}
    value = node.convert_as(operator, [node.inputs[0], node.inputs[1], node.input(2)], attributes)
    if operator == "Conv" and node.input(3) is not None:
        value = node.emit(relax.op.add(value, node.input(3)))
    name = node.attribute("activation", "")
    return _activated(node, value, name) if name else value


def _activated(node: Node, value: relax.Expr, name: str) -> relax.Expr:
    if name not in _ACTIVATIONS:
        raise node.unsupported(f"its activation is {name!r}; allowed are {', '.join(_ACTIVATIONS)}")
    alpha, beta = (node.attribute(f"activation_{key}") for key in ("alpha", "beta"))
    constants = node.attribute("activation_params", ()) or tuple(v for v in (alpha, beta) if v is not None)
    if name == "Clip":
        return node.emit(relax.op.clip(value, *(float(bound) for bound in constants)))
    keys = {"LeakyRelu": ("alpha",), "HardSigmoid": ("alpha", "beta")}.get(name, ())
    return node.convert_as(name, [value], dict(zip(keys, constants, strict=False)))
