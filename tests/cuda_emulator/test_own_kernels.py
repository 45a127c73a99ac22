"""Kernels of our own (``relax/lower/kernel_libraries/cuda``) on the emulated GPU: values against numpy, in float64."""

from types import SimpleNamespace

import numpy as np
import pytest

pytest.importorskip("tvm")
ml_dtypes = pytest.importorskip("ml_dtypes")

from tvm_sched.relax.lower.kernel_libraries.handwritten_cuda import (  # noqa: E402
    attention_source,
    depthwise,
    language_kernels,
)
from tvm_sched.relax.lower.kernel_libraries.handwritten_cuda import normalizations as rows  # noqa: E402
from tvm_sched.relax.lower.kernel_libraries.handwritten_cuda import sorts_and_scans as lines  # noqa: E402
from tvm_sched.relax.lower.kernel_libraries.handwritten_cuda.library import header  # noqa: E402
from tvm_sched_language import Sampling, packing  # noqa: E402

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


# ---- language models


def language(does, *arrays, **about):
    shapes, dtypes = [list(array.shape) for array in arrays], [str(array.dtype) for array in arrays]
    return {"kind": "language", "does": does, "shapes": shapes, "dtypes": dtypes, **about}


@pytest.mark.parametrize("number_format", ["float32", "bfloat16", "int8", "int4", "int4-zeros"])
@pytest.mark.parametrize(("rows", "terms", "columns"), [(1, 70, 37), (11, 70, 37), (50, 300, 20), (150, 40, 16)])
@pytest.mark.sampled(3)
def test_products_with_packed_weights(gpu, number_format, rows, terms, columns):
    """One row is read in plain CUDA, several by tensor cores, whose warps share rows or terms."""
    weight = numbers(columns, terms, dtype="float32")
    x, bias, residual = (
        numbers(*shape, dtype="float32", seed=1) for shape in ((rows, terms), (columns,), (rows, columns))
    )
    tensors = [x, *packing.pack(weight, number_format), bias, residual, np.empty((rows, columns), "float32")]
    about = {"format": number_format, "terms": terms, "columns": columns, "bias": True, "residual": True, "cap": 3.0}
    found = run(gpu, language_kernels, language("linear", *tensors, activation="relu", **about), *tensors)
    exact = x.astype("float64") @ packing.dequantized(weight, number_format).astype("float64").T
    expected = 3 * np.tanh(np.maximum(exact + bias, 0) / 3) + residual
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize("number_format", ["bfloat16", "int4-zeros"])
def test_embeddings_of_packed_tables(gpu, number_format):
    table = numbers(50, 70, dtype="float32")
    tokens = np.array([0, 49, 17, 99, -3], "int32")  # numbers out of range touch nothing else
    tensors = [tokens, *packing.pack(table, number_format), np.empty((5, 70), "float32")]
    about = {"format": number_format, "hidden": 70, "vocab": 50, "scale": 2.0, "positions": False, "offset": 0}
    found = run(gpu, language_kernels, language("embedding", *tensors, **about), *tensors)
    expected = 2 * packing.dequantized(table, number_format)[np.clip(tokens, 0, 49)]
    np.testing.assert_allclose(found, expected, rtol=1e-6)


