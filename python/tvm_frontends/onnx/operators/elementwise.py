"""Converters of elementwise operators that TVM lacks, or converts for some attributes, types or ranges only.

Corrections of TVM 0.27.0, ``relax/frontend/onnx/onnx_frontend.py``:

- ``IsInf``: ignores the attributes ``detect_negative`` and ``detect_positive``.
- ``PRelu``: takes a slope of one axis for the last axis of the input, and fails if it has one value for each channel,
  as older models do.
- ``Elu``: its constants are float32, so other types fail.
- ``ThresholdedRelu``: multiplies by 0, which makes NaN of infinities, and takes float32 only.
- ``Selu``: its constants are float32, so other types fail.
- ``Softplus``: computes ``log(1 + exp(-|x|))``, which is 0 for inputs below -17; it should use ``log1p``.
- ``Gemm``: rounds alpha and beta to whole numbers where the inputs are integers.
- ``Div``: divides integers by 0 as the processor does, which ends the process.
- ``BitShift``: shifts by the width of the type or more give what the processor gives; numpy, and so the standard,
  gives 0.
- ``Pow``: fails if base and exponent have different types, and on integers.
- ``Max``: gives the second operand if either is NaN; the result should be NaN. ``Min`` likewise.
- ``Dropout``: gives the mask as float32 and not as bool.
- ``Sign``: gives 0 for NaN; the reference, as numpy, gives NaN.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import tvm
from tvm import relax, te

from ...division import float_remainder, safe_divisor
from ...tensor_types import dtype_of
from .nodes import Node, constant_of, converter
from .upstream import convert_upstream

WHOLE = ("int", "uint")


def scalar(value: float, like: relax.Expr) -> relax.Expr:
    """Return a constant in the type of another value."""
    return relax.const(value, dtype_of(like))


@converter("IsInf")
def is_inf(node: Node) -> relax.Expr:
    """Convert IsInf with ``detect_negative`` and ``detect_positive``."""
    x = node.input(0)
    tests = [
        relax.op.equal(x, scalar(sign * np.inf, x))
        for name, sign in (("detect_negative", -1), ("detect_positive", 1))
        if node.attribute(name, 1)
    ]
    if len(tests) == 2:
        return relax.op.logical_or(*tests)
    return tests[0] if tests else relax.op.zeros(node.sizes(x, "its input"), "bool")


@converter("PRelu")
def prelu(node: Node) -> relax.Expr:
    """Convert PRelu with a slope that broadcasts to the input; a vector may also have one value for each channel."""
    x, slope = node.input(0), node.input(1)
    shape, slope_shape = node.sizes(x, "its input X"), node.sizes(slope, "its slope")
    vector = len(slope_shape) == 1 and len(shape) > 1 and not (isinstance(slope_shape[0], int) and slope_shape[0] == 1)
    if vector and node.size(slope, 0, "its slope") != node.size(x, -1, "its input X") and slope_shape[0] == shape[1]:
        slope = relax.op.reshape(slope, (slope_shape[0], *[1] * (len(shape) - 2)))
    return relax.op.where(relax.op.less(x, scalar(0, x)), relax.op.multiply(x, slope), x)


@converter("Elu", "Selu")
def elu(node: Node) -> relax.Expr:
    """Convert Elu, and Selu with its factor gamma, of any floating-point type."""
    x, selu = node.input(0), node.operator == "Selu"
    alpha = scalar(node.attribute("alpha", 1.67326319217681884765625 if selu else 1.0), x)
    below = relax.op.multiply(relax.op.subtract(relax.op.exp(x), scalar(1, x)), alpha)
    result = relax.op.where(relax.op.less(x, scalar(0, x)), below, x)
    return relax.op.multiply(scalar(node.attribute("gamma", 1.05070102214813232421875), x), result) if selu else result


@converter("ThresholdedRelu")
def thresholded_relu(node: Node) -> relax.Expr:
    """Convert ThresholdedRelu: 0 for all that is not greater than alpha, NaN too."""
    x = node.input(0)
    return relax.op.where(relax.op.greater(x, scalar(node.attribute("alpha", 1.0), x)), x, scalar(0, x))


@converter("Sign")
def sign(node: Node) -> relax.Expr:
    """Convert Sign; NaN stays NaN."""
    x = node.input(0)
    result = relax.op.sign(x)
    if "float" not in dtype_of(x):
        return result
    return relax.op.where(relax.op.isnan(x), x, node.emit(result))


@converter("Softplus")
def softplus(node: Node) -> relax.Expr:
    """Convert Softplus to ``max(x, 0) + log1p(exp(-|x|))``, which neither overflows nor loses small values."""
    x = node.input(0)

    def compute(a: te.Tensor) -> te.Tensor:
        wide = "float64" if a.dtype == "float64" else "float32"

        def element(*i: tvm.tirx.Var) -> tvm.tirx.Expr:
            value = a(*i).astype(wide)
            tail = tvm.tirx.log1p(tvm.tirx.exp(-tvm.tirx.abs(value)))
            return (tvm.tirx.Select(value > 0, value, tvm.tirx.const(0, wide)) + tail).astype(a.dtype)

        return te.compute(a.shape, element, name="softplus")

    return node.builder.emit_te(compute, x, primfunc_name_hint="softplus")


@converter("Div")
def divide(node: Node) -> relax.Expr:
    """Convert Div; integer division by 0 has an undefined result, but does not trap."""
    x, y = node.input(0), node.input(1)
    if isinstance(x, relax.ShapeExpr) or isinstance(y, relax.ShapeExpr) or not dtype_of(y).startswith(WHOLE):
        return convert_upstream(node)
    by, negated = safe_divisor(node.emit, y)
    quotient = node.emit(node.convert_as("Div", [x, by], node.attributes, node.opset))
    if negated is None:
        return quotient
    return relax.op.where(negated, relax.op.negative(quotient), quotient)


@converter("Mod")
def mod(node: Node) -> relax.Expr:
    """Convert Mod: with the sign of the divisor, or with ``fmod`` that of the dividend; bfloat16 is refused."""
    x, y = node.input(0), node.input(1)
    truncate = bool(node.attribute("fmod", 0))
    if dtype_of(x).startswith(WHOLE):
        by, _ = safe_divisor(node.emit, y)
        return relax.op.mod(x, by) if truncate else relax.op.floor_mod(x, by)
    if dtype_of(x) not in ("float16", "float32", "float64"):
        raise node.unsupported(
            f"its type is {dtype_of(x)}; integers, float16, float32 and float64 are allowed, cast before it"
        )

    left, right = node.sizes(x, "its input A"), node.sizes(y, "its input B")
    shape = left if left == right else np.broadcast_shapes(node.shape(x, "its input A"), node.shape(y, "its input B"))
    x, y = (node.emit(relax.op.broadcast_to(value, shape)) for value in (x, y))
    compute = float_remainder("fmod" if truncate else "remainder")
    return node.builder.emit_te(compute, x, y, primfunc_name_hint="remainder")


@converter("Gemm")
def gemm(node: Node) -> relax.Expr:
    """Convert Gemm; integers with fractional alpha or beta are refused, since the standard specifies no rounding."""
    x = node.input(0)
    factors = [float(node.attribute(name, 1.0)) for name in ("alpha", "beta")]
    if dtype_of(x).startswith(WHOLE) and not all(factor.is_integer() for factor in factors):
        raise node.unsupported(
            f"alpha is {factors[0]:g} and beta {factors[1]:g}; whole numbers are allowed where the inputs are integers"
        )
    inputs = (x, node.input(1), node.input(2))
    return convert_upstream(replace(node, inputs=inputs))


@converter("BitShift")
def bit_shift(node: Node) -> relax.Expr:
    """Convert BitShift; a shift by the type's width or more gives 0, or the sign for signed numbers shifted right."""
    x, y = node.input(0), node.input(1)
    left = node.attribute("direction") == "LEFT"
    bits = int(dtype_of(x).lstrip("uint"))
    inside = relax.op.less(y, scalar(bits, y))
    if dtype_of(y).startswith("int"):
        inside = relax.op.logical_and(inside, relax.op.greater_equal(y, scalar(0, y)))
    if left:
        amount = relax.op.where(inside, y, scalar(0, y))
        return relax.op.where(inside, relax.op.left_shift(x, amount), scalar(0, x))
    if dtype_of(x).startswith("int"):
        return relax.op.right_shift(x, relax.op.where(inside, y, scalar(bits - 1, y)))
    return relax.op.where(inside, relax.op.right_shift(x, relax.op.where(inside, y, scalar(0, y))), scalar(0, x))


