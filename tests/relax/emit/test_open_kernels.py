"""oneDNN's kernels of models with open dimensions: which operators they compute, and that values are right at every size."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from tvm import relax, tirx

from tvm_sched.relax import api, compile
from tvm_sched.relax.emit.any_shape import lower_any_shape
from tvm_sched.relax.lower.kernel_libraries import KernelSet, claimed_functions, get_library

onnx = pytest.importorskip("onnx")
pytestmark = [
    pytest.mark.filterwarnings("ignore:.*it has open dimensions"),
    pytest.mark.skipif(get_library("onednn").why_not() is not None, reason="needs oneDNN"),
]

PICTURES = """<ir_version: 8, opset_import: ["": 17]>
g (float[n, 3, h, w] x) => (float[a, b, c, d] y, float[e, 3, f, i] means) {
  first = Conv<pads = [1, 1, 1, 1], strides = [2, 2]>(x, w1, b1)
  kept = Relu(first)
  second = Conv<pads = [1, 1, 1, 1]>(kept, w2)
  both = Add(second, kept)
  pooled = MaxPool<kernel_shape = [3, 3], strides = [2, 2], ceil_mode = 1>(both)
  again = Concat<axis = 1>(pooled, pooled)
  y = ConvTranspose<strides = [2, 2]>(again, w3)
  means = AveragePool<kernel_shape = [2, 2], strides = [2, 2], ceil_mode = 1>(x)
}"""
ROWS = """<ir_version: 8, opset_import: ["": 17]>
g (float[n, m, 4] x, float[n, m, 4] k) => (float[n, m, 4] y, float[n, m, m] p, float[a, 3] gram, float[n, j, 4] both) {
  first = MatMul(x, w1)
  added = Add(first, b1)
  kept = Relu(added)
  second = MatMul(kept, w2)
  sum = Add(second, x)
  y = LayerNormalization(sum, scale, shift)
  turned = Transpose<perm = [0, 2, 1]>(k)
  scores = MatMul(x, turned)
  p = Softmax(scores)
  four = Constant<value_ints = [-1, 4]>()
  flat = Reshape(x, four)
  columns = Transpose(flat)
  square = MatMul(columns, flat)
  gram = MatMul(square, w3)
  both = Concat<axis = 1>(x, k)
}"""
ATTENTION = """<ir_version: 8, opset_import: ["": 17]>
g (float[n, m, 8] x, float[n, k, 8] z, float[n, k] mask) => (float[n, m, 8] y) {
  heads = Constant<value_ints = [0, 0, 2, 4]>()  flat = Constant<value_ints = [0, 0, 8]>()
  axes = Constant<value_ints = [1, 2]>()  half = Constant<value_float = 0.5>()
  q = MatMul(x, w1)  q4 = Reshape(q, heads)  qt = Transpose<perm = [0, 2, 1, 3]>(q4)
  k1 = MatMul(z, w2)  k4 = Reshape(k1, heads)  kt = Transpose<perm = [0, 2, 3, 1]>(k4)
  v1 = MatMul(z, w3)  v4 = Reshape(v1, heads)  vt = Transpose<perm = [0, 2, 1, 3]>(v4)
  added = Unsqueeze(mask, axes)  scores = MatMul(qt, kt)  scaled = Mul(scores, half)  masked = Add(scaled, added)
  p = Softmax(masked)  o = MatMul(p, vt)  ot = Transpose<perm = [0, 2, 1, 3]>(o)  y = Reshape(ot, flat)
}"""

EDGES = """<ir_version: 8, opset_import: ["": 17]>
g (float[n, 1, t] sound, float[n, 4, h, w] x, float[n, 2, 4, m] q, float[n, 2, 4, k] z)
    => (float[n, 4, s] heard, float[n, 4, a, b] pooled, float[n, 2, m, 4] y, float[n, 2, m, 4] fixed) {
  heard = Conv<strides = [160]>(sound, w1)
  pooled = MaxPool<kernel_shape = [2, 2], strides = [2, 2], pads = [1, 1, 1, 1]>(x)
  half = Constant<value_float = 0.5>()
  qt = Transpose<perm = [0, 1, 3, 2]>(q)  zt = Transpose<perm = [0, 1, 3, 2]>(z)
  scores = MatMul(qt, z)  scaled = Mul(scores, half)  p = Softmax(scaled)  y = MatMul(p, zt)
  n1 = Shape<start = 0, end = 1>(q)  rest = Constant<value_ints = [2, 4, 5]>()  shape = Concat<axis = 0>(n1, rest)
  keys = Expand(w2, shape)  values = Transpose<perm = [0, 1, 3, 2]>(keys)
  scores2 = MatMul(qt, keys)  scaled2 = Mul(scores2, half)  p2 = Softmax(scaled2)  fixed = MatMul(p2, values)
}"""


def _model(text, **shapes):
    """Return a model whose weights are small integers, of which sums are exact in float32."""
    random = np.random.default_rng(0)
    model = onnx.parser.parse_model(text)
    for name, shape in shapes.items():
        value = random.integers(-2, 3, shape).astype("float32")
        model.graph.initializer.append(onnx.numpy_helper.from_array(value, name))
    return model


def _compiled(model):
    """Return a compiled model, its reference, and the kernels of oneDNN for open sizes."""
    lowered = []

    def lower(*args):
        lowered.append(lower_any_shape(*args))
        return lowered[0]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(api, "lower_any_shape", lower)
        compiled = compile(model, "cpu1", "single", cost_model="roofline", cache=False)
    kinds = sorted(name.partition("onednn.")[2].rpartition("_")[0] for name in claimed_functions(lowered[0].mod))
    return compiled, onnx.reference.ReferenceEvaluator(model), kinds


@pytest.fixture(scope="module")
def pictures():
    model = _model(PICTURES, w1=(8, 3, 3, 3), b1=(8,), w2=(8, 8, 3, 3), w3=(16, 2, 2, 2))
    return _compiled(model)


@pytest.fixture(scope="module")
def rows():
    model = _model(ROWS, w1=(4, 6), b1=(6,), w2=(6, 4), scale=(4,), shift=(4,), w3=(4, 3))
    return _compiled(model)


def _integers(shape, seed=0):
    return np.random.default_rng(seed).integers(-3, 4, shape).astype("float32")


def test_convolutions_and_pools_are_right_at_every_size(pictures):
    compiled, reference, kinds = pictures
    assert set(kinds) == {"avg_pool2d", "concat", "conv2d_add", "conv2d_bias_relu", "matmul", "max_pool2d"}
    for n, h, w in ((1, 8, 8), (2, 9, 13), (3, 33, 20), (1, 6, 5)):
        x = _integers((n, 3, h, w))
        y, means = compiled.run(x)
        expected, expected_means = reference.run(None, {"x": x})
        np.testing.assert_array_equal(y, expected)
        np.testing.assert_allclose(means, expected_means, rtol=1e-6)
    y, _ = compiled.run(_integers((0, 3, 8, 8)))
    assert y.shape == (0, 2, 4, 4)


@pytest.mark.parametrize("sizes", [(1, 1), (2, 7), (3, 16), (1, 130), (0, 5), (4, 0)])
def test_products_softmax_and_norms_are_right_at_every_size(rows, sizes):
    compiled, reference, _ = rows
    x, k = _integers((*sizes, 4)), _integers((*sizes, 4), seed=1)
    y, p, gram, both = compiled.run(x, k)
    np.testing.assert_array_equal(both, np.concatenate([x, k], 1))
    if 0 in sizes:
        assert (y.shape, p.shape) == ((*sizes, 4), (*sizes, sizes[1]))
        np.testing.assert_array_equal(gram, np.zeros((4, 3), "float32"))  # sums of nothing
        return
    expected = reference.run(None, {"x": x, "k": k})
    np.testing.assert_allclose(y, expected[0], atol=1e-5)
    np.testing.assert_allclose(p, expected[1], atol=1e-6)
    np.testing.assert_array_equal(gram, expected[2])


def test_attention_reads_its_operands_in_place():
    compiled, reference, kinds = _compiled(_model(ATTENTION, w1=(8, 8), w2=(8, 8), w3=(8, 8)))
    assert kinds == ["attention", "matmul", "matmul", "matmul"]
    for n, m, k in ((1, 1, 1), (2, 7, 9), (1, 65, 130), (3, 16, 1)):
        inputs = {
            "x": _integers((n, m, 8)) / 8,
            "z": _integers((n, k, 8), seed=1) / 8,
            "mask": _integers((n, k), seed=2),
        }
        result = compiled.run(*inputs.values())
        np.testing.assert_allclose(
            result[0] if isinstance(result, list) else result, reference.run(None, inputs)[0], atol=2e-6
        )


def test_extents_of_1_and_0_and_windows_larger_than_any_example():
    compiled, reference, kinds = _compiled(_model(EDGES, w1=(4, 1, 400), w2=(1, 2, 4, 5)))
    assert {"attention", "conv1d", "max_pool2d"} <= set(kinds), kinds
    for n, t, h, w, m, k in ((1, 400, 1, 1, 1, 1), (2, 1000, 1, 3, 1, 6), (1, 720, 2, 1, 5, 1), (3, 401, 5, 4, 2, 3)):
        shapes = {"sound": (n, 1, t), "x": (n, 4, h, w), "q": (n, 2, 4, m), "z": (n, 2, 4, k)}
        inputs = {name: _integers(shape, seed=len(name)) for name, shape in shapes.items()}
        for result, expected in zip(compiled.run(*inputs.values()), reference.run(None, inputs), strict=True):
            np.testing.assert_allclose(result, expected, atol=2e-6)
    empty = compiled.run(inputs["sound"], _integers((3, 4, 0, 4)), inputs["q"], inputs["z"])[1]
    np.testing.assert_array_equal(empty, np.full((3, 4, 1, 3), -np.inf, "float32"))


def test_causal_attention_of_open_sizes_is_left_to_tvm():
    n, m = tirx.Var("n", "int64"), tirx.Var("m", "int64")
    for shape in ((n, m, 2, 4), (n, 7, m, 4), (n, 7, 2, m)):
        builder, kernels = relax.BlockBuilder(), KernelSet("onednn")
        operands = [relax.Var(name, relax.TensorType(shape, "float32")) for name in "qkv"]
        with builder.function("main", operands):
            with builder.dataflow():
                result = builder.emit_output(relax.op.nn.attention(*operands, causal_mask="TopLeft"))
            builder.emit_func_output(result)
        get_library("onednn").claim(builder.finalize(), kernels, {})
        assert not kernels.documents


def test_the_library_computes_what_it_does_for_static_sizes(rows):
    products = {"matmul", "matmul_add", "matmul_bias_relu"}
    assert products | {"concat", "layer_norm", "softmax"} <= set(rows[2]), rows[2]


def test_calls_of_different_sizes_at_once(rows):
    compiled, reference, _ = rows

    def run(n):
        x = _integers((n % 3 + 1, n, 4), seed=n)
        return np.array_equal(compiled.run(x, x)[2], reference.run(["gram"], {"x": x, "k": x})[0])

    with ThreadPoolExecutor(4) as pool:
        assert all(pool.map(run, range(1, 60)))


BYTES = """<ir_version: 8, opset_import: ["": 17, "com.microsoft": 1]>
g (float[n, t, 6] x, uint8[n, 4, h, w] picture) => (float[n, t, 5] y, int32[n, t, 5] sums, uint8[n, 8, a, b] z) {
  q, scale, zero = DynamicQuantizeLinear(x)
  sums = MatMulInteger(q, w1, zero)
  real = Cast<to = 1>(sums)
  y = Mul(real, scale)
  s = Constant<value_float = 1.0>()
  first = QLinearConv<pads = [1, 1, 1, 1], strides = [2, 2]>(picture, s, p, w2, s, o, d, p)
  second = QLinearConv<group = 8>(first, d, p, w3, s, o, s, p)
  z = QLinearConv<pads = [0, 1, 2, 0]>(second, s, p, w4, s, o, s, p)
}"""


def test_products_of_bytes_are_exact_at_every_size():
    model = _model(BYTES)
    random = np.random.default_rng(0)
    weights = {"w1": (6, 5), "w2": (8, 4, 3, 3), "w3": (8, 1, 3, 3), "w4": (8, 8, 2, 2)}
    values = {name: random.integers(-2, 3, shape).astype("int8") for name, shape in weights.items()}
    values |= {"p": np.uint8(7), "o": np.int8(0), "d": np.float32(4)}
    model.graph.initializer.extend(onnx.numpy_helper.from_array(np.asarray(v), k) for k, v in values.items())
    compiled, _, kinds = _compiled(model)
    # Its sums of these small numbers do not saturate.
    reference = pytest.importorskip("onnxruntime").InferenceSession(model.SerializeToString())
    exact = [kind for kind in kinds if kind.startswith("exact_")]
    assert exact == ["exact_conv2d_multiply_quantize"] * 3 + ["exact_matmul"]
    for n, t, h, w in ((1, 1, 8, 8), (2, 13, 9, 7), (3, 0, 5, 17), (0, 4, 6, 6), (1, 70, 65, 40)):
        x, picture = _integers((n, t, 6)), random.integers(0, 15, (n, 4, h, w)).astype("uint8")
        found = compiled.run(x, picture)
        for mine, right in zip(found, reference.run(None, {"x": x, "picture": picture}), strict=True):
            np.testing.assert_array_equal(mine, right, strict=True)


def test_half_precision_is_computed_by_kernels_of_float32():
    """Small integers are exact in both; TVM's own convolutions took 30 times as long."""
    text = PICTURES.replace("float[", "float16[")
    model = _model(text, w1=(8, 3, 3, 3), b1=(8,), w2=(8, 8, 3, 3), w3=(16, 2, 2, 2))
    for weights in model.graph.initializer:
        weights.CopyFrom(
            onnx.numpy_helper.from_array(onnx.numpy_helper.to_array(weights).astype("float16"), weights.name)
        )
    compiled, _, kinds = _compiled(model)
    reference = onnx.reference.ReferenceEvaluator(
        _model(PICTURES, w1=(8, 3, 3, 3), b1=(8,), w2=(8, 8, 3, 3), w3=(16, 2, 2, 2))
    )
    assert {kind.partition("_")[0] for kind in kinds} >= {"conv2d", "avg"}, kinds
    for shape in ((1, 3, 8, 8), (2, 3, 9, 13)):
        x = np.sign(_integers(shape))
        for mine, right in zip(compiled.run(x.astype("float16")), reference.run(None, {"x": x}), strict=True):
            np.testing.assert_allclose(mine, right, 1e-3)
            assert mine.dtype == "float16"
