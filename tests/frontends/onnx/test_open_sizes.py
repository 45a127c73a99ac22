"""Operators on open dimensions give ONNX Runtime's values at every size, and sizes computed from shapes are tensors, too."""

from __future__ import annotations

import numpy as np
import onnx
import pytest

from tvm_sched.relax import compile
from tvm_sched_runtime.errors import InputError
from tvm_sched_runtime.runtime import load

pytestmark = pytest.mark.filterwarnings("ignore:.*it has open dimensions")
ort = pytest.importorskip("onnxruntime")

HEAD = '<ir_version: 8, opset_import: ["": 18]> g (float[n, 4, h, w] x) => ('
SIZES = [(1, 4, 8, 4), (2, 4, 4, 12), (3, 4, 1, 1), (1, 4, 3, 13)]

NORMS = """
    f = Constant <value_floats: floats = [1.0, -2.0, 0.5, 3.0]> ()
    v = Constant <value_floats: floats = [1.0, 2.0, 0.5, 3.0]> ()
    two = Constant <value_floats: floats = [1.0, 2.0]> ()
    slope = Constant <value = float[4, 1, 1] {0.5, 0.25, -1.0, 2.0}> ()
    axes = Constant <value_ints: ints = [1, 3]> ()
    a = BatchNormalization(x, f, v, f, v)
    b = GroupNormalization <num_groups = 2> (x, two, two)
    c = PRelu(x, slope)
    d = GlobalMaxPool(x)
    e = ReduceMax(x, axes)
    i = ReduceLogSumExp <keepdims = 0> (x, axes)
    j = ReduceL2(x, axes)
    k = Trilu(x)
    l = Flatten <axis = 2> (x)
    m, p = MaxPool <kernel_shape = [2, 2], pads = [1, 1, 1, 1]> (x)
"""
RESIZES = """
    none = Constant <value = float[0] {}> ()
    twice = Constant <value = float[4] {1.0, 1.0, 2.0, 2.0}> ()
    third = Constant <value = float[4] {1.0, 1.0, 1.5, 0.5}> ()
    odd = Constant <value_ints: ints = [5, 7]> ()
    shape = Shape <end = 2> (x)
    sizes = Concat <axis = 0> (shape, odd)
    a = Resize <mode = "linear"> (x, none, twice)
    b = Resize <mode = "nearest", coordinate_transformation_mode = "asymmetric", nearest_mode = "floor"> (x, none, twice)
    c = Resize <mode = "cubic"> (x, none, third)
    d = Resize <mode = "linear", coordinate_transformation_mode = "align_corners"> (x, none, none, sizes)
    e = Resize <mode = "nearest", coordinate_transformation_mode = "pytorch_half_pixel"> (x, none, none, sizes)
"""
COMPUTED = """
    zero = Constant <value = int64 {0}> ()
    zeros = Constant <value_ints: ints = [0]> ()
    one = Constant <value = int64 {1}> ()
    ones = Constant <value_ints: ints = [1]> ()
    three = Constant <value = int64 {3}> ()
    minus = Constant <value_ints: ints = [-1]> ()
    half = Constant <value = float {0.5}> ()
    table = Constant <value = float[12, 1] {0.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0, 9.0, 10.0, 11.0}> ()
    shape = Shape(x)
    width = Gather(shape, three)
    real = Cast <to = 1> (width)
    root = Sqrt(real)
    a = Div(x, root)
    range = Range(zero, width, one)
    b = Cast <to = 1> (range)
    ends = Unsqueeze(width, zeros)
    part = Slice(table, zeros, ends, zeros)
    c = Transpose(part)
    filled = ConstantOfShape <value = float[1] {2.5}> (shape)
    d = Add(filled, x)
    eq = Equal(shape, minus)
    whole = Where(eq, ones, shape)
    first = Slice(x, zeros, ones, ones)
    e = Expand(first, whole)
    scaled = Mul(real, half)
    floored = Floor(scaled)
    i = Cast <to = 7> (floored)
    j = Size(x)
    batch = Shape <end = 1> (x)
    rows = Concat <axis = 0> (batch, minus)
    k = Reshape <allowzero = 1> (x, rows)
    reals = Cast <to = 1> (shape)
    l = Sqrt(reals)
    two = Constant <value_ints: ints = [-2]> ()
    last = Constant <value_ints: ints = [2]> ()
    height = Shape <start = 2, end = 3> (x)
    m = Slice(x, two, height, last)
    wide = Constant <value_ints: ints = [3]> ()
    n2 = Slice(x, zeros, height, wide)
    o = Add(n2, n2)
    longs = ConstantOfShape <value = int64[1] {5000000000}> (shape)
    p = Identity(longs)
    small = Cast <to = 6> (width)
    begin = Constant <value = int32 {1}> ()
    step = Constant <value = int32 {1}> ()
    q = Range(begin, small, step)
    halves = Cast <to = 10> (width)
    r = Cast <to = 7> (halves)
    four = Constant <value = int64 {1}> ()
    channels = Gather(shape, four)
    channel = Cast <to = 1> (channels)
    tenth = Constant <value = float {0.7}> ()
    tenths = Mul(channel, tenth)
    s = Cast <to = 7> (tenths)
    six = Constant <value = int64 {6}> ()
    less = Sub(width, six)
    lower = Cast <to = 1> (less)
    lowered = Mul(lower, half)
    t = Cast <to = 7> (lowered)
    two_of = Constant <value = int64 {2}> ()
    u = Div(less, two_of)
"""


