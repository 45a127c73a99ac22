"""Converters of elementwise torch operators.

Operands are promoted as torch does; TVM's frontend takes the type of the first operand. Integer quotients and remainders
do not trap at the divisors 0 and -1.

Corrections of TVM 0.27.0, ``relax/frontend/torch/base_fx_graph_translator.py``:

- ``_binary_op``: ignores ``alpha`` of ``add`` and ``sub``; divides integers without making them floating point; gives
  the second operand for ``maximum`` and ``minimum`` if either is NaN.
- ``_unary_op``: fails on integers, which torch promotes to floating point.
- ``_where``: fails if the branches have different types.
- ``_elu``: ignores ``scale`` and ``input_scale``, so that ``selu`` is wrong.

Corrections of TVM 0.27.0, ``relax/frontend/torch/exported_program_translator.py``:

- ``_log1p``: adds 1 before the logarithm, so results for small inputs are 0; ``expm1`` likewise subtracts 1 after the
  exponential.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import tvm
from tvm import relax, te

from ..division import float_remainder, safe_divisor
from ..kernels.divisors import gcd_kernel
from ..tensor_types import dtype_of
from .node_calls import HALF, Call, converter, is_float

_UNARY: dict[str, Callable[[relax.Expr], relax.Expr]] = {
    name: getattr(relax.op, name)
    for name in ("acos", "acosh", "asin", "asinh", "atan", "atanh", "cos", "cosh", "erf", "exp", "log", "rsqrt", "sigmoid",
                 "sin", "sinh", "sqrt", "tan", "tanh")
}  # fmt: skip
_ROUNDING = {name: getattr(relax.op, name) for name in ("ceil", "floor", "round", "trunc")}
_COMPARISON = {
    "eq": relax.op.equal,
    "ne": relax.op.not_equal,
    "lt": relax.op.less,
    "le": relax.op.less_equal,
    "gt": relax.op.greater,
    "ge": relax.op.greater_equal,
}
_OF_BOOLEANS = {
    **dict.fromkeys(("add", "maximum", "bitwise_or"), relax.op.logical_or),
    **dict.fromkeys(("mul", "minimum", "bitwise_and"), relax.op.logical_and),
    "bitwise_xor": relax.op.logical_xor,
}
_BINARY = {
    "add": relax.op.add, "sub": relax.op.subtract, "rsub": relax.op.subtract, "mul": relax.op.multiply,
    "atan2": relax.op.atan2, "bitwise_and": relax.op.bitwise_and, "bitwise_or": relax.op.bitwise_or,
    "bitwise_xor": relax.op.bitwise_xor,
}  # fmt: skip


def operator_name(call: Call) -> str:
    """Return the operator's name without its overload."""
    return str(call.node.target.__name__).split(".")[0]


def constant(value: float, like: relax.Expr) -> relax.Expr:
    """Return a number in the type of a tensor."""
    return relax.const(value, dtype_of(like))


def _register_unary() -> None:
    def elementary(call: Call) -> relax.Expr:
        """Convert a function such as ``exp`` to Relax's; integers are first cast to floating point."""
        return call.emit(_UNARY[operator_name(call)](call.tensor("self", call.dtype)))

    def rounding(call: Call) -> relax.Expr:
        """Convert ``ceil``, ``floor``, ``round`` and ``trunc``; integers are unchanged."""
        x = call.tensor("self")
        return call.emit(_ROUNDING[operator_name(call)](x)) if is_float(call.dtype) else x

    converter(*(f"{name}.default" for name in _UNARY))(elementary)
    converter(*(f"{name}.default" for name in _ROUNDING))(rounding)


_register_unary()


@converter("log2.default", "log10.default")
def logarithm(call: Call) -> relax.Expr:
    """Convert ``log2`` and ``log10``: divide the natural logarithm by a constant."""
    x = call.tensor("self", call.dtype)
    base = {"log2": 0.6931471805599453, "log10": 2.302585092994046}[operator_name(call)]
    return call.emit(relax.op.divide(call.emit(relax.op.log(x)), constant(base, x)))


