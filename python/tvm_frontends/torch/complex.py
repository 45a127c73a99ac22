"""Complex tensors of torch.export programs, held as two real tensors, since TVM has no complex type.

An operator that moves elements, or that is linear with real factors, runs its real converter once for each part.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

from tvm import relax

from ..fourier import dft_matrix, transform
from .elementwise import length
from .node_calls import Call, Convert, converter

MOST_POINTS = 4096
"""Largest supported length of a Fourier transform: its matrix has the square of this many elements."""


@dataclass(frozen=True)
class Complex:
    """A complex tensor as two real tensors of its shape."""

    real: relax.Expr
    imaginary: relax.Expr


_LINEAR = frozenset(
    ("add.Tensor", "sub.Tensor", "neg.default", "div.Scalar", "sum.dim_IntList", "mean.dim", "view.default",
     "reshape.default", "permute.default", "transpose.int", "unsqueeze.default", "squeeze.dim",
     "squeeze.dims", "expand.default", "slice.Tensor", "select.int", "cat.default", "clone.default", "roll.default",
     "flip.default", "repeat.default", "index.Tensor", "index_select.default", "constant_pad_nd.default", "alias.default")
)  # fmt: skip
_INDEXED = ("index.Tensor", "index_select.default")
"""Linear operators whose real operands are indices: both parts use the same ones."""
SPECIAL: dict[str, Convert] = {}
"""Converters of operators that make or take complex tensors and are not linear, by the operator's name."""


_special = partial(converter, table=SPECIAL)


def is_complex(value: Any) -> bool:
    """Whether a node's result is complex in torch."""
    return hasattr(value, "dtype") and value.dtype.is_complex


def uses_complex(node: Any) -> bool:
    """Whether an operator reads or returns a complex tensor."""
    return any(is_complex(each.meta.get("val")) for each in (node, *node.all_input_nodes))


def convert(call: Call, by_parts: Callable[[Any], Any]) -> Any:
    """Convert an operator with complex operands or a complex result.

    ``by_parts`` is the converter for real tensors. A linear operator is converted twice by it: for the real parts, then for
    the imaginary parts. Operators that are neither linear nor in `SPECIAL` are refused, and so is adding a Python number.
    """
    node = call.node
    name = node.target.__name__
    if name in SPECIAL:
        return SPECIAL[name](call)
    if name not in _LINEAR or not is_complex(node.meta["val"]):
        raise call.unsupported("it has no converter for complex tensors; compute with torch.view_as_real in the model")
    adds_number = name in ("add.Tensor", "sub.Tensor") and not all(hasattr(each, "meta") for each in node.args[:2])
    if adds_number or call.arguments.get("value"):
        raise call.unsupported("it adds a number to a complex tensor, which is not supported; make the number a tensor")
    env = call.importer.env
    originals = {each: env[each] for each in node.all_input_nodes}
    results = []
    try:
        for part in ("real", "imaginary"):
            for each, value in originals.items():
                if isinstance(value, Complex):
                    env[each] = getattr(value, part)
                elif part == "imaginary" and name not in _INDEXED:
                    env[each] = call.emit(relax.op.zeros_like(value))
            results.append(by_parts(node))
    finally:
        env.update(originals)
    return Complex(*(value if isinstance(value, relax.Var) else call.emit(value) for value in results))


def _parts(call: Call, name: str) -> Complex:
    """Return an operand as a complex tensor; the imaginary part of a real operand is 0."""
    value = call[name]
    if isinstance(value, Complex):
        return value
    if isinstance(value, complex):
        return Complex(call.cast(value.real, call.dtype), call.cast(value.imag, call.dtype))
    real = call.cast(value, call.dtype)
    return Complex(real, call.emit(relax.op.zeros_like(real)))


@_special("mul.Tensor", "mul.Scalar")
def _product(call: Call) -> Complex:
    """Convert ``aten.mul`` to four real products."""
    a, b = _parts(call, "self"), _parts(call, "other")

    def times(x: relax.Expr, y: relax.Expr) -> relax.Expr:
        return call.emit(relax.op.multiply(x, y))

    real = relax.op.subtract(times(a.real, b.real), times(a.imaginary, b.imaginary))
    imaginary = relax.op.add(times(a.real, b.imaginary), times(a.imaginary, b.real))
    return Complex(call.emit(real), call.emit(imaginary))


@_special("div.Tensor")
def _quotient(call: Call) -> Complex:
    """Convert ``aten.div.Tensor`` of a complex tensor by a real one; a complex divisor is refused."""
    if isinstance(call["other"], Complex) or not isinstance(call["self"], Complex):
        raise call.unsupported("its divisor is complex; multiply by the conjugate, and divide by the squared magnitude")
    a, divisor = call["self"], call.cast(call["other"], call.dtype)
    return Complex(*(call.emit(relax.op.divide(part, divisor)) for part in (a.real, a.imaginary)))


