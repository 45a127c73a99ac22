"""Operators whose result's size depends on data: what is scheduled, and the dynamic tail that follows it."""

import json
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

onnx = pytest.importorskip("onnx")
from onnx import TensorProto, helper, numpy_helper  # noqa: E402
from onnx.reference import ReferenceEvaluator  # noqa: E402

from tvm_sched.relax import compile  # noqa: E402
from tvm_sched_runtime import runtime  # noqa: E402
from tvm_sched_runtime.errors import ExecutionError, InputError  # noqa: E402

RNG = np.random.default_rng(0)
pytestmark = pytest.mark.filterwarnings("ignore::tvm_frontends.errors.ModelWarning")


def graph(nodes, inputs, outputs, constants):
    given = [
        helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(np.dtype(dtype)), shape)
        for name, (dtype, shape) in inputs.items()
    ]
    made = [helper.make_empty_tensor_value_info(name) for name in outputs]
    fixed = [numpy_helper.from_array(np.asarray(value), name) for name, value in constants.items()]
    proto = helper.make_model(
        helper.make_graph(nodes, "g", given, made, fixed), opset_imports=[helper.make_opsetid("", 18)], ir_version=9
    )
    return onnx.shape_inference.infer_shapes(proto)


def check(model, *runs):
    """What we compute for each of some inputs is what the reference does, with the same sizes and types."""
    module = compile(model, "cpu1", "single").module
    names = [item.name for item in model.graph.input]
    assert [output["name"] for output in module.outputs()] == [item.name for item in model.graph.output]
    for values in runs:
        expected = ReferenceEvaluator(model).run(None, dict(zip(names, values, strict=True)))
        for found, wanted in zip(module.run(*values), expected, strict=True):
            assert found.shape == wanted.shape
            assert found.dtype == wanted.dtype
            np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-6)


def test_nonzero_of_some_all_and_no_elements():
    model = graph([helper.make_node("NonZero", ["x"], ["y"])], {"x": ("float32", (3, 4))}, ["y"], {})
    x = RNG.standard_normal((3, 4)).astype("float32")
    check(model, [np.where(x > 0, x, 0).astype("float32")], [x], [np.zeros_like(x)])


@pytest.mark.parametrize("axis", [None, 0, -1])
def test_compress(axis):
    given = {} if axis is None else {"axis": axis}
    node = helper.make_node("Compress", ["x", "c"], ["y"], **given)
    model = graph([node], {"x": ("float32", (2, 3)), "c": ("bool", (2,))}, ["y"], {})
    x = RNG.standard_normal((2, 3)).astype("float32")
    check(model, *([x, np.array(c)] for c in ([True, False], [False, False], [True, True])))


@pytest.mark.parametrize("axis", [None, 0, 1])
def test_unique(axis):
    given = {} if axis is None else {"axis": axis}
    node = helper.make_node("Unique", ["x"], ["y", "first", "inverse", "counts"], sorted=1, **given)
    model = graph([node], {"x": ("int64", (7, 5))}, ["y", "first", "inverse", "counts"], {})
    check(model, *([RNG.integers(0, most, (7, 5))] for most in (1, 2, 9)))


def test_unique_in_the_order_of_appearance():
    node = helper.make_node("Unique", ["x"], ["y", "first", "inverse", "counts"], sorted=0)
    model = graph([node], {"x": ("float32", (33,))}, ["y", "first", "inverse", "counts"], {})
    check(model, [RNG.integers(0, 9, 33).astype("float32")])


