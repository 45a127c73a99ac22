"""Complex tensors inside torch.export programs: two real tensors each, for TVM has no complex type.

Operators that move elements, or are linear with real factors, work on both parts by the converters of real tensors.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from tvm import relax

from ..fourier import dft_matrix
from ..tensor_types import dtype_of
from .elementwise import length
from .node_calls import Call, converter

MOST_POINTS = 4096
"""Of a Fourier transform, whose matrix has the square of that many elements."""


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
"""Those of them whose real operands are places, which are the same for both parts."""
SPECIAL: dict[str, Callable[[Call], Any]] = {}
"""What makes or takes complex tensors and is not linear, by the operator's name."""


_special = partial(converter, table=SPECIAL)


def is_complex(value: Any) -> bool:
    """Whether a node's result is complex in torch."""
    return hasattr(value, "dtype") and value.dtype.is_complex


def uses_complex(node: Any) -> bool:
    """Whether an operator takes or gives complex tensors."""
    return any(is_complex(each.meta.get("val")) for each in (node, *node.all_input_nodes))


def convert(call: Call, by_parts: Callable[[Any], Any]) -> Any:
    """The result of an operator that `uses_complex` complex tensors; ``by_parts`` converts it for real ones."""
    node = call.node
    name = node.target.__name__
    if name in SPECIAL:
        return SPECIAL[name](call)
    if name not in _LINEAR or not is_complex(node.meta["val"]):
        raise call.unsupported("it is not supported for complex numbers; compute with torch.view_as_real")
    moved = name in ("add.Tensor", "sub.Tensor") and not all(hasattr(each, "meta") for each in node.args[:2])
    if moved or call.arguments.get("value"):
        raise call.unsupported("with a number it is not supported for complex tensors; make the number a tensor")
    env = call.importer.env
    kept = {each: env[each] for each in node.all_input_nodes}
    results = []
    try:
        for part in ("real", "imaginary"):
            for each, value in kept.items():
                if isinstance(value, Complex):
                    env[each] = getattr(value, part)
                elif part == "imaginary" and name not in _INDEXED:
                    env[each] = call.emit(relax.op.zeros_like(value))
            results.append(by_parts(node))
    finally:
        env.update(kept)
    return Complex(*(value if isinstance(value, relax.Var) else call.emit(value) for value in results))


def _parts(call: Call, name: str) -> Complex:
    """An operand; a real one has no imaginary part."""
    value = call[name]
    if isinstance(value, Complex):
        return value
    if isinstance(value, complex):
        return Complex(call.cast(value.real, call.dtype), call.cast(value.imag, call.dtype))
    real = call.cast(value, call.dtype)
    return Complex(real, call.emit(relax.op.zeros_like(real)))


@_special("mul.Tensor", "mul.Scalar")
def _product(call: Call) -> Complex:
    a, b = _parts(call, "self"), _parts(call, "other")

    def times(x: relax.Expr, y: relax.Expr) -> relax.Expr:
        return call.emit(relax.op.multiply(x, y))

    real = relax.op.subtract(times(a.real, b.real), times(a.imaginary, b.imaginary))
    imaginary = relax.op.add(times(a.real, b.imaginary), times(a.imaginary, b.real))
    return Complex(call.emit(real), call.emit(imaginary))


@_special("div.Tensor")
def _quotient(call: Call) -> Complex:
    if isinstance(call["other"], Complex) or not isinstance(call["self"], Complex):
        raise call.unsupported("a complex divisor is not supported; multiply with its conjugate over its square")
    a, divisor = call["self"], call.cast(call["other"], call.dtype)
    return Complex(*(call.emit(relax.op.divide(part, divisor)) for part in (a.real, a.imaginary)))


@_special("view_as_real.default")
def _as_real(call: Call) -> relax.Expr:
    x = call["self"]
    return call.emit(relax.op.stack([x.real, x.imaginary], axis=len(x.real.ty.shape)))


