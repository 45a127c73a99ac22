"""Kernels of our own (``relax/lower/kernel_libraries/cuda``) on the emulated GPU: values against numpy, in float64."""

import numpy as np
import pytest

pytest.importorskip("tvm")
ml_dtypes = pytest.importorskip("ml_dtypes")

from tvm_sched.relax.lower.kernel_libraries.handwritten_cuda import attention_source, depthwise  # noqa: E402
from tvm_sched.relax.lower.kernel_libraries.handwritten_cuda import normalizations as rows  # noqa: E402
from tvm_sched.relax.lower.kernel_libraries.handwritten_cuda import sorts_and_scans as lines  # noqa: E402
from tvm_sched.relax.lower.kernel_libraries.handwritten_cuda.library import header  # noqa: E402

DTYPES = {"float32": np.float32, "float16": np.float16, "bfloat16": ml_dtypes.bfloat16}
EXACT = {"float32": 2e-6, "float16": 1e-3, "bfloat16": 8e-3}
PLAIN = "#define TVM_SCHED_WITHOUT_PTX\n"


def run(gpu, writer, kernel, *arrays, before=""):
    """The last array after the kernels of a description, with the others as arguments."""
    source, described = writer.render("own", kernel)
    addresses = {("tensor", k): gpu.allocate(array.nbytes) for k, array in enumerate(arrays)}
    addresses |= {("workspace", k): gpu.allocate(size) for k, size in enumerate(described["workspaces"])}
    for k, array in enumerate(arrays):
        copy(addresses["tensor", k], array)
    for launch in described["launches"]:
        function = gpu.function(before + header(writer.HEADER) + source, launch["symbol"])
        if launch["shared_bytes"] > 48 << 10:
            gpu.call("cuFuncSetAttribute", function, 8, launch["shared_bytes"])
        pointers = [addresses[tuple(pointer)] for pointer in launch["pointers"]]
        gpu.launch(function, launch["grid"], launch["block"], *pointers, shared=launch["shared_bytes"])
    gpu.synchronize()
    result = np.empty_like(arrays[-1])
    copy(result, addresses["tensor", len(arrays) - 1])
    return result


def copy(to, source):
    import ctypes

    array = to if isinstance(to, np.ndarray) else source
    places = [place if isinstance(place, int) else place.ctypes.data for place in (to, source)]
    ctypes.memmove(*places, array.nbytes)


def numbers(*shape, dtype, seed=0):
    return np.random.default_rng(seed).standard_normal(shape).astype(dtype)


def described(dtype, batch, groups, heads, lengths, sizes, **more):
    """Attention of compact (batch, group, head of it, row, column); heads of a group share keys and values."""
    (queries, keys), (width, out) = lengths, sizes
    strides = {
        "query": [0, groups * heads * queries * width, heads * queries * width, queries * width, width, 1],
        "key": [0, groups * keys * width, keys * width, 0, width, 1],
        "value": [0, groups * keys * out, keys * out, 0, out, 1],
        "result": [
            0,
            queries * groups * heads * out,
            heads * out,
            out,
            groups * heads * out,
            1,
        ],  # heads beside each other
    }
    extents = {
        "batch": batch,
        "groups": groups,
        "heads": heads,
        "rows": queries,
        "keys": keys,
        "width": width,
        "out": out,
    }
    plain = {"mask_dtype": None, "mask": None, "scale": width**-0.5, "causal": False, "shift": 0, "safe": False}
    return {"dtype": dtype, "result_dtype": dtype, **extents, **strides, **plain, **more}


def attention(q, k, v, scale, mask):
    """In float64, of (batch, group, head, row, column) and (batch, group, key, column)."""
    q, k, v = (x.astype("float64") for x in (q, k, v))
    scores = scale * np.einsum("bghrd,bgkd->bghrk", q, k) + mask
    top = scores.max(-1, keepdims=True)
    p = np.exp(scores - np.where(np.isfinite(top), top, 0))
    with np.errstate(invalid="ignore"):
        p = p / p.sum(-1, keepdims=True)
    return np.einsum("bghrk,bgkd->brghd", p, v)


