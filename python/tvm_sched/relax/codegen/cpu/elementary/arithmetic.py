"""Vectorisable float32 expressions: no branches, no calls, exponents as bits."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tvm import tirx


class Bindings:
    """Stack variables for the common subexpressions of a formula, which LLVM keeps in registers.

    `Let` expressions are not used, because TVM's LLVM code generator inlines them while it simplifies, which takes seconds
    for two nested functions.
    """

    def __init__(self) -> None:
        self.statements: list[Any] = []

    def __call__(self, value: Any) -> Any:
        """Store a value in a new variable and return its load.

        A condition is returned unchanged, because TVM 0.27 stores vectors of booleans wrongly.
        """
        if str(value.ty.dtype).startswith("bool"):
            return value
        buffer = tirx.decl_buffer((1,), str(value.ty.dtype), "t", scope="local")
        self.statements += [tirx.AllocBuffer(buffer), tirx.BufferStore(buffer, value, [0])]
        return tirx.BufferLoad(buffer, [0])


def vector_type(kind: str, like: Any) -> str:
    """The vector type of a scalar type with as many lanes as an expression."""
    lanes = like.ty.dtype.lanes
    return kind if lanes == 1 else f"{kind}x{lanes}"


def cast(kind: str, x: Any) -> Any:
    """Convert every lane."""
    return tirx.Cast(vector_type(kind, x), x)


def reinterpret(kind: str, x: Any) -> Any:
    """Reinterpret the bits as another type."""
    return tirx.reinterpret(vector_type(kind, x), x)


def constant(value: float | int, kind: str, like: Any) -> Any:
    """A constant in every lane."""
    one = tirx.IntImm(kind, int(value)) if kind.startswith("int") else tirx.FloatImm(kind, value)
    lanes = like.ty.dtype.lanes
    return one if lanes == 1 else tirx.Broadcast(one, lanes)


def nan(like: Any) -> Any:
    """Not a number, in every lane."""
    return reinterpret("float32", constant(0x7FC00000, "int32", like))


def real(value: float, like: Any) -> Any:
    """A floating-point constant of the type of an expression."""
    return constant(value, str(like.ty.dtype).partition("x")[0], like)


def integer(value: int) -> Any:
    """A constant of 32 bits."""
    return tirx.IntImm("int32", value)


def equals(x: Any, value: float) -> Any:
    """Whether an expression equals a number."""
    return tirx.EQ(x, real(value, x))


def bits_of(x: Any) -> Any:
    """The bits of float32 as a whole number."""
    return reinterpret("int32", x)


def float_of(bits: Any) -> Any:
    """The float32 that has these bits."""
    return reinterpret("float32", bits)


def polynomial(coefficients: Sequence[float], x: Any) -> Any:
    """A polynomial, its highest coefficient first."""
    result = real(coefficients[0], x)
    for coefficient in coefficients[1:]:
        result = result * x + real(coefficient, x)
    return result


def at_least(x: Any, low: float) -> Any:
    """Return the larger of an expression and a number; NaN for NaN."""
    return tirx.Select(x < real(low, x), real(low, x), x)


def at_most(x: Any, high: float) -> Any:
    """Return the smaller of an expression and a number; NaN for NaN."""
    return tirx.Select(x > real(high, x), real(high, x), x)


def absolute(x: Any) -> Any:
    """The absolute value."""
    return float_of(tirx.bitwise_and(bits_of(x), integer(0x7FFFFFFF)))


def with_sign(magnitude: Any, sign: Any) -> Any:
    """A non-negative number with the sign of another number."""
    return float_of(tirx.bitwise_or(bits_of(magnitude), tirx.bitwise_and(bits_of(sign), integer(-0x80000000))))


def power_of_two(n: Any) -> Any:
    """Return 2 to an integer power, if the result is a normal number."""
    return float_of(tirx.shift_left(n + integer(127), integer(23)))


def scaled(let: Bindings, value: Any, n: Any) -> Any:
    """Multiply by 2 to an integer power in two steps, so that overflow and denormal results are right."""
    half = let(tirx.shift_right(n, integer(1)))
    return value * power_of_two(half) * power_of_two(n - half)
