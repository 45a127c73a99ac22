"""Converters of single ONNX operators against the standard's reference implementation."""

import numpy as np
import pytest
import tvm

onnx = pytest.importorskip("onnx")
from onnx import TensorProto, helper, numpy_helper  # noqa: E402
from onnx.reference import ReferenceEvaluator  # noqa: E402

from relax.compare import assert_same  # noqa: E402
from tvm_frontends.onnx.import_model import from_onnx  # noqa: E402
from tvm_frontends.onnx.operators import tensors  # noqa: E402
from tvm_frontends.onnx.operators.nodes import Node  # noqa: E402
from tvm_sched.relax import compile  # noqa: E402
from tvm_sched_runtime.errors import InputError  # noqa: E402

RNG = np.random.default_rng(0)
X = RNG.standard_normal((2, 3, 6, 5)).astype("float32")
INF = np.float32(np.inf)


def model(operator, inputs, constants=(), outputs=1, opset=20, domain="", **attributes):
    """A node with inputs that are fed, then inputs that are initializers (None is left out)."""
    names = [f"x{i}" for i in range(len(inputs))]
    fixed = [(f"c{i}", np.asarray(value)) for i, value in enumerate(constants) if value is not None]
    constant_names = [f"c{i}" if value is not None else "" for i, value in enumerate(constants)]
    node = helper.make_node(
        operator, names + constant_names, [f"y{i}" for i in range(outputs)], name="n", domain=domain, **attributes
    )
    kinds = [helper.np_dtype_to_tensor_dtype(value.dtype) for value in inputs]
    given = [helper.make_tensor_value_info(n, k, v.shape) for n, k, v in zip(names, kinds, inputs, strict=True)]
    made = [helper.make_empty_tensor_value_info(f"y{i}") for i in range(outputs)]
    graph = helper.make_graph([node], "g", given, made, [numpy_helper.from_array(v, n) for n, v in fixed])
    opsets = [helper.make_opsetid("", opset)] + ([helper.make_opsetid(domain, 3)] if domain else [])
    proto = helper.make_model(graph, opset_imports=opsets, ir_version=9)
    return onnx.shape_inference.infer_shapes(proto)


def check(operator, inputs, constants=(), rtol=1e-5, **rest):
    """What we compute is what the reference does."""
    proto = model(operator, inputs, constants, **rest)
    expected = ReferenceEvaluator(proto).run(None, {f"x{i}": value for i, value in enumerate(inputs)})
    found = compile(proto, "cpu1", "single").run(*inputs)
    assert_same(found if isinstance(found, list) else [found], expected, rtol=rtol)


@pytest.mark.parametrize("mode", ["nearest", "linear", "cubic"])
@pytest.mark.parametrize("coordinates", ["half_pixel", "asymmetric", "align_corners", "pytorch_half_pixel"])
def test_resize(mode, coordinates):
    scales = np.array([1, 1, 1.7, 0.6], "float32")
    check("Resize", [X], [None, scales], mode=mode, coordinate_transformation_mode=coordinates)


@pytest.mark.parametrize(
    "attributes",
    [
        {"mode": "linear", "antialias": 1},
        {"mode": "cubic", "exclude_outside": 1},
        {"mode": "nearest", "nearest_mode": "ceil", "coordinate_transformation_mode": "asymmetric"},
        {"mode": "linear", "coordinate_transformation_mode": "half_pixel_symmetric"},
    ],
)
def test_resize_options(attributes):
    check("Resize", [X], [None, np.array([1, 1, 0.6, 2.0], "float32")], **attributes)


def test_resize_to_sizes_of_some_axes():
    check("Resize", [X], [None, None, np.array([4, 9])], mode="linear", axes=[2, 3])
    check("Resize", [X], [None, None, np.array([4, 9])], axes=[3, 2], keep_aspect_ratio_policy="not_larger")


def test_resize_crops():
    roi = np.array([0, 0, 0.2, -0.4, 1, 1, 0.7, 1.3], "float32")
    check(
        "Resize",
        [X],
        [roi, None, np.array([2, 3, 4, 4])],
        mode="linear",
        coordinate_transformation_mode="tf_crop_and_resize",
        extrapolation_value=7.0,
    )


@pytest.mark.parametrize(("negative", "positive"), [(1, 1), (0, 1), (1, 0), (0, 0)])
def test_is_inf(negative, positive):
    x = np.array([1, INF, -INF, np.nan], "float32")
    check("IsInf", [x], detect_negative=negative, detect_positive=positive)