CASES = {
    "plain": ((2, 2, 1), (70, 70), (64, 64), {}),
    "causal": ((1, 2, 1), (100, 130), (32, 32), {"causal": True, "shift": 30}),
    "shared by 3 heads": ((2, 1, 3), (5, 90), (16, 24), {}),
    "keys in parts": ((1, 1, 2), (1, 600), (16, 16), {}),
    "odd": ((1, 1, 1), (3, 7), (7, 5), {}),
}


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("case", CASES)
@pytest.mark.sampled(4)
def test_attention(gpu, case, dtype):
    (batch, groups, heads), (queries, keys), sizes, more = CASES[case]
    kernel = described(dtype, batch, groups, heads, (queries, keys), sizes, **more)
    q = numbers(batch, groups, heads, queries, sizes[0], dtype=DTYPES[dtype])
    k, v = (numbers(batch, groups, keys, n, dtype=DTYPES[dtype], seed=s) for s, n in enumerate(sizes, 1))
    seen = np.tri(queries, keys, more.get("shift", keys))
    expected = attention(q, k, v, kernel["scale"], np.where(seen, 0, -np.inf))
    found = run(gpu, attention_source, kernel, q, k, v, np.empty(expected.shape, DTYPES[dtype]))
    np.testing.assert_allclose(found.astype("float64"), expected, rtol=0, atol=EXACT[dtype] * np.abs(expected).max())


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_attention_without_tensor_cores(gpu, dtype):
    kernel = described(dtype, 1, 1, 1, (20, 40), (32, 16))
    q = numbers(1, 1, 1, 20, 32, dtype=DTYPES[dtype])
    k, v = (numbers(1, 1, 40, n, dtype=DTYPES[dtype], seed=n) for n in (32, 16))
    expected = attention(q, k, v, kernel["scale"], 0)
    found = run(gpu, attention_source, kernel, q, k, v, np.empty(expected.shape, DTYPES[dtype]), before=PLAIN)
    np.testing.assert_allclose(found.astype("float64"), expected, rtol=0, atol=EXACT[dtype])


@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize("safe", [False, True])
def test_a_row_that_sees_no_key(gpu, dtype, safe):
    mask = numbers(9, 33, dtype="float32", seed=3)
    mask[:, 4], mask[5] = -np.inf, -np.inf
    kernel = described(dtype, 1, 1, 2, (9, 33), (16, 16), mask_dtype="float32", mask=[0, 0, 0, 0, 33, 1], safe=safe)
    q = numbers(1, 1, 2, 9, 16, dtype=DTYPES[dtype])
    k, v = (numbers(1, 1, 33, 16, dtype=DTYPES[dtype], seed=s) for s in (1, 2))
    expected = attention(q, k, v, 0.25, mask)
    assert np.isnan(expected[0, 5]).all()
    if safe:
        expected[0, 5] = 0
    found = run(gpu, attention_source, kernel, q, k, v, mask, np.empty(expected.shape, DTYPES[dtype]))
    np.testing.assert_allclose(found.astype("float64"), expected, rtol=0, atol=EXACT[dtype])


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("kind", "vectors"), [("layer_norm", 2), ("rms_norm", 1), ("softmax", 0)])
@pytest.mark.sampled(3)
def test_rows(gpu, kind, vectors, dtype):
    x = (100 + 3 * numbers(5, 300, dtype="float32")).astype(DTYPES[dtype])
    given = [numbers(300, dtype="float16", seed=s + 1) for s in range(vectors)]
    kernel = {
        "kind": kind, "dtype": dtype, "result_dtype": dtype, "vector_dtype": "float16", "vectors": vectors, "rows": 5,
        "width": 300, "epsilon": 1e-5,
    }  # fmt: skip
    wide = x.astype("float64")
    weights = [vector.astype("float64") for vector in given]
    if kind == "softmax":
        expected = np.exp(wide - wide.max(-1, keepdims=True))
        expected /= expected.sum(-1, keepdims=True)
    else:
        centred = wide - (wide.mean(-1, keepdims=True) if kind == "layer_norm" else 0)
        expected = centred / np.sqrt((centred**2).mean(-1, keepdims=True) + 1e-5) * weights[0] + sum(weights[1:])
    found = run(gpu, rows, kernel, x, *given, np.empty_like(x))
    np.testing.assert_allclose(found.astype("float64"), expected, rtol=0, atol=EXACT[dtype] * np.abs(expected).max())