@converter("log1p.default")
def log1p(call: Call) -> relax.Expr:
    """Convert ``log1p`` to the C library's function, which keeps the digits of small ``x``."""
    return emit_log1p(call, call.tensor("self", call.dtype))


def emit_log1p(call: Call, x: relax.Expr) -> relax.Expr:
    """Return the logarithm of 1 + x."""

    def compute(a: te.Tensor) -> te.Tensor:
        wide = "float64" if a.dtype == "float64" else "float32"
        return te.compute(a.shape, lambda *i: tvm.tirx.log1p(a(*i).astype(wide)).astype(a.dtype), name="log1p")

    return call.emit_te(compute, x, name="log1p")


@converter("erfc.default")
def erfc(call: Call) -> relax.Expr:
    """Convert ``erfc`` to the C library's function, which keeps the digits of small results."""
    x = call.tensor("self", call.dtype)

    def compute(a: te.Tensor) -> te.Tensor:
        wide, function = ("float64", "erfc") if a.dtype == "float64" else ("float32", "erfcf")

        def element(*i: tvm.tirx.Var) -> tvm.tirx.Expr:
            return tvm.tirx.call_pure_extern(wide, function, a(*i).astype(wide)).astype(a.dtype)

        return te.compute(a.shape, element, name="erfc")

    return call.emit_te(compute, x, name="erfc")


@converter("lgamma.default")
def lgamma(call: Call) -> relax.Expr:
    """Convert ``lgamma``, the logarithm of the magnitude of the gamma function, to the C library's function."""
    x = call.tensor("self", call.dtype)

    def compute(a: te.Tensor) -> te.Tensor:
        wide, function = ("float64", "lgamma") if a.dtype == "float64" else ("float32", "lgammaf")

        def element(*i: tvm.tirx.Var) -> tvm.tirx.Expr:
            return tvm.tirx.call_pure_extern(wide, function, a(*i).astype(wide)).astype(a.dtype)

        return te.compute(a.shape, element, name="lgamma")

    return call.emit_te(compute, x, name="lgamma")


@converter("signbit.default")
def signbit(call: Call) -> relax.Expr:
    """Convert ``signbit``: read the sign bit of floating point (-0 has it), compare integers with 0."""
    return _sign_bit(call, call.tensor("self"))


def _sign_bit(call: Call, x: relax.Expr) -> relax.Expr:
    kind = dtype_of(x)
    if not is_float(kind):
        x = call.cast(x, "int8") if kind == "bool" else x
        return call.emit(relax.op.less(x, constant(0, x)))
    bits = f"int{''.join(c for c in kind if c.isdigit())}"

    def compute(a: te.Tensor) -> te.Tensor:
        return te.compute(
            a.shape, lambda *i: tvm.tirx.reinterpret(bits, a(*i)) < tvm.tirx.const(0, bits), name="signbit"
        )

    return call.emit_te(compute, x, name="signbit")


@converter("copysign.Tensor", "copysign.Scalar")
def copysign(call: Call) -> relax.Expr:
    """Convert ``copysign``: the magnitude of one operand with the sign of the other; the sign of -0 counts."""
    magnitude = call.emit(relax.op.abs(call.tensor("self", call.dtype)))
    sign = call.tensor("other", call.dtype)
    if isinstance(sign, tvm.ir.GenericConst):
        negative = relax.const(np.signbit(sign.value.numpy()))
    else:
        negative = _sign_bit(call, sign)
    return call.emit(relax.op.where(negative, call.emit(relax.op.negative(magnitude)), magnitude))