def test_operators_over_an_axis_whose_size_data_decide_are_scheduled():
    model = onnx.parser.parse_model(
        """<ir_version: 9, opset_import: ["": 18]> g (float[5, 4] x, bool[5] c) =>
          (float[n, 3] y, float[4] s, float[n, n] z, float[n, 4] e, int64[2, m] i, float[m] v, float[5, 4] a) {
            k = Compress<axis=0>(x, c) y = MatMul(k, w) s = ReduceSum<keepdims=0>(k, zero) t = Transpose(k)
            z = MatMul(k, t) d = Abs(k) e = Concat<axis=0>(d, d, k) i = NonZero(x) p = Transpose(i) v = GatherND(x, p)
            a = Abs(x) }"""
    )
    w = RNG.integers(-3, 4, (4, 3)).astype("float32")
    model.graph.initializer.extend([numpy_helper.from_array(w, "w"), numpy_helper.from_array(np.array([0]), "zero")])
    module = compile(model, "cpu2", "heft").module
    assert [len(segment) for segment in (module.plans(), module.info()["segments"])] == [1, 1]
    assert "tail" not in module.info()
    module.configure(instances=2, trace=True)
    x = RNG.integers(-2, 3, (5, 4)).astype("float32")

    def work(turn):
        for kept in (2, 5, 0, turn, 5, 1):
            c = np.arange(5) < kept
            found, wanted = module.run(x, c), ReferenceEvaluator(model).run(None, {"x": x, "c": c})
            assert [value.shape for value in found] == [value.shape for value in wanted]
            for value, other in zip(found, wanted, strict=True):
                np.testing.assert_array_equal(value, other)

    with ThreadPoolExecutor(4) as threads:
        list(threads.map(work, range(4)))
    operators = len(module.plans()[0]["steps"]), module.info()["segments"][0]["operators"]
    events = module.timeline()["events"]
    assert len(events) >= sum(operators)
    ends = max(event["end_ns"] for event in events[: operators[0]])
    assert min(event["start_ns"] for event in events[operators[0] :]) >= ends
    assert module.timeline()["latency_ns"] == round(1e9 * module.latency())


def detector(classes=3):
    """A convolution, boxes and scores, suppression, and a table of boxes, scores and classes."""
    node = helper.make_node
    size = 4 + classes
    constants = {
        "w": (RNG.standard_normal((size, 3, 3, 3)) * 0.3).astype("float32"),
        "rows": np.array([1, size, -1]), "zero": np.array([0]), "one": np.array([1]), "two": np.array([2]),
        "four": np.array([4]), "size": np.array([size]), "most": np.array([40]), "iou": np.array([0.5], "float32"),
        "score": np.array([0.6], "float32"),
    }  # fmt: skip
    nodes = [
        node("Conv", ["x", "w"], ["f"], pads=[1, 1, 1, 1], strides=[2, 2]),
        node("Reshape", ["f", "rows"], ["r"]),
        node("Slice", ["r", "zero", "four", "one"], ["b0"]),
        node("Abs", ["b0"], ["b1"]),
        node("Transpose", ["b1"], ["boxes"], perm=[0, 2, 1]),
        node("Slice", ["r", "four", "size", "one"], ["l"]),
        node("Sigmoid", ["l"], ["scores"]),
        node(
            "NonMaxSuppression", ["boxes", "scores", "most", "iou", "score"], ["selected"], center_point_box=1
        ),
        node("Gather", ["selected", "two"], ["box"], axis=1),
        node("Squeeze", ["box", "one"], ["box1"]),
        node("Squeeze", ["boxes", "zero"], ["all_boxes"]),
        node("Gather", ["all_boxes", "box1"], ["found"], axis=0),
        node("Gather", ["selected", "one"], ["class"], axis=1),
        node("Concat", ["class", "box"], ["place"], axis=1),
        node("Squeeze", ["scores", "zero"], ["all_scores"]),
        node("GatherND", ["all_scores", "place"], ["found_scores"]),
        node("Cast", ["class"], ["number"], to=TensorProto.FLOAT),
        node("Unsqueeze", ["found_scores", "one"], ["column"]),
        node("Concat", ["found", "column", "number"], ["table"], axis=1),
    ]  # fmt: skip
    return graph(nodes, {"x": ("float32", (1, 3, 16, 16))}, ["table", "selected", "scores"], constants)


DETECTOR = detector()


@pytest.fixture(scope="module")
def compiled():
    return compile(DETECTOR, "cpu2", "heft")


