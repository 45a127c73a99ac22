"""Running sums and products along an axis, and discrete Fourier transforms."""

from __future__ import annotations

import numpy as np
from tvm import relax

from ...errors import MissingConstant
from ...fourier import dft_matrix
from ...tensor_types import dtype_of
from .nodes import Node, converter


@converter("CumSum", "CumProd")
def cumulative(node: Node) -> relax.Expr:
    """CumSum and CumProd, optionally backwards, optionally without the element itself."""
    x = node.input(0)
    shape = node.shape(x, "its input x")
    given = node.constant(1)
    if given is None:
        raise node.unsupported("its axis is not a constant", MissingConstant())
    axis = int(np.asarray(given).reshape(())) % len(shape)
    function = relax.op.cumsum if node.operator == "CumSum" else relax.op.cumprod
    value = relax.op.flip(x, axis) if node.attribute("reverse", 0) else x
    result = function(value, axis, dtype_of(x), exclusive=bool(node.attribute("exclusive", 0)))
    return relax.op.flip(node.emit(result), axis) if node.attribute("reverse", 0) else result


@converter("DFT")
def dft(node: Node) -> relax.Expr:
    """A product with the matrix of the transform; real and imaginary parts lie along the last axis."""
    x = node.input(0)
    shape = node.shape(x, "its input")
    inverse, onesided = bool(node.attribute("inverse", 0)), bool(node.attribute("onesided", 0))
    axis = _dft_axis(node, len(shape))
    given = node.constant(1)
    size = shape[axis]
    length = (
        int(np.asarray(given).reshape(())) if given is not None else 2 * (size - 1) if inverse and onesided else size
    )
    matrix = dft_matrix(min(size, length if not (inverse and onesided) else length // 2 + 1), length, inverse, onesided)
    return _transform(node, x, axis, matrix, real=inverse and onesided)


def _dft_axis(node: Node, rank: int) -> int:
    if node.opset < 20:
        return int(node.attribute("axis", 1)) % rank
    given = node.constant(2)
    return (int(np.asarray(given).reshape(())) if given is not None else -2) % rank


def _transform(node: Node, x: relax.Expr, axis: int, matrix: np.ndarray, real: bool) -> relax.Expr:
    """Multiply along an axis. The parts of a complex input lie in the last axis, and so do those of the result."""
    shape, kind = node.shape(x, "its input"), dtype_of(x)
    last = len(shape) - 1
    order = [a for a in range(last) if a != axis] + [axis]
    size, made = matrix.shape
    parts = []
    for part in range(shape[-1]):
        piece = relax.op.strided_slice(x, [last, axis], [part, 0], [part + 1, size])
        piece = relax.op.squeeze(node.emit(piece), [last])
        parts.append(node.emit(relax.op.permute_dims(node.emit(piece), order)))
    cosine, sine = (relax.const(np.ascontiguousarray(m).astype(kind), kind) for m in (matrix.real, matrix.imag))
    re, im = relax.op.matmul(parts[0], cosine), relax.op.matmul(parts[0], sine)
    if len(parts) == 2:
        re = relax.op.subtract(re, relax.op.matmul(parts[1], sine))
        im = relax.op.add(im, relax.op.matmul(parts[1], cosine))
    back = [0] * last
    for position, a in enumerate(order):
        back[a] = position
    results = [node.emit(relax.op.permute_dims(node.emit(value), back)) for value in ([re] if real else [re, im])]
    whole = (*shape[:axis], made, *shape[axis + 1 : last], 1)
    results = [relax.op.reshape(value, whole) for value in results]
    return results[0] if real else relax.op.concat([node.emit(value) for value in results], last)


@converter("STFT")
def stft(node: Node) -> relax.Expr:
    """Windows of the signal, each transformed: inputs signal (batch, length, parts), step, window, frame length.

    A real signal may come without its last dimension, as torch.onnx writes it and ONNX Runtime takes it.
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
    """A constant: bins, length of the transform, sampling rate and the edges have to be known."""
    from onnx.helper import tensor_dtype_to_np_dtype
    from onnx.reference.ops.op_mel_weight_matrix import MelWeightMatrix

    given = [node.constant(i) for i in range(5)]
    if any(value is None for value in given):
        raise node.unsupported("an input is not a constant", MissingConstant())
    kind = node.attribute("output_datatype", 1)
    matrix = MelWeightMatrix.eval(*(np.asarray(v).reshape(()) for v in given), output_datatype=kind)
    return relax.const(np.asarray(matrix, tensor_dtype_to_np_dtype(kind)))