@converter("gcd.default", "lcm.default")
def common_divisor(call: Call) -> relax.Expr:
    """Convert ``gcd`` and ``lcm`` of integers; a multiple beyond the type's range is undefined, as in torch."""
    shape, kind = call.shape, call.dtype
    x, y = (call.emit(relax.op.broadcast_to(call.tensor(name, kind), shape)) for name in ("self", "other"))
    flat = [call.emit(relax.op.reshape(value, (-1,))) for value in (x, y)]
    count = math.prod(shape)
    kernel = call.importer.block_builder.add_func(gcd_kernel(count, kind), "gcd")
    divisor = call.emit(relax.call_tir(kernel, flat, relax.TensorType((count,), kind)))
    divisor = call.emit(relax.op.reshape(divisor, shape))
    if operator_name(call) == "gcd":
        return divisor
    divisor = call.emit(relax.op.maximum(divisor, constant(1, divisor)))  # 0 if both operands are
    multiple = call.emit(relax.op.multiply(call.emit(relax.op.divide(x, divisor)), y))
    return multiple if kind.startswith("uint") else call.emit(relax.op.abs(multiple))


@converter("exp2.default")
def exp2(call: Call) -> relax.Expr:
    """Convert ``exp2`` to ``2 ** x``."""
    x = call.tensor("self", call.dtype)
    return call.emit(relax.op.power(constant(2, x), x))


@converter("hardtanh.default")
def hardtanh(call: Call) -> relax.Expr:
    """Convert ``hardtanh`` of floating point; integers are refused, since torch specifies no result."""
    if not is_float(call.dtype):
        raise call.unsupported(f"its input is {call.dtype}; floating point is allowed, for integers use clamp")
    return call.upstream()


@converter("expm1.default")
def expm1(call: Call) -> relax.Expr:
    """Convert ``expm1`` without loss of digits near 0.

    It is ``tanh(x / 2) * (exp(x) + 1)`` for ``|x| < 1``, else ``exp(x) - 1``.
    """
    x = call.tensor("self", call.dtype)
    exponential = call.emit(relax.op.exp(x))
    half = call.emit(relax.op.tanh(call.emit(relax.op.multiply(x, constant(0.5, x)))))
    small = relax.op.multiply(half, relax.op.add(exponential, constant(1, x)))
    large = relax.op.subtract(exponential, constant(1, x))
    return call.emit(relax.op.where(relax.op.less(relax.op.abs(x), constant(1, x)), small, large))


@converter("reciprocal.default")
def reciprocal(call: Call) -> relax.Expr:
    """Convert ``reciprocal`` to ``1 / x``; integers are cast to floating point."""
    x = call.tensor("self", call.dtype)
    return call.emit(relax.op.divide(constant(1, x), x))


@converter("isnan.default", "isinf.default", "isfinite.default")
def classify(call: Call) -> relax.Expr:
    """Convert ``isnan``, ``isinf`` and ``isfinite``; integers are finite."""
    x = call.tensor("self")
    x = x if is_float(dtype_of(x)) else call.cast(x, "float32")
    return call.emit(getattr(relax.op, operator_name(call))(x))


@converter("sign.default", "abs.default", "neg.default")
def signs(call: Call) -> relax.Expr:
    """Convert ``sign``, ``abs`` and ``neg``; booleans are unchanged, and unsigned integers are their own magnitude."""
    x, name = call.tensor("self"), operator_name(call)
    unsigned = dtype_of(x) == "bool" or dtype_of(x).startswith("uint")
    if (name == "abs" and unsigned) or dtype_of(x) == "bool":
        return x
    if name == "neg":
        return call.emit(relax.op.subtract(constant(0, x), x) if unsigned else relax.op.negative(x))
    if name == "sign" and unsigned:
        return call.emit(relax.op.astype(relax.op.greater(x, constant(0, x)), dtype_of(x)))
    return call.emit(relax.op.abs(x) if name == "abs" else relax.op.sign(x))


@converter("bitwise_not.default")
def bitwise_not(call: Call) -> relax.Expr:
    """Convert ``bitwise_not``; for booleans it is the logical not."""
    x = call.tensor("self")
    return call.emit((relax.op.logical_not if dtype_of(x) == "bool" else relax.op.bitwise_not)(x))


@converter("elu.default")
def elu(call: Call) -> relax.Expr:
    """Convert ``elu`` with ``alpha``, ``scale`` and ``input_scale``, which selu and celu use."""
    x = call.tensor("self")
    inner = call.emit(relax.op.multiply(x, constant(float(call["input_scale"]), x)))
    factor = float(call["alpha"]) * float(call["scale"])
    below = relax.op.multiply(relax.op.subtract(relax.op.exp(inner), constant(1, x)), constant(factor, x))
    above = relax.op.multiply(x, constant(float(call["scale"]), x))
    return call.emit(relax.op.where(relax.op.greater(x, constant(0, x)), above, below))


