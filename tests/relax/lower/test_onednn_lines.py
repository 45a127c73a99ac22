"""Convolutions over one dimension as products of windows: that they compute what numpy computes."""

import numpy as np
import pytest
from tvm import relax

from tvm_sched.relax import compile
from tvm_sched.relax.lower.kernel_libraries import get_library

op = relax.op
pytestmark = pytest.mark.skipif(
    get_library("onednn").why_not() is not None, reason=f"oneDNN cannot be used here: {get_library('onednn').why_not()}"
)
CASES = {
    "stride 2": (1, 299, 512, 256, 3, 2, (0, 0)),
    "padded": (1, 520, 256, 257, 5, 4, (2, 2)),
    "batch of 2": (2, 300, 512, 256, 3, 2, (2, 2)),
    "few channels, long windows": (1, 2 * 16384, 8, 256, 160, 128, (90, 0)),
    "padding at the end": (1, 600, 256, 260, 6, 4, (0, 4)),
    "places beyond the last window": (1, 523, 256, 256, 5, 4, (1, 0)),
}


def reference(x, weights, stride, padding):
    x = np.pad(x, ((0, 0), (0, 0), padding)).astype("float64")
    windows = np.lib.stride_tricks.sliding_window_view(x, weights.shape[2], axis=2)[:, :, ::stride]
    return np.einsum("nctk,ock->not", windows, weights)


def compiled(x, weights, stride, padding, residual=False):
    """A convolution with bias and GELU, or with another tensor added."""
    b = relax.BlockBuilder()
    arguments = [relax.Var("x", relax.TensorType(x.shape, "float32"))]
    out = (x.shape[0], weights.shape[0], (x.shape[2] + sum(padding) - weights.shape[2]) // stride + 1)
    if residual:
        arguments.append(relax.Var("y", relax.TensorType(out, "float32")))
    bias = relax.const(np.arange(out[1], dtype="float32").reshape(1, -1, 1))
    with b.function("main", arguments):
        with b.dataflow():
            made = op.nn.conv1d(arguments[0], relax.const(weights), strides=stride, padding=list(padding))
            made = b.emit(op.add(b.emit(made), bias))
            made = b.emit(op.add(made, arguments[1]) if residual else op.nn.relu(made))
            made = b.emit_output(made)
        b.emit_func_output(made)
    return compile(b.get(), "cpu1", "single"), out


@pytest.mark.sampled(3)
@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_values(case, tmp_path):
    residual = case is CASES["padded"]
    batch, length, channels, outputs, kernel, stride, padding = case
    rng = np.random.default_rng(3)
    x = rng.standard_normal((batch, channels, length)).astype("float32")
    weights = rng.standard_normal((outputs, channels, kernel)).astype("float32")
    model, out = compiled(x, weights, stride, padding, residual)
    y = rng.standard_normal(out).astype("float32")
    wanted = reference(x, weights, stride, padding) + np.arange(outputs).reshape(1, -1, 1)
    wanted = wanted + y if residual else np.maximum(wanted, 0)
    found = model.run(*([x, y] if residual else [x]))
    np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-4)
    model.export(tmp_path / "model.so")
    assert b"line_convolution" in (tmp_path / "model.so").read_bytes()


def test_infinities_and_nan_stay_in_their_windows():
    x = np.ones((1, 512, 300), np.float32)
    x[0, 0, 40], x[0, 1, 60] = np.inf, np.nan
    model, _ = compiled(x, np.ones((256, 512, 3), np.float32), 2, (0, 0))
    found = model.run(x)
    assert np.isposinf(found[0, :, 19:21]).all()
    assert np.isfinite(np.delete(found, [19, 20, 29, 30], axis=2)).all()
