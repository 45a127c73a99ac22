"""Softmax along any dimension, and normalisation over groups of channels, against numpy."""

import itertools

import numpy as np
import pytest
from tvm import relax

from relax.lower.onednn_cases import check, needs_onednn
from relax.onednn_cases import convolution, module, steps
from tvm_sched.relax import compile

pytestmark = needs_onednn

op = relax.op


def values(*shapes, seed=3):
    rng = np.random.default_rng(seed)
    return [rng.standard_normal(shape).astype("float32") for shape in shapes]


def run(make, inputs, threads=1):
    """What a module computes, and the kinds of its operators."""
    compiled = compile(module(make, [x.shape for x in inputs]), "cpu1", threads=threads)
    kinds = [o.kind for o in compiled.problem.graph.operators]
    return compiled.run(*inputs), kinds


def softmax(x, axis):
    shifted = np.exp(x.astype("float64") - x.max(axis, keepdims=True))
    return shifted / shifted.sum(axis, keepdims=True)


def normalized(x, groups, scale, shift, epsilon):
    """In float64."""
    wide = x.astype("float64").reshape(x.shape[0], groups, -1)
    wide = (wide - wide.mean(2, keepdims=True)) / np.sqrt(wide.var(2, keepdims=True) + epsilon)
    each = (1, -1, *[1] * (x.ndim - 2))
    return wide.reshape(x.shape) * scale.reshape(each) + shift.reshape(each)


@pytest.mark.parametrize(
    ("shape", "axis"), [((3, 16, 4, 300), 1), ((2, 5, 7), 0), ((1, 37, 513), 1), ((70, 3, 129), 2), ((5, 1), 1)]
)
@pytest.mark.parametrize("log", [False, True])
def test_softmax_along_any_dimension(shape, axis, log):
    (x,) = values(shape)
    function = op.nn.log_softmax if log else op.nn.softmax
    found, kinds = run(lambda b, x: b.emit(function(x, axis=axis)), [x * 20], threads=2)
    assert kinds == ["onednn.log_softmax" if log else "onednn.softmax"]
    expected = softmax(x * 20, axis)
    if log:
        with np.errstate(divide="ignore"):
            np.testing.assert_allclose(np.exp(found), expected, rtol=1e-4, atol=1e-7)
    else:
        np.testing.assert_allclose(found, expected, rtol=4e-6, atol=1e-30 + 2e-37)


@pytest.mark.parametrize("axis", [1, 2])
def test_softmax_of_infinities_and_nan(axis):
    x = np.zeros((1, 8, 8), "float32")
    x[0, 1, 2], x[0, 3, 4] = np.nan, -np.inf
    found, _ = run(lambda b, x: b.emit(op.nn.softmax(x, axis=axis)), [x])
    wrong = np.isnan(found[0])
    assert (wrong[:, 2] if axis == 1 else wrong[1]).all()
    assert wrong.sum() == 8
    assert found[0, 3, 4] == 0


GROUPED = [(1, 6, 15, 13), (3, 12, 5, 7), (2, 6, 301), (1, 6, 3, 4, 5), (2, 96, 40, 40)]
IN_ALL_WAYS = GROUPED[1]
"""Of the other shapes: 3 groups in one layout, and one for each channel in the other; in `make test-thorough` all."""


def grouped():
    for shape, groups, last in itertools.product(GROUPED, (1, 3, 0), (False, True)):
        chosen = shape == IN_ALL_WAYS or (groups, last) in ((3, False), (0, True))
        yield pytest.param(shape, groups, last, marks=() if chosen else pytest.mark.thorough)


@pytest.mark.parametrize(("shape", "groups", "last"), grouped())
@pytest.mark.sampled(6)
def test_normalisation_over_groups(shape, groups, last):
    """In both layouts: with channels last it stands behind a convolution. 0 groups: one for each channel."""
    channels, axes = shape[1], list(range(2, len(shape)))
    scale, shift = values((channels,), (channels,), seed=4)
    x = values(shape)[0] + np.float32(5)

    def make(b, x):
        if last:
            one = np.eye(channels, dtype="float32").reshape(channels, channels, *[1] * len(axes))
            x = b.emit(getattr(op.nn, f"conv{len(axes)}d")(x, relax.const(one)))
        constants = relax.const(scale), relax.const(shift)
        if groups == 0:
            return steps(b, x, lambda v: op.nn.instance_norm(v, *constants, 1, axes, 1e-5), op.nn.relu)
        return steps(b, x, lambda v: op.nn.group_norm(v, *constants, groups, 1, axes, 1e-5), op.nn.relu)

    found, kinds = run(make, [x], threads=2)
    assert "onednn.moments" in kinds
    assert not any("norm" in kind for kind in kinds)
    expected = normalized(x, groups or channels, scale, shift, 1e-5)
    np.testing.assert_allclose(found, np.maximum(expected, 0), rtol=2e-5, atol=2e-5)