def test_powers():
    base, exponent = np.array([2, -3, 0, 7, -1, 5]), np.array([10, 5, 0, 1, 63, -2])
    found = compile(model("Pow", [base, exponent]), "cpu1", "single").run(base, exponent)
    np.testing.assert_array_equal(found, [1024, -243, 1, 7, -1, 0])
    check("Pow", [np.array([1.5, 2, 3], "float32"), np.array([2, 3, 0])])


@pytest.mark.parametrize("fmod", [0, 1])
def test_remainders(fmod):
    x, y = np.array([5.5, -5.5, 5.5, -5.5], "float32"), np.array([2, 2, -2, -2], "float32")
    check("Mod", [x, y], fmod=fmod)
    check("Mod", [x.astype("int32"), y.astype("int32")], fmod=fmod)


def test_softplus_of_large_and_small_numbers():
    x = np.array([-30, -8, 0, 8, 100], "float32")
    found = compile(model("Softplus", [x]), "cpu1", "single").run(x)
    np.testing.assert_allclose(found, np.logaddexp(0, x.astype("float64")), rtol=1e-6)


def test_shifts_by_the_width_and_more():
    x, y = np.array([-8, 4, -1], "int32"), np.array([32, 33, -1], "int32")
    for direction, expected in (("LEFT", [0, 0, 0]), ("RIGHT", [-1, 0, -1])):
        found = compile(model("BitShift", [x, y], opset=26, direction=direction), "cpu1", "single").run(x, y)
        np.testing.assert_array_equal(found, expected)


def test_layer_normalization_gives_mean_and_deviation():
    scale, bias = (RNG.standard_normal((6, 5)).astype("float32") for _ in range(2))
    check("LayerNormalization", [X, scale, bias], outputs=3, axis=2, rtol=1e-4)


@pytest.mark.parametrize(("opset", "count"), [(18, 3), (21, 6)])
def test_group_normalization(opset, count):
    x = RNG.standard_normal((2, 6, 4)).astype("float32")
    scale, bias = (RNG.standard_normal(count).astype("float32") for _ in range(2))
    found = compile(model("GroupNormalization", [x, scale, bias], opset=opset, num_groups=3), "cpu1", "single").run(
        x, scale, bias
    )
    grouped = x.reshape(2, 3, 8)
    normal = (grouped - grouped.mean(2, keepdims=True)) / np.sqrt(grouped.var(2, keepdims=True) + 1e-5)
    each = 6 // count
    expected = normal.reshape(x.shape) * scale.repeat(each)[:, None] + bias.repeat(each)[:, None]
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)


def test_the_largest_of_minus_infinities():
    x = np.array([[-np.inf, -np.inf], [1, -np.inf]], "float32")
    check("ReduceMax", [x], [np.array([1])])
    check("ReduceMin", [-x], [np.array([0])], keepdims=0)
    check("ReduceMax", [x], noop_with_empty_axes=1)


@pytest.mark.parametrize("exclusive", [0, 1])
@pytest.mark.parametrize("reverse", [0, 1])
def test_cumulative_sum(exclusive, reverse):
    check("CumSum", [X], [np.array(2)], exclusive=exclusive, reverse=reverse)


@pytest.mark.parametrize(("inverse", "onesided", "parts"), [(0, 0, 1), (0, 1, 1), (0, 0, 2), (1, 0, 2)])
def test_dft(inverse, onesided, parts):
    x = RNG.standard_normal((2, 7, parts)).astype("float32")
    check("DFT", [x], [None, np.array(1)], inverse=inverse, onesided=onesided, rtol=1e-4)
    check("DFT", [x], [np.array(5), np.array(1)], inverse=inverse, onesided=onesided, rtol=1e-4)


def test_max_pool_says_where_the_maximum_is():
    check("MaxPool", [X], outputs=2, kernel_shape=[3, 2], strides=[2, 1], pads=[1, 0, 1, 1])
    check("MaxPool", [X], outputs=2, kernel_shape=[2, 2], strides=[2, 2], storage_order=1)


def test_transposed_convolution_of_a_given_size():
    x, w = X[:1, :1, :3, :3].copy(), RNG.standard_normal((1, 2, 3, 3)).astype("float32")
    check("ConvTranspose", [x, w], strides=[3, 2], output_shape=[10, 8], rtol=1e-4)


def test_deformable_convolution():
    w = RNG.standard_normal((4, 3, 2, 2)).astype("float32")
    offset, mask = (RNG.standard_normal((2, n, 5, 4)).astype("float32") for n in (8, 4))
    check("DeformConv", [X, w, offset, np.ones(4, "float32"), mask], kernel_shape=[2, 2], rtol=1e-4)


def test_space_to_depth():
    check("SpaceToDepth", [X[..., :4].copy()], blocksize=2)


