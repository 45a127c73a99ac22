"""Operators on NaN, infinities and large offsets, against values that follow from the standard by exact arithmetic.

ONNX Runtime and onnx.reference disagree on most of these: ``docs/frontends.md`` says which of them is right.
"""

from __future__ import annotations

import ast
import itertools
from fractions import Fraction
from math import ceil, floor
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import pytest
from onnx import parser

import tvm_sched.relax
from tvm_sched_runtime.errors import TvmSchedError

N, INF = np.nan, np.inf


def run(graph: str, *inputs: Any, opset: int = 18) -> Any:
    """The only output of a graph in ONNX's text form."""
    model = parser.parse_model(f'<ir_version: 8, opset_import: ["": {opset}]> g ({graph}')
    onnx.checker.check_model(model)
    return tvm_sched.relax.compile(model, "cpu1", "single").run(*inputs)


def floats(*values: Any) -> Any:
    return np.array(values, "float32")


def equal(found: Any, expected: Any) -> None:
    assert (found.dtype, found.shape) == (expected.dtype, expected.shape)
    np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize("operator", ["Max", "Min"])
def test_extrema_keep_nan_whatever_the_operand(operator):
    a, b, k = floats(1, N, 3, N, -INF), floats(N, 2, 1, N, INF), floats(0.5, 0.5, 4, 0.5, 0.5)
    found = run(
        "float[5] a, float[5] b) => (float[5] y) <float[5] k = {0.5, 0.5, 4.0, 0.5, 0.5}> "
        f"{{ c = {operator}(a, b, k) d = Max(c, k) y = Min(d, a) }}",
        a,
        b,
    )
    numpy = np.maximum if operator == "Max" else np.minimum
    equal(found, np.minimum(np.maximum(numpy(numpy(a, b), k), k), a))


@pytest.mark.parametrize("keep", [0, 1])
@pytest.mark.parametrize(("operator", "numpy"), [("ReduceMax", np.max), ("ReduceMin", np.min)])
def test_reduced_extrema_keep_nan(operator, numpy, keep):
    x = np.arange(4 * 37, dtype="float32").reshape(4, 37)
    x[0, 0], x[1, 36], x[2, :], x[3, 5] = N, N, -INF, INF
    shape = "4,1" if keep else "4"
    found = run(
        f"float[4,37] x) => (float[{shape}] y) <int64[1] a = {{1}}> {{ y = {operator}<keepdims={keep}>(x, a) }}", x
    )
    equal(found, numpy(x, axis=1, keepdims=bool(keep)))


@pytest.mark.parametrize("kind", ["float", "bfloat16"])
@pytest.mark.parametrize(("operator", "indices"), [("ScatterElements", "int64[5]"), ("ScatterND", "int64[5,1]")])
def test_scattered_extrema_keep_nan_whatever_the_order(operator, indices, kind, capfd):
    dtype = "float32" if kind == "float" else ml_dtypes.bfloat16
    data, updates = np.array([N, 1, N, 2], dtype), np.array([1, N, N, 3, 5], dtype)
    found = run(
        f"{kind}[4] x, {kind}[5] u) => ({kind}[4] y) <{indices} i = {{0, 1, 2, 3, 0}}> "
        f'{{ a = {operator}<reduction="max">(x, i, u) b = {operator}<reduction="min">(x, i, u) y = Sub(a, b) }}',
        data,
        updates,
    )
    equal(found.astype("float32"), floats(N, N, N, 1))
    assert "pragma" not in capfd.readouterr().err  # a warning of TVM's code generator


@pytest.mark.parametrize("shape", [(1, 3, 5), (2, 3, 4, 5)])
def test_global_max_pool_has_the_rank_of_its_input_and_keeps_nan(shape):
    x = np.random.default_rng(0).standard_normal(shape).astype("float32")
    x[0, 1].flat[2], x[0, 2] = N, -INF
    given, pooled = ",".join(map(str, shape)), ",".join(map(str, (*shape[:2], *[1] * (len(shape) - 2))))
    found = run(f"float[{given}] x) => (float[{pooled}] y) {{ y = GlobalMaxPool(x) }}", x)
    equal(found, x.max(tuple(range(2, x.ndim)), keepdims=True))


ACTIVATIONS = {
    "Relu(d)": lambda x: np.where(x < 0, 0, x),
    "Clip(d, low, high)": lambda x: np.clip(x, -1, 6),
    "Clip(d, low)": lambda x: np.maximum(x, -1),
    "Max(d, low)": lambda x: np.maximum(x, -1),
    "HardSigmoid<alpha=0.2, beta=0.5>(d)": lambda x: np.clip(x * 0.2 + 0.5, 0, 1),
    "Exp(d)": np.exp,
}