@converter("Pow")
def power(node: Node) -> relax.Expr:
    """Convert Pow of any types to the type of the base; integer powers are exact."""
    base, exponent = node.input(0), node.input(1)
    if not dtype_of(base).startswith(WHOLE):
        return relax.op.power(base, relax.op.astype(exponent, dtype_of(base)))
    if not dtype_of(exponent).startswith(WHOLE):
        wide = relax.op.power(relax.op.astype(base, "float64"), relax.op.astype(exponent, "float64"))
        return relax.op.astype(wide, dtype_of(base))
    return _whole_power(node, base, exponent)


def _whole_power(node: Node, base: relax.Expr, exponent: relax.Expr) -> relax.Expr:
    """Emit exponentiation by squaring, modulo the type's range; negative exponents round towards zero."""
    op, one, zero = relax.op, scalar(1, base), scalar(0, base)
    signed = dtype_of(exponent).startswith("int")
    magnitude = node.emit(op.abs(exponent)) if signed else exponent
    result, square = one, base
    for bit in range(7):  # bases other than -1, 0 and 1 exceed any integer type long before
        moved = op.right_shift(magnitude, scalar(bit, exponent)) if bit else magnitude
        taken = op.equal(op.bitwise_and(moved, scalar(1, exponent)), scalar(1, exponent))
        result = node.emit(op.where(taken, op.multiply(result, square), result))
        square = node.emit(op.multiply(square, square))
    at_zero = op.where(op.equal(exponent, scalar(0, exponent)), one, zero)
    result = op.where(op.equal(base, zero), at_zero, result)
    if not signed:
        return result
    unit = op.equal(base, one)
    if dtype_of(base).startswith("int"):
        unit = op.logical_or(unit, op.equal(base, scalar(-1, base)))
    lost = op.logical_and(op.less(exponent, scalar(0, exponent)), op.logical_not(unit))
    return op.where(lost, zero, result)