def pictures():
    """Some that give many boxes, few, and none."""
    rng = np.random.default_rng(1)
    return [(rng.standard_normal((1, 3, 16, 16)) * scale).astype("float32") for scale in (3.0, 0.25, 0.0)]


def test_a_detector_finds_the_boxes_that_onnx_runtime_does(compiled):
    session = pytest.importorskip("onnxruntime").InferenceSession(DETECTOR.SerializeToString())
    counts = []
    for x in pictures():
        expected = session.run(None, {"x": x})
        counts.append(len(expected[0]))
        for results in (compiled.run(x), compiled.module.run(x)):
            for found, wanted in zip(results, expected, strict=True):
                assert found.shape == wanted.shape
                assert found.dtype == wanted.dtype
                np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-5)
    assert counts[-1] == 0
    assert len(set(counts)) == 3


def test_an_artifact_with_a_tail_is_loaded_and_run(compiled, tmp_path):
    compiled.export(tmp_path / "detector.so")
    x = pictures()[1]
    for found, wanted in zip(runtime.load(tmp_path / "detector.so").run(x), compiled.run(x), strict=True):
        np.testing.assert_array_equal(found, wanted)
    np.save(tmp_path / "x.npy", x)
    command = [
        sys.executable, "-m", "tvm_sched.cli", "run", str(tmp_path / "detector.so"), "--json", "--repeat", "1",
        "--input", f"x={tmp_path / 'x.npy'}",
    ]  # fmt: skip
    done = subprocess.run(
        command, capture_output=True, text=True, check=True, env={**os.environ, "TVM_USE_RUNTIME_LIB": "1"}
    )
    said = json.loads(done.stdout)
    assert [output["shape"] for output in said["outputs"]] == [list(value.shape) for value in compiled.run(x)]
    assert [segment["name"] for segment in said["compiled_with"]["segments"]] == ["g#segment1"]
    module = runtime.load(tmp_path / "detector.so")
    assert module.template is None
    assert [output["shape"] for output in module.outputs()] == [[-1, 6], [-1, 3], [1, 3, 64]]


ROWS = [
    helper.make_node("NonZero", ["c"], ["i"]),
    helper.make_node("Reshape", ["i", "flat"], ["j"]),
    helper.make_node("Gather", ["x", "j"], ["rows"], axis=0),
    helper.make_node("Relu", ["x"], ["y"]),
    helper.make_node("Gather", ["y", "j"], ["z"], axis=0),
]
LAYOUTS = {
    "transposed": lambda x: x.T.copy().T,
    "strided": lambda x: np.repeat(x, 2, axis=1)[:, ::2],
    "backwards": lambda x: x[::-1].copy()[::-1],
    "four bytes off": lambda x: off_by(x, 4),
    "one byte off": lambda x: off_by(x, 1),
}


def off_by(x, count):
    """The same array, at an address that is so many bytes behind a multiple of 64."""
    memory = np.zeros(x.nbytes + 128, np.uint8)
    begin = -memory.ctypes.data % 64 + count
    copy = memory[begin : begin + x.nbytes].view(x.dtype).reshape(x.shape)
    copy[...] = x
    return copy


@pytest.fixture(scope="module")
def rows():
    """The rows of ``x``, which the tail reads itself, where ``c`` is not 0."""
    inputs = {"x": ("float32", (32, 32)), "c": ("float32", (32,))}
    return compile(graph(ROWS, inputs, ["rows", "z"], {"flat": np.array([-1])}), "cpu1", "single").module


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_tail_takes_inputs_that_are_strided_or_not_aligned(rows, layout):
    x, c = RNG.standard_normal((32, 32)).astype("float32"), np.arange(32, dtype="float32") % 3
    found = rows.run(LAYOUTS[layout](x), off_by(c, 4))
    np.testing.assert_array_equal(found[0], x[c > 0])
    np.testing.assert_array_equal(found[1], np.maximum(x, 0)[c > 0])


