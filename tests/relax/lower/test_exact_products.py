"""Kernels for products of 8-bit integers against sums of Python's and numpy's 64-bit integers, on each instruction set."""

import json

import numpy as np
import pytest

from tvm_sched.relax.lower.kernel_libraries import get_library
from tvm_sched.relax.lower.kernel_libraries.onednn.describe import channels_last, dense, window
from tvm_sched.relax.lower.kernel_libraries.onednn.exact_products import packed_kernel
from tvm_sched.relax.lower.kernel_libraries.onednn.products import VERSION
from tvm_sched_runtime.core_library import function as library_function
from tvm_sched_runtime.runtime.tensors import to_tensor

pytestmark = pytest.mark.skipif(get_library("onednn").why_not() is not None, reason="the kernel library is not here")
SETS = ["portable", "sse4.1", "avx2", "avxvnni", "avx512vnni", "amx"]


@pytest.fixture(params=SETS)
def instructions(request, monkeypatch):
    monkeypatch.setenv("TVM_SCHED_INTEGERS", request.param)
    x = np.ones((1, 1, 1, 1), "uint8")
    kernel, packed, right = convolution(x, np.ones((1, 1, 1, 1), "int8"))
    try:
        computed(kernel, [x, packed], right.astype("int32"))
    except ValueError as error:
        if "TVM_SCHED_INTEGERS" not in str(error):
            raise
        pytest.skip(f"this processor has no instructions of the set {request.param}")
    return request.param


def computed(kernel, arrays, result, cores=(1, 1)):
    """What a kernel makes of its operands, with a share of two threads."""
    document = {"version": VERSION, "kernels": {"k": {**kernel, "cores": cores}}, "threads": 2}
    module = library_function("tvm_sched.make_onednn_module")(json.dumps(document))
    out = to_tensor(np.full_like(result, 77))
    module["k"](*(to_tensor(np.ascontiguousarray(a)) for a in arrays), out)
    return out.numpy()


