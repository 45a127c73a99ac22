"""Convolutions of images of few channels, which several threads compute in bands of rows where a processor has AVX-512."""

import numpy as np
import pytest
from tvm import relax

from tvm_sched.relax import compile
from tvm_sched.relax.lower.kernel_libraries import get_library

op = relax.op
pytestmark = pytest.mark.skipif(
    get_library("onednn").why_not() is not None, reason=f"oneDNN cannot be used here: {get_library('onednn').why_not()}"
)
# Threads; batch, channels, height, width; filters and their size; stride; dilation; padding: top, left, bottom, right.
CASES = {
    "the first layer of a network": (2, (1, 3, 64, 64), (32, 3, 3), 2, 1, (1, 1, 1, 1)),
    "rows that three threads cannot share evenly": (3, (1, 3, 23, 31), (33, 5, 3), 1, 1, (2, 1, 2, 1)),
    "dilated, padded at the bottom": (2, (1, 4, 40, 19), (16, 3, 3), 2, 2, (0, 0, 3, 2)),
    "a grey picture, as many rows as threads": (4, (1, 1, 4, 50), (24, 3, 7), 1, 1, (1, 3, 1, 3)),
    "fewer rows than threads": (4, (1, 3, 5, 33), (16, 3, 3), 2, 1, (1, 1, 0, 1)),
    "a band that would lie in the padding": (4, (1, 3, 3, 40), (16, 3, 3), 1, 1, (8, 1, 8, 1)),
    "two pictures": (2, (2, 3, 20, 20), (32, 3, 3), 1, 1, (1, 1, 1, 1)),
}


def compiled(shape, weights, stride, dilation, padding, threads):
    """A convolution with bias and ReLU."""
    b = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType(shape, "float32"))
    with b.function("main", [x]):
        with b.dataflow():
            made = op.nn.conv2d(x, relax.const(weights), strides=stride, dilation=dilation, padding=list(padding))
            made = b.emit(op.add(b.emit(made), relax.const(bias(len(weights)).reshape(1, -1, 1, 1))))
            made = b.emit_output(b.emit(op.nn.relu(made)))
        b.emit_func_output(made)
    return compile(b.get(), "cpu1", "single", threads=threads)


def bias(count):
    return np.linspace(-2, 2, count, dtype="float32")


def reference(x, weights, stride, dilation, padding):
    top, left, bottom, right = padding
    x = np.pad(x.astype("float64"), ((0, 0), (0, 0), (top, bottom), (left, right)))
    height, width = ((size - 1) * dilation + 1 for size in weights.shape[2:])
    windows = np.lib.stride_tricks.sliding_window_view(x, (height, width), axis=(2, 3))
    windows = windows[:, :, ::stride, ::stride, ::dilation, ::dilation]
    sums = np.einsum("nchwij,ocij->nohw", windows, weights) + bias(len(weights)).reshape(-1, 1, 1)
    return np.maximum(sums, 0)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_values(case):
    threads, shape, (filters, height, width), stride, dilation, padding = case
    rng = np.random.default_rng(3)
    x = rng.standard_normal(shape).astype("float32")
    weights = rng.standard_normal((filters, shape[1], height, width)).astype("float32")
    model = compiled(shape, weights, stride, dilation, padding, threads)
    np.testing.assert_allclose(model.run(x), reference(x, weights, stride, dilation, padding), rtol=1e-4, atol=1e-4)
    x[0, 0, shape[2] // 2, shape[3] // 2] = np.nan
    x[0, -1, 0, 0] = np.inf
    np.testing.assert_allclose(model.run(x), reference(x, weights, stride, dilation, padding), rtol=1e-4, atol=1e-4)
