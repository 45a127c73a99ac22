"""Discrete Fourier transforms as products with a matrix, shared by the converters of ONNX and torch."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from tvm import relax

from .tensor_types import dtype_of


def dft_matrix(size: int, length: int, inverse: bool, onesided: bool) -> np.ndarray:
    """Return the complex matrix of a transform, of shape (size, frequencies)."""
    if inverse and onesided:  # half a spectrum to real values: the other half is its conjugate
        k, n = np.arange(size)[:, None], np.arange(length)
        twice = np.where((k == 0) | ((length % 2 == 0) & (k == length // 2)), 1.0, 2.0)
        return twice * _turned(k * n, length) / length
    frequencies = length // 2 + 1 if onesided else length
    n, k = np.arange(size)[:, None], np.arange(frequencies)
    return _turned(n * k if inverse else -n * k, length) / (length if inverse else 1)


def _turned(steps: np.ndarray, length: int) -> np.ndarray:
    """Return exp(2 pi i steps / length), exact for quarters of a turn.

    The sign of a part that should be 0 would decide on which side of its cut a phase lies.
    """
    steps = steps % length
    result = np.exp(2j * np.pi * steps / length)
    quarters = np.array([1, 1j, -1, complex(0, -1)])[steps * 4 // length]
    return np.where(steps * 4 % length == 0, quarters, result)


def transform(
    emit: Callable[[relax.Expr], relax.Expr],
    real: relax.Expr,
    imaginary: relax.Expr | None,
    axis: int,
    matrix: np.ndarray,
    *,
    to_real: bool,
) -> tuple[relax.Expr, relax.Expr | None]:
    """Emit the product of a complex tensor along an axis with a complex matrix of shape (size, frequencies).

    None stands for an imaginary part of 0. Elements of the axis beyond ``size`` are cut off. With ``to_real``, only the
    real part is computed.
    """
    rank, size, kind = len(real.ty.shape), matrix.shape[0], dtype_of(real)
    order = [k for k in range(rank) if k != axis] + [axis]
    cosine, sine = (relax.const(np.ascontiguousarray(part).astype(kind), kind) for part in (matrix.real, matrix.imag))

    def product(part: relax.Expr, factor: relax.Expr) -> relax.Expr:
        if int(part.ty.shape[axis]) > size:
            part = emit(relax.op.strided_slice(part, [axis], [0], [size]))
        transformed = emit(relax.op.matmul(emit(relax.op.permute_dims(part, order)), factor))
        return emit(relax.op.permute_dims(transformed, [order.index(k) for k in range(rank)]))

    first, second = product(real, cosine), None if to_real else product(real, sine)
    if imaginary is not None:
        first = emit(relax.op.subtract(first, product(imaginary, sine)))
        second = None if second is None else emit(relax.op.add(second, product(imaginary, cosine)))
    return first, second
