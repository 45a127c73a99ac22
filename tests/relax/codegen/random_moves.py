"""Random models that move, join, select, sort and sum elements of a tensor of whole numbers; NumPy computes the same."""

import numpy as np
from tvm import relax

op = relax.op
LEAST, MOST = 2**17, 2**20
"""Elements of each tensor: enough for several threads, few enough for a test."""


class Move:
    """A value of the model, and what it is in NumPy."""

    def __init__(self, builder, expression, right):
        self.value = builder.emit(expression)
        self.right = right

    @property
    def shape(self):
        return [int(size) for size in self.value.ty.shape.values]


def random_moves(rng, steps):
    """Return a model of one input of float32, its shape, and the function of NumPy that computes the same."""
    shape = [int(size) for size in rng.integers(1, 5, rng.integers(2, 5))]
    while np.prod(shape) < LEAST:
        shape[rng.integers(len(shape))] *= int(rng.integers(2, 9))
    x, builder = relax.Var("x", relax.TensorType(shape, "float32")), relax.BlockBuilder()
    with builder.function("main", [x]):
        with builder.dataflow():
            made = [Move(builder, x, lambda x: x)]
            for _ in range(steps):
                made.append(_step(rng, builder, made[-1 if rng.random() < 0.7 else rng.integers(len(made))]))
            results = builder.emit_output(relax.Tuple([move.value for move in made[1:]]))
        builder.emit_func_output(results)
    return builder.get(), shape, lambda value: [move.right(value) for move in made[1:]]


def _step(rng, builder, source):
    """Return the result of a random operator on a value."""
    value, before, shape = source.value, source.right, source.shape
    axis = int(rng.integers(len(shape)))
    size = shape[axis]
    kinds = [
        _transpose, _flip, _negative, _sum, _maximum, _running_sum, _gather, _gather_elements, _sort, _scatter, _half,
    ]  # fmt: skip
    if np.prod(shape) * 3 < MOST:
        kinds += [_pad] * 4 + [_concatenate] * 4 + [_repeat, _tile]
    kind = kinds[rng.integers(len(kinds))]
    expression, right = kind(rng, builder, value, shape, axis, size)
    return Move(builder, expression, lambda x: right(before(x)))


def _pad(rng, builder, value, shape, axis, size):
    widths = [int(width) for width in rng.integers(0, 3, 2 * len(shape))]
    pairs = list(zip(widths[::2], widths[1::2], strict=True))
    return op.nn.pad(value, widths, pad_value=1.0), lambda x: np.pad(x, pairs, constant_values=1)


def _concatenate(rng, builder, value, shape, axis, size):
    other = builder.emit(op.negative(value)) if rng.random() < 0.5 else value
    sign = 1 if other is value else -1
    return op.concat([value, other], axis), lambda x: np.concatenate([x, sign * x], axis)


def _gather(rng, builder, value, shape, axis, size):
    rows = rng.integers(0, size, max(1, size // 2))
    return op.take(value, relax.const(rows, "int64"), axis), lambda x: x.take(rows, axis)


def _gather_elements(rng, builder, value, shape, axis, size):
    places = rng.integers(0, size, shape)
    return op.gather_elements(value, relax.const(places, "int64"), axis), lambda x: np.take_along_axis(x, places, axis)


def _scatter(rng, builder, value, shape, axis, size):
    places = np.argsort(rng.random(shape), axis)  # each place once

    def right(x):
        result = x.copy()
        np.put_along_axis(result, places, -x, axis)
        return result

    moved = builder.emit(op.negative(value))
    return op.scatter_elements(value, relax.const(places, "int64"), moved, axis), right


def _transpose(rng, builder, value, shape, axis, size):
    axes = [int(a) for a in rng.permutation(len(shape))]
    return op.permute_dims(value, axes), lambda x: x.transpose(axes)


def _flip(rng, builder, value, shape, axis, size):
    return op.flip(value, axis), lambda x: np.flip(x, axis)


def _negative(rng, builder, value, shape, axis, size):
    return op.negative(value), lambda x: -x


def _sum(rng, builder, value, shape, axis, size):
    total = builder.emit(op.sum(value, axis, keepdims=True))
    return op.sign(builder.emit(op.subtract(value, total))), lambda x: np.sign(x - x.sum(axis, keepdims=True))


def _maximum(rng, builder, value, shape, axis, size):
    largest = builder.emit(op.max(value, axis, keepdims=True))
    return op.subtract(largest, value), lambda x: x.max(axis, keepdims=True) - x


def _running_sum(rng, builder, value, shape, axis, size):
    return op.sign(builder.emit(op.cumsum(value, axis))), lambda x: np.sign(x.cumsum(axis))


def _sort(rng, builder, value, shape, axis, size):
    return op.sort(value, axis), lambda x: np.sort(x, axis)


def _half(rng, builder, value, shape, axis, size):
    begin, step = int(rng.integers(0, size)), int(rng.integers(1, 3))
    slices = tuple(slice(begin, None, step) if k == axis else slice(None) for k in range(len(shape)))
    return op.strided_slice(value, [axis], [begin], [size], [step]), lambda x: x[slices]


def _repeat(rng, builder, value, shape, axis, size):
    return op.repeat(value, 2, axis), lambda x: x.repeat(2, axis)


def _tile(rng, builder, value, shape, axis, size):
    times = [2 if k == axis else 1 for k in range(len(shape))]
    return op.tile(value, times), lambda x: np.tile(x, times)