@converter("add.Tensor", "add.Scalar", "sub.Tensor", "sub.Scalar", "rsub.Tensor", "rsub.Scalar", "mul.Tensor", "mul.Scalar",
           "atan2.default", "bitwise_and.Tensor", "bitwise_and.Scalar", "bitwise_or.Tensor", "bitwise_or.Scalar",
           "bitwise_xor.Tensor", "bitwise_xor.Scalar")  # fmt: skip
def arithmetic(call: Call) -> relax.Expr:
    """Convert sums, differences, products, ``atan2`` and bitwise operators in the result's type.

    ``alpha`` multiplies the second operand. A sum of booleans is OR, a product AND.
    """
    name, dtype = operator_name(call), call.dtype
    if name == "mul":
        dtype = product_type(call)
    elif name == "atan2" and dtype in HALF:  # LLVM has no atan2 of half types
        dtype = "float32"
    x, y = call.tensor("self", dtype), call.tensor("other", dtype)
    alpha = call.arguments.get("alpha", 1)
    if dtype == "bool":
        y = y if alpha else call.emit(relax.op.logical_and(y, constant(False, y)))
        return call.emit(_OF_BOOLEANS[name](x, y))
    if name == "rsub":
        x, y = y, x
    if alpha != 1:
        y = call.emit(relax.op.multiply(y, call.cast(alpha, dtype)))
    return call.cast(call.emit(_BINARY[name](x, y)), call.dtype)


def product_type(call: Call) -> str:
    """Return the type to multiply or divide in: the result's, or float32 for a number that a half type does not hold.

    Torch uses the exact number: as a factor 100,000 is not infinite, and as a divisor 1e-8 is not 0.
    """
    number = call["other"]
    rounded = call.dtype in HALF and isinstance(number, int | float) and _is_rounded(number, call.dtype)
    return "float32" if rounded else call.dtype


def _is_rounded(value: float, dtype: str) -> bool:
    import torch

    held = float(torch.tensor(value, dtype=getattr(torch, dtype)))
    return held != value and value == value


@converter("hypot.default")
def hypotenuse(call: Call) -> relax.Expr:
    """Convert ``hypot`` in the result's type."""
    return length(call, call.tensor("self", call.dtype), call.tensor("other", call.dtype))


def length(call: Call, x: relax.Expr, y: relax.Expr) -> relax.Expr:
    """Return ``sqrt(x^2 + y^2)``, scaled by the larger operand so that the squares neither overflow nor vanish."""
    x, y = (call.emit(relax.op.abs(value)) for value in (x, y))
    larger, smaller = largest(call, x, y, True), largest(call, x, y, False)
    same = call.emit(relax.op.equal(larger, smaller))  # avoids 0 / 0 and infinity / infinity
    ratio = call.emit(relax.op.where(same, constant(1, larger), call.emit(relax.op.divide(smaller, larger))))
    root = call.emit(relax.op.sqrt(call.emit(relax.op.add(constant(1, ratio), relax.op.multiply(ratio, ratio)))))
    return call.emit(relax.op.multiply(larger, root))


@converter("maximum.default", "minimum.default")
def extremum(call: Call) -> relax.Expr:
    """Convert ``maximum`` and ``minimum``; the result is NaN if either operand is."""
    return largest(
        call, call.tensor("self", call.dtype), call.tensor("other", call.dtype), operator_name(call) == "maximum"
    )


def largest(call: Call, x: relax.Expr, y: relax.Expr, maximum: bool) -> relax.Expr:
    """Return the larger or the smaller of two tensors, NaN if either is.

    If the second operand is a constant, the lowering of tvm_sched keeps the NaN.
    """
    name = "maximum" if maximum else "minimum"
    if dtype_of(x) == "bool":
        return call.emit(_OF_BOOLEANS[name](x, y))
    result = call.emit(getattr(relax.op, name)(x, y))
    if not is_float(dtype_of(x)) or isinstance(y, tvm.ir.GenericConst):
        return result
    return call.emit(relax.op.where(relax.op.isnan(x), x, result))