@converter("Dropout")
def dropout(node: Node) -> list[relax.Expr]:
    """Convert Dropout to the identity: in inference, or with the ratio 0. Training with another ratio is refused."""
    x = node.input(0)
    training = node.constant(2)
    if training is not None and bool(training):
        ratio = 0.5 if node.input(1) is None else node.constant(1)
        if ratio is None or float(ratio) != 0.0:  # None: known only when the model runs
            raise node.unsupported(
                "it drops random elements in training mode, and compiled models must be repeatable; export the model in "
                "evaluation mode, or make training_mode the constant false"
            )
    mask = relax.op.ones(node.sizes(x, "its input"), "bool")
    return [x, mask]


@converter("BitCast")
def bit_cast(node: Node) -> relax.Expr:
    """Convert BitCast (opset 26): the same bits as another type of equal width; not between bool and wider values."""
    from tvm.relax.frontend.onnx.onnx_frontend import get_type

    x, kind = node.input(0), get_type(node.attribute("to"))
    if kind == dtype_of(x):
        return x
    if dtype_of(x) == "bool" and kind in ("int8", "uint8"):
        return relax.op.astype(x, kind)  # one byte, 0 or 1
    if "bool" in (kind, dtype_of(x)):
        raise node.unsupported(
            f"it casts {dtype_of(x)} to {kind}; between bool and others, bool to int8 or uint8 is allowed"
        )
    return node.builder.emit_te(
        lambda a: te.compute(a.shape, lambda *i: tvm.tirx.reinterpret(kind, a(*i)), name="bit_cast"),
        x,
        primfunc_name_hint="bit_cast",
    )


@converter("Max", "Min", "Sum", "Mean")
def variadic(node: Node) -> relax.Expr:
    """Convert Max, Min, Sum and Mean pair by pair, so that inputs broadcast."""
    function = {"Max": _extremum, "Min": _extremum}.get(node.operator, lambda _, a, b: relax.op.add(a, b))
    first, *others = node.inputs
    for other in others:
        first = node.emit(function(node, first, other))
    return relax.op.divide(first, scalar(len(node.inputs), first)) if node.operator == "Mean" else first


def _extremum(node: Node, a: relax.Expr, b: relax.Expr) -> relax.Expr:
    """Emit the larger or smaller of two tensors, NaN if either is.

    A constant goes second: the lowering of tvm_sched then keeps the NaN.
    """
    if constant_of(a) is not None:
        a, b = b, a
    result = (relax.op.maximum if node.operator == "Max" else relax.op.minimum)(a, b)
    known = constant_of(b)
    if "float" not in dtype_of(a) or (known is not None and known.ndim == 0 and not np.isnan(known)):
        return result
    return relax.op.where(relax.op.isnan(a), a, node.emit(result))  # TVM's result is b if either is NaN