@_special("view_as_complex.default")
def _as_complex(call: Call) -> Complex:
    x = call.tensor("self")
    last = len(x.ty.shape) - 1
    parts = (call.emit(relax.op.strided_slice(x, [last], [k], [k + 1])) for k in (0, 1))
    return Complex(*(call.emit(relax.op.squeeze(part, [last])) for part in parts))


@_special("complex.default")
def _of_parts(call: Call) -> Complex:
    return Complex(*(call.emit(relax.op.broadcast_to(call.tensor(name), call.shape)) for name in ("real", "imag")))


@_special("polar.default")
def _polar(call: Call) -> Complex:
    amount, angle = call.tensor("abs"), call.tensor("angle")
    parts = (call.emit(function(angle)) for function in (relax.op.cos, relax.op.sin))
    return Complex(*(call.emit(relax.op.multiply(amount, part)) for part in parts))


@_special("abs.default")
def _amount(call: Call) -> relax.Expr:
    x = call["self"]
    return length(call, x.real, x.imaginary)


@_special("_to_copy.default")
def _cast(call: Call) -> Any:
    """To another precision, to a complex tensor, or to the real part."""
    x = _parts(call, "self")
    parts = [call.cast(part, call.dtype) for part in (x.real, x.imaginary)]
    return Complex(*parts) if is_complex(call.result) else parts[0]


@_special("angle.default")
def _angle(call: Call) -> relax.Expr:
    return call.emit(relax.op.atan2(call["self"].imaginary, call["self"].real))


@_special("real.default", "imag.default")
def _part(call: Call) -> relax.Expr:
    return call["self"].real if call.node.target.__name__ == "real.default" else call["self"].imaginary


@_special("_conj.default", "_conj_physical.default")
def _conjugate(call: Call) -> Complex:
    return Complex(call["self"].real, call.emit(relax.op.negative(call["self"].imaginary)))


@_special("_fft_r2c.default", "_fft_c2c.default", "_fft_c2r.default")
def _fourier(call: Call) -> Any:
    """Products with the transform's matrix, one for each axis; one-sided along the last of them."""
    kind, given = call.node.target.__name__[5:8], call["self"]
    x: Any = given if isinstance(given, Complex) else Complex(call.cast(given, call.dtype), None)
    rank = len(x.real.ty.shape)
    axes = [int(axis) % rank for axis in call["dim"]]
    lengths = {axis: int(x.real.ty.shape[axis]) for axis in axes}
    last, inverse = axes[-1], kind == "c2r" or (kind == "c2c" and not call["forward"])
    if kind == "c2r":
        lengths[last] = int(call["last_dim_size"])
    if max(lengths.values()) > MOST_POINTS:
        raise call.unsupported(
            f"a Fourier transform of {max(lengths.values())} points; up to {MOST_POINTS} are supported"
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
        x = _transformed(call, x, axis, matrix, real=onesided and inverse)
    return x.real if kind == "c2r" else x


def _transformed(call: Call, x: Any, axis: int, matrix: np.ndarray, real: bool) -> Any:
    """Multiply along an axis by a matrix of shape (size, made); a missing imaginary part is 0."""
    rank, size, kind = len(x.real.ty.shape), matrix.shape[0], dtype_of(x.real)
    cosine, sine = (relax.const(np.ascontiguousarray(part).astype(kind), kind) for part in (matrix.real, matrix.imag))

    def product(part: relax.Expr, by: relax.Expr) -> relax.Expr:
        cut = part
        if int(part.ty.shape[axis]) > size:
            cut = call.emit(relax.op.strided_slice(part, [axis], [0], [size]))
        order = [k for k in range(rank) if k != axis] + [axis]
        made = call.emit(relax.op.matmul(call.emit(relax.op.permute_dims(cut, order)), by))
        return call.emit(relax.op.permute_dims(made, [order.index(k) for k in range(rank)]))

    first = product(x.real, cosine)
    second = None if real else product(x.real, sine)
    if x.imaginary is not None:
        first = call.emit(relax.op.subtract(first, product(x.imaginary, sine)))
        if second is not None:
            second = call.emit(relax.op.add(second, product(x.imaginary, cosine)))
    return Complex(first, second)