def test_col2im():
    x = RNG.standard_normal((1, 12, 6)).astype("float32")
    check("Col2Im", [x], [np.array([4, 3]), np.array([2, 2])])


@pytest.mark.parametrize(
    ("operator", "attributes"),
    [
        ("Celu", {"alpha": 2.0}), ("Mish", {}), ("Elu", {"alpha": 0.5}), ("Selu", {}), ("HardSwish", {}),
        ("LpNormalization", {"axis": 1}),
    ],
)  # fmt: skip
def test_activations(operator, attributes):
    check(operator, [X], **attributes)


def test_loss_by_the_standards_definition():
    scores, labels = X[..., 0].copy(), RNG.integers(0, 3, (2, 6))
    check("SoftmaxCrossEntropyLoss", [scores, labels], opset=13, outputs=2, ignore_index=1, rtol=1e-4)


def test_attention_by_the_standards_definition():
    q, k, v = (RNG.standard_normal((1, 4, 5, 8)).astype("float32") for _ in range(3))
    check("Attention", [q, k, v], opset=23, is_causal=1, rtol=1e-4)


def test_what_decides_a_shape_is_asked_for():
    axes = np.array([0, 1])
    with pytest.raises(InputError, match=r"Unsqueeze \(node 'n'\).*'x1'.*for example --constant x1=0,1 "):
        compile(model("Unsqueeze", [X, axes]), "cpu1", "single")


def test_casts_that_are_refused():
    with pytest.raises(InputError, match=r"Cast \(node 'n'\): it casts float32 to object; types are"):
        compile(model("Cast", [X], to=TensorProto.STRING), "cpu1", "single")


def test_text_is_refused_before_shapes_are_asked_for():
    """Who gives the shapes would only be refused then. An input of text that no operator reads refuses nothing here."""
    inputs = [
        helper.make_tensor_value_info(name, kind, ["n", "m"])
        for name, kind in (("x", TensorProto.FLOAT), ("s", TensorProto.STRING), ("unread", TensorProto.STRING))
    ]
    outputs = [helper.make_empty_tensor_value_info(name) for name in ("y", "t")]
    nodes = [helper.make_node("Abs", ["x"], ["y"]), helper.make_node("Identity", ["s"], ["t"])]
    for count, message in ((2, "input 's' holds text"), (1, "input 'x': dimension 0 .'n'. has no fixed size")):
        graph = helper.make_graph(nodes[:count], "g", inputs, outputs[:count])
        proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=9)
        with pytest.raises(InputError, match=message):
            compile(proto, "cpu1", "single")


@pytest.mark.parametrize(
    "kind", ["float8_e4m3fn", "float8_e4m3fnuz", "float8_e5m2", "float8_e5m2fnuz", "float8_e8m0fnu"]
)
@pytest.mark.parametrize("saturate", [0, 1])
def test_eight_bit_floating_point_rounds_and_saturates(kind, saturate):
    ml_dtypes = pytest.importorskip("ml_dtypes")
    dtype = np.dtype(getattr(ml_dtypes, kind))
    codes = np.arange(256, dtype="uint8").view(dtype).astype("float32")
    with np.errstate(invalid="ignore", over="ignore"):
        halfway = (codes[1:] + codes[:-1]) / 2  # ties, and both of their neighbours
        x = np.concatenate([codes, halfway, np.nextafter(halfway, INF), np.nextafter(halfway, -INF), [INF, -INF, 1e6]])
    x = x.astype("float32")
    to = helper.np_dtype_to_tensor_dtype(dtype)
    proto = model("Cast", [x], to=to, saturate=saturate, opset=24)
    (expected,) = ReferenceEvaluator(proto).run(None, {"x0": x})
    found = compile(proto, "cpu1", "single").run(x)
    assert found.dtype == dtype
    np.testing.assert_array_equal(found.astype("float32"), expected.astype("float32"))


def test_whole_numbers_divided_by_zero_do_not_end_the_process():
    least = np.iinfo("int32").min
    x, y = np.array([-7, 7, least, 5], "int32"), np.array([2, -2, -1, 0], "int32")
    found = compile(model("Div", [x, y]), "cpu1", "single").run(x, y)
    assert found[:2].tolist() == [-3, -3]
    found = compile(model("Mod", [x, y]), "cpu1", "single").run(x, y)
    assert found[:3].tolist() == [1, -1, 0]


@pytest.mark.parametrize("axis", [0, -1])
def test_one_hot(axis):
    check("OneHot", [np.array([[0, -1, 7], [2, -9, 1]])], [np.array(4), np.array([0.5, 2], "float32")], axis=axis)