@pytest.mark.parametrize("last", [False, True])
def test_a_mean_far_from_zero_costs_no_precision(last):
    """Channels last, each sum has one accumulator; channels first, as many as the compiler gives it."""
    x = values((1, 2, 128, 128))[0] * np.float32(0.1) + np.float32(3000)
    ones, zeros = np.ones(2, "float32"), np.zeros(2, "float32")

    def make(b, x):
        if last:
            x = b.emit(op.nn.conv2d(x, relax.const(np.eye(2, dtype="float32").reshape(2, 2, 1, 1))))
        return b.emit(op.nn.group_norm(x, relax.const(ones), relax.const(zeros), 2, 1, [2, 3], 1e-5))

    found, kinds = run(make, [x])
    assert "onednn.moments" in kinds
    np.testing.assert_allclose(found, normalized(x, 2, ones, zeros, 1e-5), atol=3e-3)  # float32 holds 3000 to 2e-4


def of_onnx(b, x, groups, form):
    """As ONNX's InstanceNormalization and GroupNormalization are written out."""
    wide = b.emit(op.reshape(x, (2, groups, 360 // groups)))
    mean = b.emit(op.mean(wide, [2], keepdims=True))
    centred = b.emit(op.subtract(wide, mean))
    if form == "variance":
        variance = b.emit(op.variance(wide, [2], keepdims=True))
    else:
        variance = steps(b, centred, lambda v: op.multiply(v, v), lambda v: op.mean(v, [2], keepdims=True))
    root = steps(b, variance, lambda v: op.add(v, relax.const(1e-3, "float32")), op.sqrt)
    if form == "inverse":
        return steps(b, root, lambda v: op.divide(relax.const(1.0, "float32"), v), lambda v: op.multiply(centred, v))
    return b.emit(op.divide(centred, root))


@pytest.mark.parametrize("form", ["variance", "square", "inverse"])
@pytest.mark.parametrize("back", [True, False])
def test_written_out_forms(form, back):
    inputs = values((2, 6, 10, 6))

    def make(b, x):
        found = of_onnx(b, x, 3, form)
        return b.emit(op.reshape(found, (2, 6, 10, 6))) if back else b.emit(op.tanh(found))

    found, kinds = run(make, inputs)
    assert kinds.count("onednn.moments") == 1
    expected = normalized(inputs[0], 3, np.ones(6), np.zeros(6), 1e-3)
    np.testing.assert_allclose(found, expected if back else np.tanh(expected).reshape(2, 3, 120), rtol=2e-5, atol=2e-6)


def test_the_variance_of_something_else_is_no_normalisation():
    inputs = values((2, 6, 60), (2, 6, 60))

    def make(b, x, y):
        centred = b.emit(op.subtract(x, b.emit(op.mean(x, [2], keepdims=True))))
        return b.emit(op.divide(centred, steps(b, b.emit(op.variance(y, [2], keepdims=True)), op.sqrt)))

    found, kinds = run(make, inputs)
    assert "onednn.moments" not in kinds
    x, y = (v.astype("float64") for v in inputs)
    expected = (x - x.mean(2, keepdims=True)) / y.std(2, keepdims=True)
    np.testing.assert_allclose(found, expected, rtol=2e-5, atol=2e-6)


def test_padding_by_reflection_stays_with_channels_last(monkeypatch):
    inputs = values((1, 3, 9, 8))
    order = np.array([1, 0, *range(8), 6], "int64")

    def make(b, x):
        return steps(
            b, x, lambda v: convolution(v, 4), lambda v: op.take(v, relax.const(order[:8]), 3, "clip"), convolution
        )

    _, kinds = run(make, inputs)
    assert sum(kind.startswith("transpose") for kind in kinds) <= 2
    check(monkeypatch, module(make, [inputs[0].shape]), inputs, "conv2d")


def test_an_epsilon_of_more_dimensions_is_no_normalisation():
    inputs = values((2, 6, 60))
    epsilon = relax.const(np.full((1, 1, 1, 1), 1e-3, "float32"))

    def make(b, x):
        centred = b.emit(op.subtract(x, b.emit(op.mean(x, [2], keepdims=True))))
        variance = b.emit(op.variance(x, [2], keepdims=True))
        return b.emit(op.divide(centred, steps(b, variance, lambda v: op.add(v, epsilon), op.sqrt)))

    found, kinds = run(make, inputs)
    assert "onednn.moments" not in kinds
    assert found.shape == (1, 2, 6, 60)
    np.testing.assert_allclose(found[0], normalized(inputs[0], 6, np.ones(6), np.zeros(6), 1e-3), rtol=2e-5, atol=2e-6)