@pytest.mark.parametrize(("window", "position"), [(0, 2047), (0, 0), (0, -1), (1040, 3000)])
def test_attention_over_kept_positions(gpu, window, position):
    """Two blocks share the positions of a head; with a window, old positions were overwritten by later ones."""
    heads, width, capacity, cap = 4, 40, 2048, 5.0
    rng = np.random.default_rng(3)
    keys, values = (rng.standard_normal((2, 2, capacity, width)).astype("float32") for _ in range(2))
    tiles = np.ascontiguousarray(keys.reshape(2, 2, capacity // 16, 16, width).swapaxes(3, 4))
    query = numbers(1, heads * width, dtype="float32", seed=4)
    places = np.array([position], "int32"), np.array([1], "int32")
    tensors = [query, tiles, values, *places, np.empty_like(query)]
    about = {"heads": heads, "key_heads": 2, "width": width, "capacity": capacity, "window": window}
    kernel = language("attention", *tensors, scale=0.3, cap=cap, **about)
    found = run(gpu, language_kernels, kernel, *tensors).reshape(heads, width)
    seen = np.arange(max(0, position - window + 1) if window else 0, position + 1) % capacity
    expected = np.zeros((heads, width))
    for head in range(heads if position >= 0 else 0):
        scores = keys[1, head // 2, seen].astype("float64") @ query.reshape(heads, width)[head] * 0.3
        powers = np.exp(cap * np.tanh(scores / cap))
        expected[head] = powers @ values[1, head // 2, seen] / powers.sum()
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)


def test_experts_that_are_as_likely_are_taken_in_order(gpu):
    rows, hidden, inner, experts = 3, 32, 20, 6
    x, before = numbers(rows, hidden, dtype="float32"), numbers(rows, hidden, dtype="float32", seed=1)
    scores = np.array([[1, 2, 2, 2, 0, 0], [0, 0, 0, 0, 0, 0], [5, 0, 0, 0, 0, 6]], "float32")
    up, down = (
        numbers(experts, 2 * inner, hidden, dtype="float32", seed=2),
        numbers(experts, hidden, inner, dtype="float32"),
    )
    tensors = [x, scores, *packing.pack(up, "float32"), *packing.pack(down, "float32"), before, np.empty_like(x)]
    about = {"format": "float32", "hidden": hidden, "inner": inner, "experts": experts, "chosen": 2, "normalize": True}
    found = run(gpu, language_kernels, language("experts", *tensors, activation="silu", **about), *tensors)
    expected = before.astype("float64")
    for row, chosen in enumerate([(1, 2), (0, 1), (5, 0)]):
        shares = np.exp(scores[row, list(chosen)].astype("float64"))
        for expert, share in zip(chosen, shares / shares.sum(), strict=True):
            gate, opened = np.split(up[expert].astype("float64") @ x[row], 2)
            expected[row] += share * (down[expert] @ (gate / (1 + np.exp(-gate)) * opened))
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-4)


def test_tokens_are_chosen_as_the_host_chooses_them(gpu):
    """Each row with its own sampling; the last rows have equal logits, of which the first by number come first."""
    rng = np.random.default_rng(7)
    ways = [
        (0, 0, 1.0),
        (0.7, 0, 1.0),
        (1.5, 7, 1.0),
        (0.9, 0, 0.8),
        (2.0, 40, 0.5),
        (1e-40, 0, 1.0),
        (0.5, 3000, 0.01),
    ]
    rows = [(*way, u) for way in ways for u in (0.0, 0.37, 0.999)] + [
        (1.0, 11, 1.0, 0.95),
        (1.0, 0, 0.25, 0.999),
        (0, 0, 1, 0),
    ]
    # No token where the largest logit is infinite or not a number.
    wrong = {0: np.nan, 1029: np.nan, 1499: np.nan, 700: np.inf}
    rows = [(way, 0, 0.9, 0.5) for way in (0, 1.0) for _ in wrong] + rows
    logits = (3 * rng.standard_normal((len(rows), 1500))).astype("float32")
    logits[-3:] = 2.5
    logits[-3, :100] = -1.0
    for k, (place, value) in enumerate([*wrong.items()] * 2):
        logits[k, place] = value
    logits[8, 1400:] = -np.inf
    tensors = [logits, np.array(rows, "float64"), np.empty(len(rows), "int32")]
    found = run(gpu, language_kernels, language("choose", *tensors), *tensors)
    for k, (temperature, top_k, top_p, u) in enumerate(rows[:-3]):
        source = SimpleNamespace(random=lambda u=u: u)
        assert found[k] == Sampling(temperature, top_k, top_p).choose(logits[k], source), rows[k]
    assert (found[: 2 * len(wrong)] == -1).all()
    assert found[-3] == 100 + 10, "the eleventh of those that are as likely"
    assert found[-2] == 374, "a quarter of 1500 tokens is drawn from"
    assert found[-1] == 0