@converter("fmax.default", "fmin.default")
def extremum_of_numbers(call: Call) -> relax.Expr:
    """Convert ``fmax`` and ``fmin``: if one operand is NaN, the result is the other one."""
    x, y = call.tensor("self", call.dtype), call.tensor("other", call.dtype)
    x, y = (call.emit(relax.op.broadcast_to(value, call.shape)) for value in (x, y))
    result = largest(call, x, y, operator_name(call) == "fmax")
    if not is_float(call.dtype):
        return result
    result = call.emit(relax.op.where(relax.op.isnan(x), y, result))
    return call.emit(relax.op.where(relax.op.isnan(y), x, result))


@converter("clamp.default", "clamp.Tensor")
def clamp(call: Call) -> relax.Expr:
    """Convert ``clamp``: bounds are numbers or tensors, either may be missing, and they take part in type promotion."""
    x = call.tensor("self", call.dtype)
    for name, is_lower in (("min", True), ("max", False)):
        if call[name] is not None:
            x = largest(call, x, call.tensor(name, call.dtype), is_lower)
    return x


@converter(*(f"{name}.{kind}" for name in _COMPARISON for kind in ("Tensor", "Scalar")))
def comparison(call: Call) -> relax.Expr:
    """Convert comparisons in the type to which torch promotes both operands."""
    dtype = common(call, call.node.args[0], call.node.args[1])
    return call.emit(_COMPARISON[operator_name(call)](call.tensor("self", dtype), call.tensor("other", dtype)))


def common(call: Call, *operands: Any) -> str:
    """Return the type in which torch compares operands; int8 stands for bool, since TVM does not order booleans."""
    import torch

    values = [getattr(operand, "meta", {}).get("val", operand) for operand in operands]
    if any(isinstance(value, torch.SymInt | torch.SymFloat | torch.SymBool) for value in values):
        raise call.unsupported("it compares with a number that depends on tensor values; compare with a tensor")
    dtype = str(torch.result_type(*values)).removeprefix("torch.")
    return "int8" if dtype == "bool" else dtype


@converter("where.self")
def where(call: Call) -> relax.Expr:
    """Convert ``where`` with both branches in the result's type."""
    return call.emit(
        relax.op.where(
            call.tensor("condition", "bool"), call.tensor("self", call.dtype), call.tensor("other", call.dtype)
        )
    )


@converter("pow.Tensor_Tensor", "pow.Tensor_Scalar", "pow.Scalar")
def power(call: Call) -> relax.Expr:
    """Convert ``pow``: floating point to ``power``, integers with a constant exponent of 0 or more to repeated squaring.

    Integers with another exponent are refused.
    """
    if is_float(call.dtype):
        return call.emit(relax.op.power(call.tensor("self", call.dtype), call.tensor("exponent", call.dtype)))
    exponent = call["exponent"]
    if not isinstance(exponent, int) or exponent < 0:
        raise call.unsupported("its exponent of integers is not a constant of 0 or more; cast to float32 before it")
    result, square = call.cast(1, call.dtype), call.tensor("self", call.dtype)
    result = call.emit(relax.op.broadcast_to(result, square.ty.shape))
    while exponent:
        if exponent & 1:
            result = call.emit(relax.op.multiply(result, square))
        exponent >>= 1
        if exponent:
            square = call.emit(relax.op.multiply(square, square))
    return result