def depthwise_kernel(dtype, image, window, strides, padding, dilation, fused):
    """The description and the arrays: input and weights of two images, 16 channels, channels last."""
    extents = [(image[k] + 2 * padding[k] - dilation[k] * (window[k] - 1) - 1) // strides[k] + 1 for k in range(2)]
    kernel = {
        "kind": depthwise.KIND, "dtype": dtype, "tf32": False, "layout": "NHWC", "input": [2, 16, *image],
        "weights": [16, 1, *window], "output": [2, 16, *extents], "padding": padding, "strides": strides,
        "dilation": dilation, "groups": 16, "residual": False, "bias": "bias" in fused,
        "activation": "relu" if "relu" in fused else "",
    }  # fmt: skip
    x = numbers(2, *image, 16, dtype=DTYPES[dtype])
    return kernel, x, numbers(16, *window, 1, dtype=DTYPES[dtype], seed=1), np.empty((2, *extents, 16), DTYPES[dtype])


def depthwise_convolution(kernel, x, w, bias):
    """In float64."""
    (top, left), (rows, columns), (down, right) = (kernel[n] for n in ("padding", "dilation", "strides"))
    padded = np.pad(x.astype("float64"), ((0, 0), (top, top), (left, left), (0, 0)))
    result = np.zeros((2, *kernel["output"][2:], 16)) + bias.astype("float64")
    height, width = kernel["output"][2:]
    for r in range(w.shape[1]):
        for s in range(w.shape[2]):
            part = padded[:, r * rows :: down, s * columns :: right][:, :height, :width]
            result += part * w[:, r, s, 0].astype("float64")
    return np.where(result < 0, 0, result) if kernel["activation"] == "relu" else result


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize(
    ("image", "window", "strides", "padding", "dilation", "fused"),
    [
        ((9, 10), (3, 3), [1, 1], [1, 1], [1, 1], "bias and relu"),
        ((11, 8), (5, 3), [2, 1], [2, 0], [1, 1], "bias"),
        ((12, 13), (3, 3), [1, 2], [0, 2], [2, 3], "nothing"),
        ((4, 3), (7, 7), [1, 1], [3, 3], [1, 1], "relu"),
    ],
)
@pytest.mark.sampled(3)
def test_depthwise_convolutions(gpu, image, window, strides, padding, dilation, fused, dtype):
    kernel, x, w, out = depthwise_kernel(dtype, image, window, strides, padding, dilation, fused)
    bias = [numbers(16, dtype=DTYPES[dtype], seed=2)] if kernel["bias"] else []
    expected = depthwise_convolution(kernel, x, w, bias[0] if bias else np.zeros(16))
    found = run(gpu, depthwise, kernel, x, w, *bias, out)
    np.testing.assert_allclose(found.astype("float64"), expected, rtol=0, atol=EXACT[dtype] * np.abs(expected).max())


def test_not_a_number_passes_a_depthwise_convolution_with_relu(gpu):
    kernel, x, w, out = depthwise_kernel("float16", (5, 5), (3, 3), [1, 1], [1, 1], [1, 1], "relu")
    x[1, 2, 2, 3] = np.nan
    found = run(gpu, depthwise, kernel, x, w, out)
    wrong = np.zeros(out.shape, bool)
    wrong[1, 1:4, 1:4, 3] = True
    np.testing.assert_array_equal(np.isnan(found), wrong)


@pytest.mark.parametrize(("dtype", "result"), [("float32", "float32"), ("float16", "float16"), ("int8", "int64")])
@pytest.mark.parametrize("exclusive", [False, True])
def test_running_sums(gpu, dtype, result, exclusive):
    x = (numbers(3, 700, 2, dtype="float32") * 4).astype(dtype)
    shape = {"outer": 3, "length": 700, "inner": 2}
    kernel = {"kind": "cumsum", "dtype": dtype, "result_dtype": result, **shape, "exclusive": exclusive}
    expected = np.cumsum(x.astype("float64"), 1) - (x.astype("float64") if exclusive else 0)
    found = run(gpu, lines, kernel, x, np.empty(x.shape, result))
    np.testing.assert_allclose(found.astype("float64"), expected, rtol=1e-3 if dtype == "float16" else 1e-5, atol=0.1)


@pytest.mark.parametrize("descending", [False, True])
def test_orders_are_stable_and_put_not_a_number_where_torch_does(gpu, descending):
    torch = pytest.importorskip("torch")
    x = np.random.default_rng(0).integers(0, 40, (2, 300, 3)).astype("float16")
    x[0, 7, 1] = x[1, 30, 2] = np.nan
    shape = {"outer": 2, "length": 300, "inner": 3}
    kernel = {
        "kind": "argsort",
        "dtype": "float16",
        "result_dtype": "int32",
        **shape,
        "kept": 20,
        "descending": descending,
    }
    expected = torch.sort(torch.from_numpy(x.astype("float32")), dim=1, descending=descending, stable=True).indices[
        :, :20
    ]
    found = run(gpu, lines, kernel, x, np.empty((2, 20, 3), "int32"))
    np.testing.assert_array_equal(found, expected.numpy())