def _model(body: str, names: str, whole: str = "", short: str = "") -> onnx.ModelProto:
    """Return a model with an output for each letter of ``names``; those in ``whole`` are int64, in ``short`` int32."""
    kinds = {**dict.fromkeys(whole, "int64"), **dict.fromkeys(short, "int32")}
    outputs = ", ".join(f"{kinds.get(name, 'float')} {name}" for name in names)
    return onnx.parser.parse_model(f"{HEAD}{outputs}) {{{body}}}")


@pytest.mark.parametrize(
    "model",
    [
        pytest.param(_model(NORMS, "abcdeijklmp", "p"), id="norms"),
        pytest.param(_model(RESIZES, "abcde"), id="resizes"),
        pytest.param(_model(COMPUTED, "abcdeijklmoprstuq", "ijprstu", "q"), id="computed"),
    ],
)
def test_values_are_those_of_onnxruntime_at_every_size(model, tmp_path):
    compile(model, "cpu1").export(tmp_path / "m.so")
    module, session = load(tmp_path / "m.so"), ort.InferenceSession(model.SerializeToString())
    names = [output.name for output in model.graph.output]
    for size in SIZES:
        x = np.random.default_rng(1).normal(size=size).astype("float32")
        for name, own, expected in zip(names, module.run(x), session.run(None, {"x": x}), strict=True):
            own = np.asarray(own)
            assert own.dtype == expected.dtype, name
            np.testing.assert_allclose(own, expected, rtol=2e-5, atol=2e-5, err_msg=f"{name} at {size}")


LAYERS = """<ir_version: 8, opset_import: ["": 17]>
g (float[t, n, 6] x, float[2, n, 20] state, int32[n] ends)
    => (float y, float last, float cell, float z, float r, float final) {
  y, last, cell = LSTM <hidden_size = 20, direction = "bidirectional"> (x, w, u, bias, ends, state, state)
  z = GRU <hidden_size = 9, linear_before_reset = 1, clip = 0.5> (x, v, q, both)
  r, final = RNN <hidden_size = 5, direction = "reverse"> (x, a, b)
}"""
ATTENTION = """<ir_version: 8, opset_import: ["": 17, "com.microsoft": 1]>
g (int32[n, t] tokens, int32[n, t] segments, int32[n, k] mask, float[2, n, 2, p, 4] past, float[n, m, 8] other)
    => (float a, float present, float c, float keys, float values, float d, float e, float i) {
  x, count = com.microsoft.EmbedLayerNormalization (tokens, segments, words, places, kinds, scale, shift)
  a, present = com.microsoft.Attention <num_heads = 2, unidirectional = 1> (x, w, bias, , past)
  zeros = Constant <value_ints: ints = [0]> ()
  one = Constant <value_ints: ints = [1]> ()
  axes = Constant <value_ints: ints = [0]> ()
  first = Slice(past, zeros, one, axes)
  kept = Squeeze(first, axes)
  c, keys, values = com.microsoft.MultiHeadAttention <num_heads = 2> (x, x, x, bias, , , kept, kept)
  d = com.microsoft.MultiHeadAttention <num_heads = 4> (x, other, other)
  e = com.microsoft.FusedMatMul <transA = 1, alpha = 0.5> (x, c)
  numbers = Cast <to = 7> (tokens)
  i = com.microsoft.RotaryEmbedding <num_heads = 2> (x, numbers, cosine, sine)
}"""
MASKS = """<ir_version: 8, opset_import: ["": 17, "com.microsoft": 1]>
g (float[n, t, 8] x, int32[n, t] mask, int32[n] ends, float[1, 2, t, t] scores) => (float a, float b, float c) {
  a = com.microsoft.Attention <num_heads = 2, unidirectional = 1> (x, w, bias, mask)
  b = com.microsoft.Attention <num_heads = 2> (x, w, bias, ends)
  c = com.microsoft.MultiHeadAttention <num_heads = 2> (x, x, x, , mask, scores)
}"""
WEIGHTS = {
    LAYERS: {"w": (2, 80, 6), "u": (2, 80, 20), "bias": (2, 160), "v": (1, 27, 6), "q": (1, 27, 9), "both": (1, 54),
             "a": (1, 5, 6), "b": (1, 5, 5)},
    ATTENTION: {"words": (9, 8), "places": (16, 8), "kinds": (2, 8), "scale": (8,), "shift": (8,), "w": (8, 24),
                "bias": (24,), "cosine": (16, 2), "sine": (16, 2)},
    MASKS: {"w": (8, 24), "bias": (24,)},
}  # fmt: skip


