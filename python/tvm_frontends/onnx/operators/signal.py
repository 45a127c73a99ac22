"""Converters of running sums and products, discrete Fourier transforms and MelWeightMatrix."""

from __future__ import annotations

import numpy as np
from tvm import relax

from ...errors import MissingConstant
from ...fourier import dft_matrix, transform
from ...tensor_types import dtype_of
from .nodes import Node, converter


@converter("CumSum", "CumProd")
def cumulative(node: Node) -> relax.Expr:
    """Convert CumSum and CumProd along a constant axis, with ``reverse`` and ``exclusive``."""
    x = node.input(0)
    shape = node.shape(x, "its input x")
    axis_value = node.constant(1)
    if axis_value is None:
        raise node.unsupported("its axis is not a constant", MissingConstant())
    axis = int(np.asarray(axis_value).reshape(())) % len(shape)
    function = relax.op.cumsum if node.operator == "CumSum" else relax.op.cumprod
    value = relax.op.flip(x, axis) if node.attribute("reverse", 0) else x
    result = function(value, axis, dtype_of(x), exclusive=bool(node.attribute("exclusive", 0)))
    return relax.op.flip(node.emit(result), axis) if node.attribute("reverse", 0) else result


@converter("DFT")
def dft(node: Node) -> relax.Expr:
    """Convert DFT to a product with the transform's matrix; real and imaginary parts are the last axis.

    The length must be a constant. The axis is an attribute before opset 20, from then on an input.
    """
    x = node.input(0)
    shape = node.shape(x, "its input")
    inverse, onesided = bool(node.attribute("inverse", 0)), bool(node.attribute("onesided", 0))
    axis = _dft_axis(node, len(shape))
    explicit = node.constant(1)
    size = shape[axis]
    length = (
        int(np.asarray(explicit).reshape(()))
        if explicit is not None
        else 2 * (size - 1)
        if inverse and onesided
        else size
    )
    matrix = dft_matrix(min(size, length if not (inverse and onesided) else length // 2 + 1), length, inverse, onesided)
    return _transform(node, x, axis, matrix, real=inverse and onesided)


def _dft_axis(node: Node, rank: int) -> int:
    if node.opset < 20:
        return int(node.attribute("axis", 1)) % rank
    explicit = node.constant(2)
    return (int(np.asarray(explicit).reshape(())) if explicit is not None else -2) % rank


def _transform(node: Node, x: relax.Expr, axis: int, matrix: np.ndarray, real: bool) -> relax.Expr:
    """Multiply along an axis by a complex matrix; the last axis holds the parts of input and result."""
    *sizes, count = node.shape(x, "its input")
    last = len(sizes)
    slices = (node.emit(relax.op.strided_slice(x, [last], [k], [k + 1])) for k in range(count))
    parts = [node.emit(relax.op.squeeze(part, [last])) for part in slices]
    imaginary = parts[1] if count == 2 else None
    results = transform(node.emit, parts[0], imaginary, axis, matrix, to_real=real)
    return relax.op.stack([value for value in results if value is not None], last)


@converter("STFT")
def stft(node: Node) -> relax.Expr:
    """Convert STFT: cut the signal (batch, length, parts) into frames, multiply by the window, transform.

    Frame step and length must be constants. A real signal may lack its last axis, as torch.onnx writes it.
    """
    x = node.input(0)
    shape = node.shape(x, "its signal")
    if len(shape) == 2:
        shape = (*shape, 1)
        x = node.emit(relax.op.reshape(x, shape))
    step, length = (node.constant(i) for i in (1, 3))
    if step is None:
        raise node.unsupported("its frame step is not a constant", MissingConstant())
    window = node.input(2)
    if length is not None:
        size = int(np.asarray(length).reshape(()))
    else:
        size = node.shape(window, "its window")[0] if window is not None else shape[1]
    hop = int(np.asarray(step).reshape(()))
    frames = 1 + (shape[1] - size) // hop
    at = np.arange(frames)[:, None] * hop + np.arange(size)
    cut = node.emit(relax.op.take(x, relax.const(at.reshape(-1), "int64"), 1))
    cut = node.emit(relax.op.reshape(cut, (shape[0], frames, size, shape[2])))
    if window is not None:
        cut = node.emit(relax.op.multiply(cut, relax.op.reshape(window, (1, 1, size, 1))))
    return _transform(node, cut, 2, dft_matrix(size, size, False, bool(node.attribute("onesided", 1))), real=False)


@converter("MelWeightMatrix")
def mel_weight_matrix(node: Node) -> relax.Expr:
    """Convert MelWeightMatrix to a constant; all inputs must be constants."""
    from onnx.helper import tensor_dtype_to_np_dtype
    from onnx.reference.ops.op_mel_weight_matrix import MelWeightMatrix

    arguments = [node.constant(i) for i in range(5)]
    if any(value is None for value in arguments):
        raise node.unsupported("an input is not a constant", MissingConstant())
    kind = node.attribute("output_datatype", 1)
    matrix = MelWeightMatrix.eval(*(np.asarray(v).reshape(()) for v in arguments), output_datatype=kind)
    return relax.const(np.asarray(matrix, tensor_dtype_to_np_dtype(kind)))