@pytest.mark.parametrize("kind", ["uint64", "uint16", "int16"])
def test_top_k_of_integers(kind):
    values = RNG.integers(0, np.iinfo(kind).max, (3, 7), kind, endpoint=True)
    check("TopK", [values], [np.array([4])], outputs=2, largest=0)


@pytest.mark.parametrize("kind", ["int32", "int64"])
def test_gather_counts_from_the_end(kind):
    indices = np.array([[0, -1], [-3, 2]], kind)
    check("Gather", [X], [indices], axis=-1)
    check("Gather", [X, indices], axis=1)


@pytest.mark.parametrize("batch_dims", [0, 1])
def test_gather_nd(batch_dims):
    """As an input and as a constant, counted from the end, too."""
    places = np.array([[[0, -1]], [[1, 2]]]) if batch_dims == 0 else np.array([[-1], [0]])
    value = np.arange(24, dtype="float32").reshape(2, 3, 4)
    check("GatherND", [value, places], batch_dims=batch_dims)
    check("GatherND", [value], [places], batch_dims=batch_dims)


def test_gather_nd_with_indices_of_32_bits():
    # ONNX has 64-bit indices; converters before it may give 32-bit ones
    builder = tvm.relax.BlockBuilder()
    x, indices = (
        tvm.relax.Var(n, tvm.relax.TensorType(s, t)) for n, s, t in (("x", X.shape, "float32"), ("i", (2, 2), "int32"))
    )
    with builder.function("main", [x, indices]):
        node = Node("GatherND", "n", (x, indices), {}, ("y",), 13, builder)
        builder.emit_func_output(builder.emit(tensors.gather_nd(node)))
    places = np.array([[0, 1], [1, -1]], "int32")
    assert_same([compile(builder.get(), "cpu1", "single").run(X, places)], [X[[0, 1], [1, -1]]], rtol=0)


def test_extremum_of_no_booleans():
    check("ReduceMax", [np.zeros((2, 0, 3), bool)], [np.array([1])], keepdims=0)


def test_inputs_that_broadcast_to_nothing():
    check("Max", [np.zeros((1, 0), "float32"), np.zeros((3, 1), "float32"), np.float32(1)])


@pytest.mark.parametrize("kind", ["float16", "float32", "float64"])
@pytest.mark.parametrize("operator", ["Max", "Min"])
def test_the_extremum_of_not_a_number(operator, kind):
    a, b = np.array([np.nan, 1, 2], kind), np.array([1, np.nan, 3], kind)
    check(operator, [a, b])
    check(operator, [a], [b])
    check(operator, [a, b, np.array([[0], [5]], kind)])
    check(operator, [np.tile(a, 12)], [np.array(1.5, kind)])


@pytest.mark.parametrize("bounds", [(0, 6), (0,)])
@pytest.mark.parametrize("kind", ["float16", "float32", "float64"])
def test_not_a_number_is_not_clipped(kind, bounds):
    x, limits = np.tile(np.array([np.nan, 1, -5, 9], kind), 9), [np.array(bound, kind) for bound in bounds]
    check("Clip", [x], limits)
    check("Clip", [x, *limits])
    check("Relu", [x])


def test_results_are_bound_in_the_models_order():
    """The pool of the first branch comes before the second branch, so that what it reads need not stay in memory."""
    text = (
        '<ir_version: 8, opset_import: ["": 18]> g (float[1,3,8,8] x) => (float[1,3,1,1] y) '
        "{ a = Relu(x) p = GlobalAveragePool(a) b = Tanh(x) q = GlobalAveragePool(b) y = Add(p, q) }"
    )
    imported = from_onnx(onnx.parser.parse_model(text), None, None, "the model")
    (block,) = imported.mod["main"].body.blocks
    calls = [binding.value for binding in block.bindings if isinstance(binding.value, tvm.relax.Call)]
    assert [call.op.name.split(".")[-1] for call in calls] == ["relu", "mean", "tanh", "mean", "add"]


def test_positions_in_sequences_count_from_the_end():
    graph = """<ir_version: 8, opset_import: ["" : 17]> g (float[4, 3] x) => (float[1, 3] y) <int64 at = {%d}> {
        parts = SplitToSequence<axis = 0>(x)  y = SequenceAt(parts, at) }"""
    x = X[0, 0, :4, :3].copy()
    np.testing.assert_array_equal(compile(onnx.parser.parse_model(graph % -2), "cpu1", "single").run(x), x[2:3])
    with pytest.raises(InputError, match="its position -5 is outside of its sequence of 4 tensors"):
        compile(onnx.parser.parse_model(graph % -5), "cpu1", "single")