@pytest.mark.sampled(8)
@pytest.mark.parametrize(
    ("groups", "topology"),
    [
        (1, "cpu"),
        (4, "cpu1"),
        pytest.param(1, "cpu1", marks=pytest.mark.thorough),
        pytest.param(4, "cpu", marks=pytest.mark.thorough),
    ],
)
@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_activations_of_convolutions_keep_nan(activation, groups, topology):
    """Weights and images are small integers or infinite, so sums are exact. The second convolution reads the first."""
    rng = np.random.default_rng(0)
    x, other = (rng.integers(-1, 2, shape).astype("float32") for shape in ((1, 4, 9, 9), (1, 8, 9, 9)))
    w = rng.choice([-1, 1], (8, 4 // groups, 3, 3)).astype("float32") / 8
    v = rng.choice([-1, 1], (8, 8, 1, 1)).astype("float32") / 8
    x[0, 1, 1, 1], x[0, 2, 7, 7], x[0, 3, 1, 7], other[0, 5, 4, 4] = N, INF, -INF, N
    function = ACTIVATIONS[activation]
    with np.errstate(invalid="ignore", over="ignore"):
        first = function(convolved(x, w, groups) + other).astype("float32")
        second = function(convolved(first, v, 1)).astype("float32")
    graph = (
        "float[1,4,9,9] x, float[1,8,9,9] o) => (float[1,8,9,9] y) <float low = {-1}, float high = {6}> "
        f"{{ c = Conv<group={groups}, pads=[1,1,1,1]>(x, w) d = Add(c, o) e = {activation} f = Conv(e, v) "
        f"y = {activation.replace('(d', '(f')} }}"
    )
    model = parser.parse_model(f'<ir_version: 8, opset_import: ["": 18]> g ({graph}')
    model.graph.initializer.extend(onnx.numpy_helper.from_array(value, name) for name, value in (("w", w), ("v", v)))
    executable = tvm_sched.relax.compile(model, topology, "single")
    for _ in range(2):
        np.testing.assert_allclose(executable.run(x, other), second, rtol=1e-5, atol=1e-6)
    x[:], other[:] = 1, 1
    first = function(convolved(x, w, groups) + other).astype("float32")
    np.testing.assert_allclose(executable.run(x, other), function(convolved(first, v, 1)), rtol=1e-5, atol=1e-6)


def convolved(x: Any, w: Any, groups: int) -> Any:
    """A convolution with as much padding as keeps the size, in float64."""
    reach = w.shape[-1] // 2
    padded = np.pad(x.astype("float64"), ((0, 0), (0, 0), (reach, reach), (reach, reach)))
    windows = np.lib.stride_tricks.sliding_window_view(padded, w.shape[-2:], (2, 3))
    parts = zip(np.split(windows, groups, axis=1), np.split(w.astype("float64"), groups), strict=True)
    return np.concatenate([np.einsum("nchwij,ocij->nohw", a, b) for a, b in parts], axis=1)


@pytest.mark.parametrize("kind", ["float", "double", "float16"])
@pytest.mark.parametrize(
    ("shape", "attributes"),
    [
        ((2, 3, 11), "kernel_shape=[3], strides=[2], pads=[1,1]"),
        ((1, 20, 9, 13), "kernel_shape=[3,3], strides=[2,2], pads=[1,1,1,1]"),
        ((1, 3, 9, 13), "kernel_shape=[2,3], strides=[1,3], dilations=[3,2]"),
        ((1, 5, 8, 8), "kernel_shape=[5,5], pads=[2,2,2,2]"),
        ((1, 5, 8, 8), "kernel_shape=[3,3], strides=[2,2], ceil_mode=1"),
        ((1, 2, 5, 6, 7), "kernel_shape=[2,3,3], strides=[1,2,2], pads=[0,1,1,1,1,1]"),
    ],
)
@pytest.mark.parametrize("places", [False, True])
@pytest.mark.sampled(9)
def test_max_pool_keeps_nan_and_minus_infinity(shape, attributes, kind, places):
    dtype = {"float": "float32", "double": "float64"}.get(kind, kind)
    rng = np.random.default_rng(0)
    x = rng.permutation(np.prod(shape)).reshape(shape).astype(dtype)
    x[rng.random(shape) < 0.03] = N
    x[rng.random(shape) < 0.03] = INF
    x[:, -1] = np.where(np.isnan(x[:, -1]), N, -INF)
    given = dict(part.split("=") for part in attributes.replace(", ", ";").split(";"))
    kernel, strides, dilations = (
        ast.literal_eval(given.get(name, str([1] * (x.ndim - 2)))) for name in ("kernel_shape", "strides", "dilations")
    )
    pads = ast.literal_eval(given.get("pads", str([0] * 2 * len(kernel))))
    right, indices = pooled(x, kernel, strides, dilations, pads, "ceil_mode" in given)
    outputs = f"{kind}{[*right.shape]} y" + (f", int64{[*right.shape]} i" if places else "")
    found = run(f"{kind}{[*shape]} x) => ({outputs}) {{ y{', i' if places else ''} = MaxPool<{attributes}>(x) }}", x)
    equal(found[0] if places else found, right)
    if places:
        equal(found[1], indices)


def pooled(x: Any, kernel: Any, strides: Any, dilations: Any, pads: Any, round_up: bool) -> tuple[Any, Any]:
    """The maxima of windows, NaN before all numbers, and where in x the first of each lies."""
    before, after = pads[: len(kernel)], pads[len(kernel) :]
    sizes = []
    for d, size in enumerate(x.shape[2:]):
        span = size + before[d] + after[d] - (kernel[d] - 1) * dilations[d] - 1
        sizes.append((-(-span // strides[d]) if round_up else span // strides[d]) + 1)
    values, places = np.zeros((*x.shape[:2], *sizes), x.dtype), np.zeros((*x.shape[:2], *sizes), "int64")
    for at in np.ndindex(values.shape):
        taps = [
            [
                p
                for t in range(size)
                if 0 <= (p := at[2 + d] * strides[d] - before[d] + t * dilations[d]) < x.shape[2 + d]
            ]
            for d, size in enumerate(kernel)
        ]
        window = [(at[0], at[1], *place) for place in itertools.product(*taps)]
        best = max(window, key=lambda place: (np.isnan(x[place]), 0 if np.isnan(x[place]) else x[place]))
        values[at], places[at] = x[best], np.ravel_multi_index(best, x.shape)
    return values, places


@pytest.mark.parametrize("kind", ["int32", "int64", "uint32", "uint64"])
def test_means_of_integers_keep_their_type(kind):
    x = np.array([[1, 2, 2], [2**31 - 1, 2**31 - 1, 2**31 - 2], [3, 0, 2]], kind)
    signs = -1 if kind.startswith("int") else 1
    x[2] = x[2] * signs
    found = run(f"{kind}[3,3] x) => ({kind}[3] y) <int64[1] a = {{1}}> {{ y = ReduceMean<keepdims=0>(x, a) }}", x)
    equal(found, np.array([int(Fraction(sum(map(int, row)), 3)) for row in x], kind))


def test_log_sum_exp_of_infinities():
    rows = floats(
        [INF, 1], [-INF, -INF], [-INF, 1], [INF, -INF], [INF, INF], [N, 1], [N, INF], [1e4, 1e4], [-1e4, -1e4]
    )
    found = run("float[9,2] x) => (float[9,1] y) <int64[1] a = {1}> { y = ReduceLogSumExp(x, a) }", rows)
    right = floats(INF, -INF, 1, INF, INF, N, N, 1e4 + np.log(2), -1e4 + np.log(2))
    np.testing.assert_allclose(found[:, 0], right, rtol=1e-6)


@pytest.mark.parametrize("p", [1, 2, 3])
@pytest.mark.parametrize("pads", [0, 1])
def test_windows_of_lp_pool_that_reach_beyond_the_padding(p, pads):
    """The norm of what lies inside the window: beyond the input there is nothing."""
    x = np.random.default_rng(p).standard_normal((1, 2, 6, 6)).astype("float32")
    size = 1 + ceil((6 + 2 * pads - 3) / 2)
    if (size - 1) * 2 >= 6 + pads:
        size -= 1
    found = run(
        f"float[1,2,6,6] x) => (float[1,2,{size},{size}] y) "
        f"{{ y = LpPool<kernel_shape=[3,3], strides=[2,2], pads=[{pads},{pads},{pads},{pads}], ceil_mode=1, p={p}>(x) }}",
        x,
    )
    ends = [(max(0, 2 * i - pads), min(6, 2 * i - pads + 3)) for i in range(size)]
    wide = np.abs(x.astype("float64")) ** p
    right = np.array([[wide[:, :, a:b, c:d].sum((2, 3)) ** (1 / p) for c, d in ends] for a, b in ends])
    np.testing.assert_allclose(found, right.transpose(2, 3, 0, 1), rtol=1e-5)


@pytest.mark.parametrize("shape", [(1, 4, 3, 5), (1, 4, 15)])
def test_global_lp_pool_of_special_numbers(shape):
    x = np.random.default_rng(0).standard_normal(shape).astype("float32")
    x[0, 1].flat[7], x[0, 2].flat[0], x[0, 3] = N, -INF, -0.0
    given, made = ",".join(map(str, shape)), ",".join(["1", "4", *["1"] * (len(shape) - 2)])
    powers = (1, 2, 3)
    found = run(
        f"float[{given}] x) => ({', '.join(f'float[{made}] y{p}' for p in powers)}) "
        f"{{ {' '.join(f'y{p} = GlobalLpPool<p={p}>(x)' for p in powers)} }}",
        x,
    )
    for p, mine in zip(powers, found, strict=True):
        right = (np.abs(x.astype("float64")) ** p).sum(tuple(range(2, x.ndim)), keepdims=True) ** (1 / p)
        assert mine.shape == right.shape
        np.testing.assert_allclose(mine, right, rtol=1e-6)


def test_max_roi_pool_of_special_numbers():
    """Regions of whole places, both ends within; a region beyond the image gives 0 where nothing of it lies inside."""
    x = np.arange(2 * 8 * 8, dtype="float32").reshape(1, 2, 8, 8) - 100
    x[0, 0, 1, 1], x[0, 1, 4:] = N, -INF
    regions = floats([0, 0, 0, 7, 7], [0, 2, 2, 5, 6], [0, 6, 1, 20, 9], [0, 3, 3, 3, 3])
    found = run(
        "float[1,2,8,8] x, float[4,5] r) => (float[4,2,2,2] y) { y = MaxRoiPool<pooled_shape=[2,2]>(x, r) }", x, regions
    )
    right = np.zeros((4, 2, 2, 2), "float32")
    for (k, c, i, j), _ in np.ndenumerate(right):
        left, top, end, bottom = map(int, regions[k, 1:])
        rows, columns = (
            range(max(0, low + at * size // 2), min(8, low + -(-(at + 1) * size // 2)))
            for low, size, at in ((top, bottom - top + 1, i), (left, end - left + 1, j))
        )
        window = x[0, c][np.ix_(rows, columns)]
        right[k, c, i, j] = window.max() if window.size else 0
    equal(found, right)


def asymmetric_weights(mode: str, scale: float, size: int) -> Any:
    """What each output takes of each input, at positions ``index / scale``."""
    factor = Fraction(float(np.float32(scale)))
    length = floor(size * factor)
    made = np.zeros((length, size))
    for k in range(length):
        place = k / factor
        share = place - floor(place) if mode == "linear" else 0
        made[k, min(floor(place), size - 1)] += float(1 - share)
        made[k, min(floor(place) + 1, size - 1)] += float(share)
    return made


@pytest.mark.parametrize("opset", [7, 9, 10])
def test_positions_before_opset_11_are_asymmetric(opset):
    x = np.random.default_rng(0).standard_normal((1, 1, 4, 5)).astype("float32")
    cases = [(mode, scale) for mode in ("nearest", "linear") for scale in (1.5, 2.0, 1.25, 2.6)]
    right, outputs, constants, nodes = [], [], [], []
    for k, (mode, scale) in enumerate(cases):
        rows, columns = (asymmetric_weights(mode, scale, size) for size in (4, 5))
        right.append(rows @ x[0, 0].astype("float64") @ columns.T)
        outputs.append(f"float[1,1,{len(rows)},{len(columns)}] y{k}")
        scales = f"1.0, 1.0, {scale}, {scale}"
        constants.append(f"float[4] s{k} = {{{scales}}}")
        operator = "Resize" if opset == 10 else "Upsample"
        given = (
            f'{operator}<mode="{mode}", scales=[{scales}]>(x)' if opset < 9 else f'{operator}<mode="{mode}">(x, s{k})'
        )
        nodes.append(f"y{k} = {given}")
    head = "" if opset < 9 else f"<{', '.join(constants)}>"
    found = run(f"float[1,1,4,5] x) => ({', '.join(outputs)}) {head} {{ {' '.join(nodes)} }}", x, opset=opset)
    for mine, expected in zip(found, right, strict=True):
        np.testing.assert_allclose(mine[0, 0], expected, rtol=1e-5, atol=2e-6)


NEAREST = {
    "ceil": ceil,
    "floor": floor,
    "round_prefer_floor": lambda place: ceil(place - Fraction(1, 2)),
    "round_prefer_ceil": lambda place: floor(place + Fraction(1, 2)),
}


@pytest.mark.parametrize(("size", "length"), [(6, 4), (11, 5), (6, 1), (16, 10)])
def test_nearest_input_of_a_cropped_region(size, length):
    """Positions are rounded once to float32, the type of the region: 0.2 of 5 is 1, and not a little more."""
    x = np.arange(size, dtype="float32")
    regions = [(0.2, 0.8), (0.1, 0.9), (-0.2, 1.3), (0.4, 0.6)]
    constants, nodes, right = [f"int64[1] s = {{{length}}}"], [], []
    for k, (first, last) in enumerate(regions):
        constants.append(f"float[2] r{k} = {{{first}, {last}}}")
        start, end = (Fraction(float(np.float32(value))) for value in (first, last))
        step = (end - start) * (size - 1)
        exact = (
            [start * (size - 1) + i * step / (length - 1) for i in range(length)]
            if length > 1
            else [(start + end) * (size - 1) / 2]
        )
        places = [Fraction(float(np.float32(float(place)))) for place in exact]
        for rounding, nearest in NEAREST.items():
            nodes.append(
                f'y{len(nodes)} = Resize<mode="nearest", coordinate_transformation_mode="tf_crop_and_resize", '
                f'nearest_mode="{rounding}", extrapolation_value=-1.0>(x, r{k}, , s)'
            )
            right.append(floats(*(x[nearest(p)] if 0 <= p <= size - 1 else -1 for p in places)))
    outputs = ", ".join(f"float[{length}] y{k}" for k in range(len(nodes)))
    found = run(f"float[{size}] x) => ({outputs}) <{', '.join(constants)}> {{ {' '.join(nodes)} }}", x)
    for mine, expected in zip(found, right, strict=True):
        equal(mine, expected)


def test_a_scale_is_a_quotient_of_lengths_where_float32_cannot_tell():
    """9 elements by 0.33333334 are 3, each third of them, and not the one before."""
    x = np.arange(9, dtype="float32")
    found = run(
        "float[9] x) => (float[3] y) <float[1] s = {0.3333333432674407958984375}> "
        '{ y = Resize<mode="nearest", coordinate_transformation_mode="asymmetric", nearest_mode="floor">(x, , s) }',
        x,
    )
    equal(found, floats(0, 3, 6))


def test_normalisation_of_values_far_from_zero():
    x = np.random.default_rng(0).standard_normal((2, 3, 5, 5)).astype("float32")
    x = (x + floats(0, 1000, 1e5)[:, None, None]).astype("float32")
    wide = x.astype("float64")
    right = (wide - wide.mean((0, 2, 3), keepdims=True)) / (wide.std((0, 2, 3), keepdims=True) + 1e-9)
    found = run("float[2,3,5,5] x) => (float[2,3,5,5] y) { y = MeanVarianceNormalization(x) }", x)
    np.testing.assert_allclose(found, right, rtol=2e-5, atol=2e-6)
    flat = np.full((2, 3, 5, 5), 1000.1, "float32")
    found = run("float[2,3,5,5] x) => (float[2,3,5,5] y) { y = MeanVarianceNormalization(x) }", flat)
    equal(found, np.zeros_like(flat))


def test_gemm_of_integers_is_exact():
    rng = np.random.default_rng(0)
    a, b, c = rng.integers(-(2**40), 2**40, (3, 4)), rng.integers(-(2**20), 2**20, (4, 2)), rng.integers(-9, 9, (3, 2))
    text = "int64[3,4] a, int64[4,2] b, int64[3,2] c) => (int64[3,2] y) {{ y = Gemm<alpha={}, beta={}>(a, b, c) }}"
    equal(run(text.format(2.0, 3.0), a, b, c), 2 * (a @ b) + 3 * c)
    with pytest.raises(TvmSchedError, match=r"alpha is 0\.5 and beta 1; whole numbers"):
        run(text.format(0.5, 1.0), a, b, c)


@pytest.mark.parametrize("kind", ["uint8", "int8", "int16", "uint16"])
def test_quantised_numbers_saturate(kind):
    limits, x = np.iinfo(kind), floats(-INF, -3.4e38, -3e9, -1, -0.0, 0.5, 1.5, 3e9, 3.4e38, INF)
    zero = 3
    found = run(
        f"float[10] x) => ({kind}[10] y) <float s = {{1.0}}, {kind} z = {{{zero}}}> {{ y = QuantizeLinear(x, s, z) }}",
        x,
        opset=21,
    )
    equal(found, np.clip(np.rint(x.astype("float64")) + zero, limits.min, limits.max).astype(kind))


FUNCTIONS = {
    "Relu": lambda x, a, b: np.maximum(x, 0),
    "Tanh": lambda x, a, b: np.tanh(x),
    "Sigmoid": lambda x, a, b: 1 / (1 + np.exp(-x)),
    "Affine": lambda x, a, b: a * x + b,
    "LeakyRelu": lambda x, a, b: np.where(x < 0, (0.01 if a is None else a) * x, x),
    "ThresholdedRelu": lambda x, a, b: np.where(x > (1.0 if a is None else a), x, 0),
    "ScaledTanh": lambda x, a, b: a * np.tanh(b * x),
    "HardSigmoid": lambda x, a, b: np.clip((0.2 if a is None else a) * x + (0.5 if b is None else b), 0, 1),
    "Elu": lambda x, a, b: np.where(x < 0, (1.0 if a is None else a) * np.expm1(x), x),
    "Softsign": lambda x, a, b: x / (1 + np.abs(x)),
    "Softplus": lambda x, a, b: np.logaddexp(0, x),
}
"""The standard's functions of recurrent cells, of a number, alpha and beta; None for the operator's own default."""

TAKE_ALPHA = ("Affine", "LeakyRelu", "ThresholdedRelu", "ScaledTanh", "HardSigmoid", "Elu")
TAKE_BETA = ("Affine", "ScaledTanh", "HardSigmoid")

CELLS = [
    ("LSTM", ["HardSigmoid", "LeakyRelu", "ThresholdedRelu"], [0.3, 0.1, 0.2], [0.4]),
    ("LSTM", ["HardSigmoid", "LeakyRelu", "ThresholdedRelu"], [], []),
    ("LSTM", ["Affine", "ScaledTanh", "Elu"], [0.2, 0.1, 0.3], [0.4, 0.5]),
    ("LSTM", ["Relu", "Softplus", "Softsign"], [], []),
    ("LSTM", ["Sigmoid", "Tanh", "ThresholdedRelu"], [0.1], []),
    ("GRU", ["ThresholdedRelu", "Tanh"], [0.3], []),
    ("GRU", ["Sigmoid", "ThresholdedRelu"], [], []),
    ("GRU", ["HardSigmoid", "Softsign"], [], []),
    ("GRU", ["Elu", "Affine"], [0.5, 0.7], [0.1]),
]


@pytest.mark.sampled(3)
@pytest.mark.parametrize(("kind", "names", "alphas", "betas"), CELLS)
def test_activations_of_recurrent_layers(kind, names, alphas, betas):
    """By the equations of the standard in float64; onnx.reference leaves activations of LSTM and GRU out."""
    steps, batch, width, hidden, gates = 3, 2, 3, 4, {"LSTM": 4, "GRU": 3}[kind]
    rng = np.random.default_rng(len(names[0]))
    x = rng.standard_normal((steps, batch, width)).astype("float32")
    w, r, b = (
        rng.standard_normal(shape).astype("float32")
        for shape in ((1, gates * hidden, width), (1, gates * hidden, hidden), (1, 2 * gates * hidden))
    )
    quoted, attributes = ",".join(f'"{name}"' for name in names), ""
    for name, values in (("activation_alpha", alphas), ("activation_beta", betas)):
        attributes += f", {name}=[{','.join(map(str, values))}]" if values else ""
    found = run(
        f"float[{steps},{batch},{width}] x, float[1,{gates * hidden},{width}] w, float[1,{gates * hidden},{hidden}] r, "
        f"float[1,{2 * gates * hidden}] b) => (float[{steps},1,{batch},{hidden}] y) "
        f"{{ y = {kind}<hidden_size={hidden}, activations=[{quoted}]{attributes}>(x, w, r, b) }}",
        *(x, w, r, b),
    )
    left, rest, functions = list(alphas), list(betas), []
    for name in names:
        alpha = left.pop(0) if left and name in TAKE_ALPHA else None
        beta = rest.pop(0) if rest and name in TAKE_BETA else None
        functions.append(lambda v, name=name, alpha=alpha, beta=beta: FUNCTIONS[name](v, alpha, beta))
    right = _layer(kind, functions, x.astype("float64"), w[0].astype("float64"), r[0].astype("float64"), b[0])
    np.testing.assert_allclose(found[:, 0], right, rtol=2e-5, atol=2e-6)


def _layer(kind: str, functions: list[Any], x: Any, w: Any, r: Any, bias: Any) -> Any:
    h = c = np.zeros((x.shape[1], r.shape[1]))
    wb, rb = np.split(bias.astype("float64"), 2)
    f, g, *more = functions
    states = []
    for step in x:
        if kind == "LSTM":
            i, o, forget, candidate = np.split(step @ w.T + h @ r.T + wb + rb, 4, axis=1)
            c = f(forget) * c + f(i) * g(candidate)
            h = f(o) * more[0](c)
        else:
            wz, wr, wh = np.split(step @ w.T + wb, 3, axis=1)
            (rz, rr, rh), (bz, br, bh) = np.split(r, 3), np.split(rb, 3)
            z, reset = f(wz + h @ rz.T + bz), f(wr + h @ rr.T + br)
            h = (1 - z) * g(wh + (reset * h) @ rh.T + bh) + z * h
        states.append(h)
    return np.array(states)


@pytest.mark.parametrize(("kind", "count"), [("GRU", 3), ("LSTM", 2), ("RNN", 2)])
def test_a_wrong_number_of_activations_is_refused(kind, count):
    gates = {"LSTM": 4, "GRU": 3, "RNN": 1}[kind]
    quoted = ",".join(['"Tanh"'] * count)
    with pytest.raises(TvmSchedError, match=rf"{count} activations; the standard requires"):
        run(
            f"float[2,1,3] x, float[1,{gates * 4},3] w, float[1,{gates * 4},4] r) => (float[2,1,1,4] y) "
            f"{{ y = {kind}<hidden_size=4, activations=[{quoted}]>(x, w, r) }}",
            *(np.zeros(shape, "float32") for shape in ((2, 1, 3), (1, gates * 4, 3), (1, gates * 4, 4))),
        )


@pytest.mark.parametrize(
    ("operator", "numpy"),
    [("ReduceL1", np.abs), ("ReduceL2", np.abs), ("ReduceSumSquare", np.square), ("ReduceLogSum", np.log)],
)
def test_reductions_over_no_axes_still_compute_on_each_element(operator, numpy):
    x = floats(0.5, 2, 1, 4) if operator == "ReduceLogSum" else floats(-3, 2, -1, 9)
    found = run(f"float[4] x) => (float[4] y) {{ y = {operator}<noop_with_empty_axes=1>(x) }}", x)
    np.testing.assert_allclose(found, numpy(x), rtol=1e-6)


@pytest.mark.parametrize(("reduction", "axis"), [("none", 0), ("add", 1), ("max", 2)])
def test_scattered_elements_of_a_part_of_the_tensor(reduction, axis):
    random = np.random.default_rng(axis)
    shape, part = (4, 5, 6), [2, 3, 4]
    x, updates = (random.standard_normal(size).astype("float32") for size in (shape, part))
    indices = random.permuted(np.broadcast_to(np.arange(-1, 3).reshape(1, 1, 4), (2, 3, 4)), axis=2)
    if reduction == "none":  # equal indices would leave the result open
        indices = np.moveaxis(random.permuted(np.broadcast_to(np.arange(4), (3, 4, 4)), axis=2)[..., :2], 2, 0)
    right = x.copy()
    for place in np.ndindex(*part):
        target = [*place[:axis], indices[place], *place[axis + 1 :]]
        old, new = right[tuple(target)], updates[place]
        right[tuple(target)] = {"none": new, "add": old + new, "max": max(old, new)}[reduction]
    found = run(
        "float[4,5,6] x, int64[2,3,4] i, float[2,3,4] u) => (float[4,5,6] y) "
        f'{{ y = ScatterElements<axis={axis}, reduction="{reduction}">(x, i, u) }}',
        x,
        indices.astype("int64"),
        updates,
    )
    np.testing.assert_allclose(found, right, rtol=1e-6)


def test_nothing_of_the_greatest_elements():
    values, positions = run(
        "float[3,4] x) => (float[3,0] y, int64[3,0] p) <int64[1] k = {0}> { y, p = TopK(x, k) }",
        np.zeros((3, 4), "float32"),
    )
    assert (values.shape, positions.shape) == ((3, 0), (3, 0))
    assert (values.dtype, positions.dtype) == (np.float32, np.int64)


def test_a_flat_tensor_of_nothing():
    found = run("float[2,1,0,3] x) => (float[2,0] y) { y = Flatten(x) }", np.zeros((2, 1, 0, 3), "float32"))
    assert found.shape == (2, 0)


@pytest.mark.parametrize("kind", ["double", "float16"])
def test_local_response_of_other_types(kind):
    x = np.arange(-6, 6).reshape(1, 3, 2, 2)
    square = np.pad(np.square(x / 4.0), ((0, 0), (1, 1), (0, 0), (0, 0)))
    right = x / 4.0 / (1 + 0.5 / 3 * (square[:, :-2] + square[:, 1:-1] + square[:, 2:])) ** 0.75
    found = run(
        f"{kind}[1,3,2,2] x) => ({kind}[1,3,2,2] y) {{ y = LRN<size=3, alpha=0.5>(x) }}",
        (x / 4.0).astype("float64" if kind == "double" else kind),
    )
    np.testing.assert_allclose(found, right, rtol=1e-6 if kind == "double" else 2e-3)


@pytest.mark.parametrize("threads", ["1", "2"])
def test_a_sigmoid_behind_a_transposed_convolution_keeps_nan(threads, monkeypatch):
    monkeypatch.setenv("TVM_SCHED_NUM_THREADS", threads)
    x = np.full((1, 3, 6, 6), 0.5, "float32")
    x[0, 1, 2, 3] = N
    found = run(
        "float[1,3,6,6] x, float[3,3,2,2] w) => (float[1,3,7,7] y) { c = ConvTranspose(x, w) y = Sigmoid(c) }",
        x,
        np.ones((3, 3, 2, 2), "float32"),
    )
    assert set(zip(*np.nonzero(np.isnan(found[0, 0])), strict=True)) == {(2, 3), (2, 4), (3, 3), (3, 4)}


@pytest.mark.parametrize("opset", [11, 13])
def test_hardmax_before_opset_13_is_over_all_further_axes(opset):
    x = np.random.default_rng(0).permutation(24).reshape(2, 3, 4).astype("float32")
    found = run("float[2,3,4] x) => (float[2,3,4] y) { y = Hardmax<axis=1>(x) }", x, opset=opset)
    right = x == x.max((1, 2) if opset == 11 else 1, keepdims=True)
    equal(found, right.astype("float32"))


@pytest.mark.parametrize("text", ["y = Mul(x, c)", "y = Div(c, x)", "r = Relu(x) s = Mul(c, r) y = Add(s, x)"])
def test_a_constant_zero_keeps_nan(text):
    x = floats(N, INF, -INF, 0, 1)
    found = run(f"float[5] x) => (float[5] y) <float c = {{0}}> {{ {text} }}", x)
    with np.errstate(invalid="ignore"):
        right = {"y = Mul(x, c)": x * 0, "y = Div(c, x)": np.float32(0) / x}.get(text, np.maximum(x, 0) * 0 + x)
    equal(found, right)


def test_a_product_with_alpha_zero_keeps_nan():
    x = floats(INF, 1, N, 2).reshape(2, 2)
    found = run("float[2,2] x) => (float[2,3] y) <float[2,3] w = {1, 1, 1, 1, 1, 1}> { y = Gemm<alpha=0.0>(x, w) }", x)
    equal(found, np.full((2, 3), N, "float32"))


@pytest.mark.parametrize(("scale", "ratio"), [(0.25, 2), (0.5, 0), (1.0, 1)])
def test_regions_are_scaled_before_half_a_pixel_is_subtracted(scale, ratio):
    """Of an image that grows linearly, the mean over a bin is the value at its centre."""
    rows, columns = np.mgrid[:12, :12]
    x = (3 * rows + 0.25 * columns).astype("float32")[None, None]
    region = np.array([[2.0, 4.0, 7.0, 9.0]]) / scale
    found = run(
        "float[1,1,12,12] x, float[1,4] r) => (float[1,1,2,5] y) <int64[1] b = {0}> { y = RoiAlign<output_height=2, "
        f"output_width=5, sampling_ratio={ratio}, spatial_scale={scale}>(x, r, b) }}",
        x,
        region.astype("float32"),
    )
    heights, widths = (start - 0.5 + 5 / count * (np.arange(count) + 0.5) for start, count in ((4, 2), (2, 5)))
    np.testing.assert_allclose(found[0, 0], 3 * heights[:, None] + 0.25 * widths, rtol=1e-6)


@pytest.mark.parametrize("side", ["UPPER", "LOWER"])
@pytest.mark.parametrize("operator", ["MaxPool", "LpPool", "AveragePool"])
def test_windows_that_lie_apart_need_no_padding(operator, side):
    x = np.random.default_rng(0).random((1, 2, 6, 7)).astype("float32")
    found = run(
        f"float[1,2,6,7] x) => (float[1,2,2,3] y) {{ y = {operator}<kernel_shape=[1,1], strides=[3,3], "
        f'auto_pad="SAME_{side}">(x) }}',
        x,
    )
    np.testing.assert_allclose(found, x[:, :, ::3, ::3], rtol=1e-6)


@pytest.mark.parametrize(
    ("shape", "before", "after"),
    [((2, 2), (0, 2), (0, 0)), ((2, 3, 4), (0, 7, 0), (0, 5, 9)), ((1, 3), (4, 0), (0, 2))],
)
def test_reflections_wider_than_the_axis_go_to_and_fro(shape, before, after):
    x = np.arange(np.prod(shape), dtype="float32").reshape(shape)
    wanted = np.pad(x, list(zip(before, after, strict=True)), "reflect")
    widths = ", ".join(map(str, (*before, *after)))
    graph = (
        f"float{list(shape)} x) => (float{list(wanted.shape)} y) <int64[{2 * len(shape)}] p = {{{widths}}}> "
        '{ y = Pad<mode="reflect">(x, p) }'
    )
    equal(run(graph, x, opset=19), wanted)


def test_reflection_of_nothing_is_refused():
    graph = 'float[0] x) => (float[2] y) <int64[2] p = {2, 0}> { y = Pad<mode="reflect">(x, p) }'
    with pytest.raises(TvmSchedError, match="pads an axis without elements in mode 'reflect'"):
        run(graph, np.zeros(0, "float32"), opset=19)


NORMS = {
    "ReduceL1": lambda x: np.abs(x).sum(1),
    "ReduceL2": lambda x: np.sqrt((x * x).sum(1)),
    "ReduceLogSum": lambda x: np.log(x.sum(1)),
    "LpNormalization<p=1>": lambda x: x / np.abs(x).sum(1, keepdims=True),
    "LpNormalization<p=2>": lambda x: x / np.sqrt((x * x).sum(1, keepdims=True)),
    "GlobalLpPool<p=2>": lambda x: np.sqrt((x * x).sum(1, keepdims=True)),
    "LpPool<p=2, kernel_shape=[2]>": lambda x: np.sqrt((x * x).sum(1, keepdims=True)),
}
"""Operators on rows of two numbers, and the results in a precision in which they are in range."""


@pytest.mark.parametrize(
    ("kind", "sizes"),
    [
        ("float16", (3e4, 300, 1e-5)),
        ("float", (3e38, 3e30, 3e-30)),
        ("bfloat16", (2e38, 3e30, 3e-30)),
        ("double", (1e307, 3e-300)),
    ],
)
def test_norms_are_in_range_where_their_results_are(kind, sizes):
    """For each operator, rows of large and small numbers, all of which the type holds; sums and squares leave it."""
    numpy = {"float": "float32", "double": "float64", "bfloat16": ml_dtypes.bfloat16}.get(kind, kind)
    x = np.array([[3 * size / 4, size] for size in sizes]).astype(numpy)
    rows, inputs, outputs, nodes, wanted = len(x), [f"{kind}[{len(x)},2] x", f"{kind}[{len(x)},1,2] z"], [], [], []
    for k, (operator, exact) in enumerate(NORMS.items()):
        if kind == "double" and operator.startswith("LpPool"):
            continue
        value = exact(x.astype(np.longdouble)).astype(numpy)
        pooled = "Pool" in operator
        value = value.reshape(rows, 1, 1) if pooled else value
        reduces = operator.startswith("Reduce")
        outputs.append(f"{kind}{list(value.shape)} y{k}")
        nodes.append(f"y{k} = {operator}{'<keepdims=0>(x, a)' if reduces else '(z)' if pooled else '(x)'}")
        wanted.append(value)
    found = run(
        f"{', '.join(inputs)}) => ({', '.join(outputs)}) <int64[1] a = {{1}}> {{ {' '.join(nodes)} }}", x, x[:, None]
    )
    tolerance = {"float16": 2e-3, "bfloat16": 1e-2, "float": 1e-6, "double": 1e-14}[kind]
    for mine, right in zip(found, wanted, strict=True):
        np.testing.assert_allclose(mine.astype("float64"), right.astype("float64"), rtol=tolerance)