@converter("div.Tensor", "div.Scalar", "div.Tensor_mode", "div.Scalar_mode", "floor_divide.default")
def divide(call: Call) -> relax.Expr:
    """Convert ``div`` and ``floor_divide``: true division, or a quotient rounded towards zero or down."""
    x, y = call.tensor("self", product_type(call)), call.tensor("other", product_type(call))
    mode = "floor" if operator_name(call) == "floor_divide" else call.arguments.get("rounding_mode")
    if mode is None:
        return call.cast(call.emit(relax.op.divide(x, y)), call.dtype)
    if is_float(call.dtype):
        if mode == "trunc":
            return call.cast(call.emit(relax.op.trunc(call.emit(relax.op.divide(x, y)))), call.dtype)
        return call.cast(_float_remainder(call, x, y, "quotient"), call.dtype)
    y, negated = safe_divisor(call.emit, y)
    quotient = call.emit(relax.op.divide(x, y) if mode == "trunc" else relax.op.floor_divide(x, y))
    return quotient if negated is None else call.emit(relax.op.where(negated, relax.op.negative(quotient), quotient))


@converter("remainder.Tensor", "remainder.Scalar", "remainder.Scalar_Tensor", "fmod.Tensor", "fmod.Scalar")
def remainder(call: Call) -> relax.Expr:
    """Convert ``remainder`` (sign of the divisor) and ``fmod`` (sign of the dividend)."""
    x, y = call.tensor("self", call.dtype), call.tensor("other", call.dtype)
    if is_float(call.dtype):
        return _float_remainder(call, x, y, operator_name(call))
    y, _ = safe_divisor(call.emit, y)
    return call.emit((relax.op.mod if operator_name(call) == "fmod" else relax.op.floor_mod)(x, y))


def _float_remainder(call: Call, x: relax.Expr, y: relax.Expr, kind: str) -> relax.Expr:
    """Emit the kernel of `float_remainder`."""
    x, y = (call.emit(relax.op.broadcast_to(value, call.shape)) for value in (x, y))
    return call.emit_te(float_remainder(kind), x, y, name=f"float_{kind}")


@converter(
    *(f"{name}.{kind}" for name in ("__lshift__", "__rshift__") for kind in ("Tensor", "Scalar")),
    *(
        f"bitwise_{side}_shift.{kind}"
        for side in ("left", "right")
        for kind in ("Tensor", "Tensor_Scalar", "Scalar_Tensor")
    ),
)
def shift(call: Call) -> relax.Expr:
    """Convert shifts of integers; torch leaves shifts by more bits than the type has undefined."""
    left, right = (call.cast(value, call.dtype) for value in list(call.arguments.values())[:2])
    name = call.node.target.__name__
    return (relax.op.left_shift if "lshift" in name or "left" in name else relax.op.right_shift)(left, right)


@converter(
    "fake_quantize_per_tensor_affine.default",
    "fake_quantize_per_tensor_affine_cachemask.default",
    "_fake_quantize_per_tensor_affine_cachemask_tensor_qparams.default",
    "fake_quantize_per_channel_affine.default",
    "fake_quantize_per_channel_affine_cachemask.default",
)
def fake_quantize(call: Call) -> Any:
    """Convert the rounding of models that are trained for integers: the values, and which of them were not clamped."""
    x = call.tensor("self")
    shape = [1] * len(x.ty.shape)
    if "axis" in call.arguments:
        shape[int(call["axis"])] = -1
    scale, zero = (call.cast(call[name], "float32") for name in ("scale", "zero_point"))
    scale, zero = (call.emit(relax.op.reshape(each, shape)) for each in (scale, zero))
    wide = call.cast(x, "float32")
    inverse = call.emit(relax.op.divide(relax.const(1.0, "float32"), scale))
    rounded = call.emit(relax.op.round(call.emit(relax.op.multiply(wide, inverse))))
    whole = call.emit(relax.op.add(rounded, zero))
    least, most = float(call["quant_min"]), float(call["quant_max"])
    centred = call.emit(relax.op.subtract(call.emit(relax.op.clip(whole, least, most)), zero))
    values = call.cast(call.emit(relax.op.multiply(centred, scale)), dtype_of(x))
    if not call.node.target.__name__.partition(".")[0].endswith(("cachemask", "qparams")):
        return values
    low, high = (relax.const(each, "float32") for each in (least, most))
    inside = (call.emit(relax.op.greater_equal(whole, low)), call.emit(relax.op.less_equal(whole, high)))
    return relax.Tuple([values, call.emit(relax.op.logical_and(*inside))])