def values_of_no_steps(inputs: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Return the outputs that are not empty without steps and tokens: states and keys that were given, and empty sums."""
    if "state" in inputs:
        return {**dict.fromkeys(("last", "cell"), inputs["state"]), "final": np.zeros((1, inputs["x"].shape[1], 5))}
    if "past" in inputs:
        past = inputs["past"]
        return {"present": past, "keys": past[0], "values": past[0], "e": np.zeros((past.shape[1], 8, 8))}
    return {}


@pytest.mark.parametrize("text", [LAYERS, ATTENTION, MASKS], ids=["recurrent", "attention", "masks"])
def test_layers_have_right_values_at_every_size(text):
    model, random = onnx.parser.parse_model(text), np.random.default_rng(0)
    weights = {name: random.normal(size=shape).astype("float32") / 2 for name, shape in WEIGHTS[text].items()}
    model.graph.initializer.extend(onnx.numpy_helper.from_array(value, name) for name, value in weights.items())
    compiled, session = compile(model, "cpu1", "single", cache=False), ort.InferenceSession(model.SerializeToString())
    for n, t, p in ((1, 1, 1), (3, 7, 2), (5, 2, 5), (4, 13, 3), (2, 0, 1), (0, 3, 2)):
        sizes = {"n": n, "t": t, "p": p, "k": p + t, "m": 2 * p}
        shapes = {
            each.name: [d.dim_value or sizes[d.dim_param] for d in each.type.tensor_type.shape.dim]
            for each in model.graph.input
        }
        inputs: dict[str, np.ndarray] = {
            name: random.integers(0, 2, shape).astype("int32")
            if name in ("tokens", "segments", "mask")
            else random.normal(size=shape).astype("float32")
            for name, shape in shapes.items()
        } | ({"ends": np.arange(n, dtype="int32") % max(t, 1) + 1} if "ends" in shapes else {})
        if "mask" in inputs:
            inputs["mask"][:, :1] = 1  # what rows without a key give differs
        found = compiled.run(*inputs.values())
        if 0 in (n, t):  # ONNX Runtime refuses these, or ends the process
            known = values_of_no_steps(inputs) if t == 0 else {}
            for each, own in zip(model.graph.output, map(np.asarray, found), strict=True):
                if each.name in known:
                    np.testing.assert_array_equal(own, known[each.name], err_msg=each.name)
                else:
                    assert own.size == 0, each.name
            continue
        for each, own, expected in zip(model.graph.output, found, session.run(None, inputs), strict=True):
            np.testing.assert_allclose(own, expected, 2e-5, 2e-5, err_msg=f"{each.name} at {sizes}")


def test_sizes_that_have_to_be_equal_are_compared_when_the_model_runs(tmp_path):
    """A pyramid adds an image that was halved and doubled to itself, which an odd size does not allow."""
    pyramid = """
        none = Constant <value = float[0] {}> ()
        twice = Constant <value = float[4] {1.0, 1.0, 2.0, 2.0}> ()
        low = MaxPool <kernel_shape = [2, 2], strides = [2, 2]> (x)
        back = Resize <coordinate_transformation_mode = "asymmetric", nearest_mode = "floor"> (low, none, twice)
        a = Add(back, x)
        axes = Constant <value_ints: ints = [2]> ()
        mean = ReduceMean(x, axes)
        pooled = MaxPool <kernel_shape = [4, 1], strides = [4, 1]> (x)
        b = Concat <axis = 1> (mean, pooled)
    """
    compile(_model(pyramid, "ab"), "cpu1", input_shapes={"h": range(3, 5)}).export(tmp_path / "m.so")
    module, x = load(tmp_path / "m.so"), np.arange(2 * 4 * 4 * 6, dtype="float32").reshape(2, 4, 4, 6)
    low = x.reshape(2, 4, 2, 2, 3, 2).max((3, 5))
    added, joined = map(np.asarray, module.run(x))
    assert (added == low.repeat(2, 2).repeat(2, 3) + x).all()
    np.testing.assert_array_equal(joined, np.concatenate([x.mean(2, keepdims=True), x.max(2, keepdims=True)], 1))
    with pytest.raises(InputError, match=r"size is 2, and 3 is needed|size is 3, and 2 is needed"):
        module.run(x[:, :, :3])