def sums(x, w, zero, groups, strides, padding, dilation):
    """The convolution of an image (N, H, W, C) less its zero point with weights (O, C, H, W), in int64."""
    x = x.astype(np.int64) - zero
    x = np.pad(x, ((0, 0), (padding[0], padding[2]), (padding[1], padding[3]), (0, 0)))
    outputs, each, height, width = w.shape
    reach = [(k - 1) * d + 1 for k, d in zip((height, width), dilation, strict=True)]
    size = [(x.shape[1 + k] - reach[k]) // strides[k] + 1 for k in (0, 1)]
    result = np.zeros((x.shape[0], *size, outputs), np.int64)
    for g in range(groups):
        mine = slice(g * (outputs // groups), (g + 1) * (outputs // groups))
        for dy in range(height):
            for dx in range(width):
                ys, xs = (
                    slice(p * d, p * d + (n - 1) * s + 1, s)
                    for p, d, n, s in zip((dy, dx), dilation, size, strides, strict=True)
                )
                part = x[:, ys, xs, g * each : (g + 1) * each]
                result[..., mine] += part @ w[mine, :, dy, dx].T.astype(np.int64)
    return result


def convolution(x, w, zero=0, groups=1, strides=(1, 1), padding=(0, 0, 0, 0), dilation=(1, 1)):
    """The description of a kernel with sums for a result, its packed weights, and the right sums."""
    right = sums(x, w, zero, groups, strides, padding, dilation)
    assert abs(right).max(initial=0) < 1 << 31
    geometry = {
        **window(strides, padding, dilation, w.shape[2:], x.shape[1:3], right.shape[1:3]),
        "kernel": list(w.shape[2:]),
        "images": [channels_last(x.shape), channels_last(right.shape)],
    }
    kernel, packed = packed_kernel(w, False, groups, geometry)
    operands = [{**kernel["operands"][0], "type": x.dtype.name}, *kernel["operands"][1:]]
    operands[-1] = {**operands[-1], "type": "int32"}
    return {**kernel, "operands": operands, "source_zero": zero}, packed, right


RANGES = {"uint8": (0, 256), "int8": (-128, 128)}


def random_case(seed):
    rng = np.random.default_rng(seed)
    dtype = str(rng.choice(["uint8", "int8"]))
    kind = rng.choice(["plain", "grouped", "depthwise", "one place"])
    groups = {"grouped": int(rng.integers(2, 5))}.get(kind, 1)
    channels, outputs = (groups * int(rng.integers(1, 40)) for _ in (0, 1))
    if kind == "depthwise":
        groups = outputs = channels
    size = (1, 1) if kind == "one place" else tuple(int(k) for k in rng.integers(1, 5, 2))
    dilation = tuple(int(d) for d in rng.integers(1, 3, 2))
    reach = [(k - 1) * d + 1 for k, d in zip(size, dilation, strict=True)]
    image = [int(rng.integers(max(r - 2, 1), 24)) for r in reach]
    padding = [int(rng.integers(0, r)) for r in (*reach, *reach)]
    padding = [p + 2 * (image[k % 2] < reach[k % 2]) for k, p in enumerate(padding)]
    x = rng.integers(*RANGES[dtype], (int(rng.integers(1, 3)), *image, channels)).astype(dtype)
    wide = rng.random() < 0.3
    low, high = ((-255, 256), (-255, 1), (0, 256), (-100, 156))[rng.integers(4)] if wide else (-128, 128)
    w = rng.integers(low, high, (outputs, channels // groups, *size)).astype("int16" if wide else "int8")
    zero = int(rng.integers(*RANGES[dtype]))
    return convolution(x, w, zero, groups, tuple(int(s) for s in rng.integers(1, 4, 2)), padding, dilation), x


@pytest.mark.parametrize("seed", range(60))
@pytest.mark.sampled(10)
def test_random_convolutions(seed, instructions):
    (kernel, packed, right), x = random_case(seed)
    np.testing.assert_array_equal(computed(kernel, [x, packed], right.astype("int32")), right)


@pytest.mark.parametrize("wide", [False, True])
@pytest.mark.parametrize("dtype", ["uint8", "int8"])
@pytest.mark.parametrize(
    ("image", "size", "strides", "dilation", "padding"),
    [
        pytest.param((2, 5), (5, 5), (1, 1), (1, 1), (2, 2, 2, 2), id="lines of padding"),
        pytest.param((3, 4), (3, 3), (1, 1), (1, 1), (5, 6, 4, 7), id="windows of padding alone"),
        pytest.param((7, 700), (7, 3), (2, 1), (1, 1), (3, 1, 3, 1), id="lines of several blocks"),
        pytest.param((4, 400), (2, 9), (1, 3), (2, 4), (1, 16, 1, 16), id="gaps, steps, blocks"),
        pytest.param((311, 1), (31, 1), (1, 1), (1, 1), (15, 0, 15, 0), id="an upright line"),
        pytest.param((1, 90), (1, 4), (1, 2), (1, 1), (0, 3, 0, 0), id="a line"),
        pytest.param((9, 8), (1, 1), (2, 3), (1, 1), (0, 0, 0, 0), id="one place"),
    ],
)
@pytest.mark.parametrize("channels", [1, 8, 16, 37])
@pytest.mark.sampled(16)
def test_depthwise(channels, image, size, strides, dilation, padding, dtype, wide, instructions):
    rng = np.random.default_rng(channels)
    x = rng.integers(*RANGES[dtype], (2, *image, channels)).astype(dtype)
    w = rng.integers(*((-255, 256) if wide else (-128, 128)), (channels, 1, *size)).astype("int16" if wide else "int8")
    zero = int(rng.integers(*RANGES[dtype]))
    kernel, packed, right = convolution(x, w, zero, channels, strides, padding, dilation)
    np.testing.assert_array_equal(computed(kernel, [x, packed], right.astype("int32")), right)
    np.testing.assert_array_equal(computed(kernel, [x, packed], right.astype("int32"), cores=(1, 2)), right)
    # Weights that are known only when the kernel runs.
    given = {**kernel["operands"][1], "parameter": False}
    kernel = {**kernel, "operands": [kernel["operands"][0], given, kernel["operands"][2]]}
    np.testing.assert_array_equal(computed(kernel, [x, packed], right.astype("int32")), right)


@pytest.mark.parametrize("terms", [1, 2, 3, 1023, 65000])
@pytest.mark.parametrize(("value", "weight"), [(255, -128), (255, 127), (0, -128), (-128, -128), (-128, 127)])
@pytest.mark.sampled(5)
def test_extremes(terms, value, weight, instructions):
    dtype = "int8" if value < 0 else "uint8"
    x = np.full((1, 7, 1, terms), value, dtype)
    kernel, packed, right = convolution(x, np.full((18, terms, 1, 1), weight, "int8"))
    np.testing.assert_array_equal(computed(kernel, [x, packed], right.astype("int32")), right)


def epilogue(seed, result, depthwise):
    """A convolution with everything behind it, and its values in float32, operation by operation."""
    rng = np.random.default_rng(seed)
    channels, outputs = (21, 21) if depthwise else (9, 21)
    x = rng.integers(0, 256, (2, 9, 8, channels)).astype("uint8")
    w = rng.integers(-128, 128, (outputs, 1 if depthwise else channels, 3, 3)).astype("int8")
    zero = np.array([rng.integers(0, 256)], "uint8")
    kernel, packed, right = convolution(x, w, int(zero[0]), outputs if depthwise else 1, padding=(1, 1, 1, 1))
    bias = rng.integers(-90000, 90000, outputs).astype("int32")
    factor = rng.uniform(1e-4, 3e-3, outputs).astype("float32")
    summand = rng.standard_normal(1).astype("float32")
    scale, point = np.float32(0.173), int(rng.integers(*RANGES.get(result, (0, 1))))
    value = (right + bias).astype("float32") * factor + summand
    value = np.clip(value, np.float32(-7.25), np.float32(np.inf))
    operands = [
        *kernel["operands"][:2],
        {**dense((1,)), "type": "uint8"},
        {**dense((outputs,)), "type": "int32"},
        dense((outputs,)),
        dense((1,)),
        {**kernel["operands"][2], "type": result},
    ]
    post = [
        {"name": "multiply", "input": 4},
        {"name": "add", "input": 5},
        {"name": "clip", "alpha": -7.25, "beta": float(np.finfo("float32").max)},
    ]
    if result != "float32":
        post.append({"name": "quantize", "alpha": float(scale), "beta": point})
        low, high = RANGES[result]
        value = np.clip(np.rint(value / scale) + point, low, high - 1).astype(result)
    kernel = {**kernel, "operands": operands, "post": post, "bias": 3, "source_zero_input": 2, "source_zero": 0}
    return kernel, [x, packed, zero, bias, factor, summand], value


@pytest.mark.parametrize("depthwise", [False, True])
@pytest.mark.parametrize("result", ["float32", "uint8", "int8"])
@pytest.mark.parametrize("seed", range(4))
@pytest.mark.sampled(5)
def test_epilogue(seed, result, depthwise, instructions):
    kernel, arrays, right = epilogue(seed, result, depthwise)
    np.testing.assert_array_equal(computed(kernel, arrays, right), right)


@pytest.mark.parametrize("depthwise", [False, True])
@pytest.mark.parametrize("result", ["uint8", "int8"])
def test_table(result, depthwise, instructions):
    kernel, arrays, right = epilogue(5, result, depthwise)
    table = np.random.default_rng(0).permutation(256).astype("uint8").view(result)
    operands = [*kernel["operands"][:-1], {**dense((256,)), "type": result}, kernel["operands"][-1]]
    kernel = {**kernel, "operands": operands, "post": [*kernel["post"], {"name": "table", "input": 6}]}
    right = table[right.view("uint8")]
    np.testing.assert_array_equal(computed(kernel, [*arrays, table], right), right)


def test_quotients_next_to_halves(instructions):
    rng = np.random.default_rng(3)
    x = np.arange(256, dtype="uint8").reshape(1, -1, 1, 1)
    kernel, packed, right = convolution(x, np.ones((5, 1, 1, 1), "int8"))
    few = [2**-126, 1e-30, 1e30, 2**0.5, 1.0, 0.25, np.nextafter(np.float32(2), np.float32(0))]
    for scale in np.concatenate([few, np.exp(rng.uniform(-9, 9, 40))]).astype("float32"):
        half = scale / np.float32(2)
        factor = np.array([np.nextafter(half, np.float32(0)), half, np.nextafter(half, scale), 1, scale], "float32")
        summand = np.array([0, 0, 0, np.inf, -np.inf], "float32")
        value = right.astype("float32") * factor + summand
        with np.errstate(over="ignore", invalid="ignore"):
            expected = np.clip(np.rint(value / scale) + 3, 0, 255).astype("uint8")
        post = [{"name": "multiply", "input": 2}, {"name": "add", "input": 3}]
        post.append({"name": "quantize", "alpha": float(scale), "beta": 3})
        operands = [*kernel["operands"][:2], dense((5,)), dense((5,)), {**kernel["operands"][2], "type": "uint8"}]
        described = {**kernel, "operands": operands, "post": post}
        np.testing.assert_array_equal(computed(described, [x, packed, factor, summand], expected), expected, str(scale))


def test_results_close_to_halves(instructions):
    """Every sum from 0 to 32640, with factors of which many results lie within float32's error of a half, or on one."""
    rng = np.random.default_rng(8)
    x = np.stack(np.meshgrid(np.arange(127), np.arange(257) % 256, indexing="ij"), -1).astype("uint8")[None]
    kernel, packed, right = convolution(x, np.tile(np.array([1, 127], "int8"), (37, 1))[:, :, None, None])
    for result in ("uint8", "int8"):
        scale = np.float32(rng.uniform(0.1, 3))
        halves = rng.integers(-120, 120, 37) + 0.5
        summand = rng.uniform(-200, 200, 37).astype("float32")
        factor = ((halves * scale - summand) / rng.integers(20000, 32640, 37)).astype("float32")
        factor[:4], summand[:4] = scale * np.float32([2**-7, 2**-8, 3 / 256, 0.4]), scale * np.float32([0, 0.5, 1, -9])
        value = np.clip(right.astype("float32") * factor + summand, -40 * scale, 70 * scale)
        low, high = RANGES[result]
        expected = np.clip(np.rint(value / scale) + 17, low, high - 1).astype(result)
        post = [{"name": "multiply", "input": 2}, {"name": "add", "input": 3}]
        post.append({"name": "clip", "alpha": float(-40 * scale), "beta": float(70 * scale)})
        post.append({"name": "quantize", "alpha": float(scale), "beta": 17})
        operands = [*kernel["operands"][:2], dense((37,)), dense((37,)), {**kernel["operands"][2], "type": result}]
        described = {**kernel, "operands": operands, "post": post}
        np.testing.assert_array_equal(computed(described, [x, packed, factor, summand], expected), expected)


def test_halves_round_to_even(instructions):
    x = np.arange(1, 256, 2, dtype="uint8").reshape(1, -1, 1, 1)
    kernel, packed, right = convolution(x, np.ones((1, 1, 1, 1), "int8"))
    operands = [*kernel["operands"][:2], {**kernel["operands"][2], "type": "uint8"}]
    kernel = {**kernel, "operands": operands, "post": [{"name": "quantize", "alpha": 2.0, "beta": 3}]}
    expected = (np.rint(right / 2) + 3).astype("uint8")
    np.testing.assert_array_equal(computed(kernel, [x, packed], expected), expected)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"strides": [9, 1]}, "the result's size"),
        ({"kernel": [3, 1]}, "packed weights|result's size"),
        ({"post": [{"name": "quantize", "alpha": 1.0}]}, "8 bits"),
        ({"post": [{"name": "add", "input": 9}]}, "operands"),
        ({"post": [{"name": "table", "input": 1}]}, "quantised"),
        ({"source_zero_input": 1}, "zero point"),
    ],
)
def test_descriptions_that_do_not_fit(change, message):
    x = np.zeros((1, 5, 4, 3), "uint8")
    kernel, packed, right = convolution(x, np.ones((4, 3, 2, 2), "int8"))
    with pytest.raises(Exception, match=message):
        computed({**kernel, **change}, [x, packed], right.astype("int32"))


def test_unknown_instructions(monkeypatch):
    monkeypatch.setenv("TVM_SCHED_INTEGERS", "mmx")
    x = np.zeros((1, 5, 4, 3), "uint8")
    kernel, _, _ = convolution(x, np.ones((4, 3, 2, 2), "int8"))
    document = {"version": VERSION, "kernels": {"k": {**kernel, "cores": (1, 1)}}}
    with pytest.raises(ValueError, match="TVM_SCHED_INTEGERS"):
        library_function("tvm_sched.make_onednn_module")(json.dumps(document))