@_special("view_as_real.default")
def _as_real(call: Call) -> relax.Expr:
    """Convert ``view_as_real``: stack both parts along a new last dimension."""
    x = call["self"]
    return call.emit(relax.op.stack([x.real, x.imaginary], axis=len(x.real.ty.shape)))


@_special("view_as_complex.default")
def _as_complex(call: Call) -> Complex:
    """Convert ``view_as_complex``: split the last dimension, of size 2, into both parts."""
    x = call.tensor("self")
    last = len(x.ty.shape) - 1
    parts = (call.emit(relax.op.strided_slice(x, [last], [k], [k + 1])) for k in (0, 1))
    return Complex(*(call.emit(relax.op.squeeze(part, [last])) for part in parts))


@_special("complex.default")
def _from_parts(call: Call) -> Complex:
    """Convert ``aten.complex``: broadcast both parts to the result's shape."""
    return Complex(*(call.emit(relax.op.broadcast_to(call.tensor(name), call.shape)) for name in ("real", "imag")))


@_special("polar.default")
def _polar(call: Call) -> Complex:
    """Convert ``aten.polar``: multiply the magnitude by cosine and sine of the angle."""
    magnitude, angle = call.tensor("abs"), call.tensor("angle")
    parts = (call.emit(function(angle)) for function in (relax.op.cos, relax.op.sin))
    return Complex(*(call.emit(relax.op.multiply(magnitude, part)) for part in parts))


@_special("abs.default")
def _magnitude(call: Call) -> relax.Expr:
    """Convert ``aten.abs``: the magnitude, without overflow."""
    x = call["self"]
    return length(call, x.real, x.imaginary)


@_special("_to_copy.default")
def _cast(call: Call) -> Any:
    """Convert a cast to another precision, to a complex tensor, or to a real one, which is the real part."""
    x = _parts(call, "self")
    parts = [call.cast(part, call.dtype) for part in (x.real, x.imaginary)]
    return Complex(*parts) if is_complex(call.result) else parts[0]


@_special("angle.default")
def _angle(call: Call) -> relax.Expr:
    """Convert ``aten.angle`` to ``atan2``."""
    return call.emit(relax.op.atan2(call["self"].imaginary, call["self"].real))


@_special("real.default", "imag.default")
def _part(call: Call) -> relax.Expr:
    """Convert ``aten.real`` and ``aten.imag``: one part of the tensor."""
    return call["self"].real if call.node.target.__name__ == "real.default" else call["self"].imaginary


@_special("_conj.default", "_conj_physical.default")
def _conjugate(call: Call) -> Complex:
    """Convert the conjugate: negate the imaginary part."""
    return Complex(call["self"].real, call.emit(relax.op.negative(call["self"].imaginary)))


@_special("_fft_r2c.default", "_fft_c2c.default", "_fft_c2r.default")
def _fourier(call: Call) -> Any:
    """Convert Fourier transforms (r2c, c2c, c2r): multiply each axis by the transform's matrix.

    A one-sided transform halves the last of the axes. Transforms of more than `MOST_POINTS` points are refused.
    """
    kind, operand = call.node.target.__name__[5:8], call["self"]
    x: Any = operand if isinstance(operand, Complex) else Complex(call.cast(operand, call.dtype), None)
    rank = len(x.real.ty.shape)
    axes = [int(axis) % rank for axis in call["dim"]]
    lengths = {axis: int(x.real.ty.shape[axis]) for axis in axes}
    last, inverse = axes[-1], kind == "c2r" or (kind == "c2c" and not call["forward"])
    if kind == "c2r":
        lengths[last] = int(call["last_dim_size"])
    if max(lengths.values()) > MOST_POINTS:
        raise call.unsupported(
            f"its Fourier transform has {max(lengths.values())} points; up to {MOST_POINTS} are supported: split the axis"
        )
    ordered = [last, *axes[:-1]] if kind == "r2c" else [*axes[:-1], last]
    points = math.prod(lengths.values())
    factor = (1.0, points**-0.5, 1 / points)[call["normalization"]] * (points if inverse else 1)
    for axis in ordered:
        onesided = axis == last and (kind == "c2r" or (kind == "r2c" and bool(call["onesided"])))
        size = min(int(x.real.ty.shape[axis]), lengths[axis] // 2 + 1 if onesided and inverse else lengths[axis])
        matrix = dft_matrix(size, lengths[axis], inverse, onesided)
        if axis == ordered[-1]:
            matrix = matrix * factor
        x = Complex(*transform(call.emit, x.real, x.imaginary, axis, matrix, to_real=onesided and inverse))
    return x.real if kind == "c2r" else x