def test_tails_are_told_and_refused_where_nothing_could_run_them():
    with pytest.warns(UserWarning, match="known only when the model runs"):
        compile(DETECTOR, "cpu1", "single")
    with pytest.raises(InputError, match="the backend 'emulated'"):
        compile(DETECTOR, "cpu2", "single", backend="emulated")


FIRST = [helper.make_node("NonZero", ["x"], ["n"]), helper.make_node("Transpose", ["n"], ["p"], perm=[1, 0])]


def test_what_is_right_for_some_sizes_only_is_refused_at_others():
    nodes = [helper.make_node("Add", ["p", "row"], ["y"]), helper.make_node("Reshape", ["p", "flat"], ["z"])]
    fixed = {"row": np.arange(8).reshape(4, 2), "flat": np.array([8])}
    module = compile(graph([*FIRST, *nodes], {"x": ("float32", (3, 4))}, ["y", "z"], fixed), "cpu1", "single").module
    x = np.eye(3, 4, dtype="float32") + np.eye(3, 4, 3, dtype="float32")
    places = np.argwhere(x)
    sums, flat = module.run(x)
    np.testing.assert_array_equal(sums, places + fixed["row"])
    np.testing.assert_array_equal(flat, places.reshape(-1))
    for other in (np.zeros_like(x), np.ones_like(x), np.eye(3, 4, dtype="float32")):
        with pytest.raises(ExecutionError, match=r"size|elements"):
            module.run(other)


def test_more_elements_than_there_may_be_are_refused():
    nodes = [*FIRST, helper.make_node("TopK", ["p", "k"], ["y", "i"], axis=0)]
    model = graph(nodes, {"x": ("float32", (3, 4))}, ["y"], {"k": np.array([3])})
    with pytest.raises(InputError, match=r"cut the model before it|know"):
        compile(model, "cpu1", "single")


FAR = 10**9
BEYOND = {
    "GatherND": ("y = GatherND(x, at)", [6, 6, 6, 6]),
    "GatherElements": ("rows = Reshape(at, flat) y = GatherElements(x, rows)", [6, 6, 6, 6]),
    "ScatterND": ("u = GatherND(x, p) y = ScatterND(x, at, u)", None),
}


@pytest.mark.parametrize("name", BEYOND)
def test_indices_out_of_range_touch_no_foreign_memory_in_a_tail(name):
    """The nearest element is read. ScatterND writes that one, too."""
    text, expected = BEYOND[name]
    size = "6" if name == "ScatterND" else "n"
    model = onnx.parser.parse_model(
        f'<ir_version: 9, opset_import: ["": 18]> g (bool[6] m, float[6] x, int64[1] far) => (float[{size}] y) '
        f"<int64[1] flat = {{-1}}> {{ places = NonZero(m) p = Transpose(places) at = Add(p, far) {text} }}"
    )
    x = np.arange(1, 7, dtype="float32")
    mask = np.array([True, False, True, True, False, True])
    found = np.asarray(compile(model, "cpu1", "single").run(mask, x, np.array([FAR])))
    if expected is None:
        assert found[:5].tolist() == [1, 2, 3, 4, 5]
        assert found[5] in x[mask]
    else:
        assert found.tolist() == expected


def test_a_reflection_wider_than_an_axis_of_unknown_size():
    model = onnx.parser.parse_model(
        '<ir_version: 9, opset_import: ["": 18]> g (bool[6] m, float[6] x) => (float[n] y) <int64[2] w = {7, 5}> '
        '{ c = Compress(x, m) y = Pad<mode="reflect">(c, w) }'
    )
    x = np.arange(1, 7, dtype="float32")
    module = compile(model, "cpu1", "single")
    for mask in ([1, 0, 1, 1, 0, 1], [0, 1, 0, 0, 0, 0], [1, 1, 1, 1, 1, 1]):
        kept = x[np.array(mask, bool)]
        assert np.asarray(module.run(np.array(mask, bool), x)).tolist() == np.pad(kept, (7, 5), "reflect").tolist()
