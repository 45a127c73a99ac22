"""The execution provider for ONNX Runtime computes what ONNX Runtime's own computes, and says what it leaves to it."""

import threading
import warnings

import numpy as np
import pytest

from onnx_text import onnx_model

onnx = pytest.importorskip("onnx")
onnxruntime = pytest.importorskip("onnxruntime")


import tvm_sched_onnxruntime  # noqa: E402
from tvm_sched_onnxruntime.claim import ProviderWarning, Settings  # noqa: E402
from tvm_sched_runtime.errors import InputError  # noqa: E402
from tvm_sched_runtime.problem import load_topology  # noqa: E402
from tvm_sched_runtime.problem.topology_file import write_topology  # noqa: E402

OPTIONS = {"topology": "cpu2", "scheduler": "heft"}
HEAD = '<ir_version: 8, opset_import: ["": 17]> g '
X = np.array([[1, -2, 3, 0.5], [0, 4, -1, 2]], "float32")


@pytest.fixture(scope="module", autouse=True)
def plugin():
    if not hasattr(onnxruntime, "get_ep_devices"):
        pytest.skip(f"onnxruntime {onnxruntime.__version__} takes no plugins")
    try:
        tvm_sched_onnxruntime.get_library_path()
    except InputError:
        pytest.skip("the plugin is not built; make plugin builds it, with headers that npm fetches")


def session(model, **options):
    settings = onnxruntime.SessionOptions()
    settings.log_severity_level = 4
    tvm_sched_onnxruntime.add_to(settings, **{**OPTIONS, **options})
    content = (onnx.parser.parse_model(HEAD + model) if isinstance(model, str) else model).SerializeToString()
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        made = onnxruntime.InferenceSession(content, settings)
    plain = onnxruntime.InferenceSession(content, providers=["CPUExecutionProvider"])
    return made, plain, [str(each.message) for each in told if each.category is ProviderWarning]


def agree(made, plain, **feed):
    for found, wanted in zip(made.run(None, feed), plain.run(None, feed), strict=True):
        assert found.dtype == wanted.dtype
        np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-6)


def test_a_model_runs_whole_at_any_size():
    made, plain, left = session(
        "(float[n, 4] x, bool[n, 4] keep) => (float[n, 4] y, int64[n, 1] best, float[n, 4] copy)"
        "<float[4] w = {1, 2, 3, 4}> {"
        "a = Mul(x, w) b = Relu(a) zero = Sub(w, w) c = Where(keep, b, zero) y = Softmax<axis = -1>(c)"
        "best = ArgMax<axis = -1, keepdims = 1>(c) copy = Identity(x) }"
    )
    assert not left
    for rows in (2, 1, 5):
        x = np.resize(X, (rows, 4))
        agree(made, plain, x=x, keep=x > 0)
        agree(made, plain, x=np.asfortranarray(x), keep=x > 1)


def test_attributes_of_each_kind_and_graphs_inside_nodes_arrive():
    weights = ", ".join(f"{k % 7 - 3}" for k in range(54))
    made, plain, left = session(
        f"(float[1, 2, 4, 4] x) => (float[1, 3, 2, 2] y, float[] z) <float[3, 2, 3, 3] w = {{{weights}}}> {{"
        "k = Constant<value = float[1] {0.25}>() v = Add(x, k)"
        'c = Conv<strides = [2, 2], auto_pad = "SAME_UPPER">(v, w) y = LeakyRelu<alpha = 0.5>(c)'
        "s = ReduceSum<keepdims = 0>(x) zero = Constant<value_float = 0.0>() positive = Greater(s, zero)"
        "z = If(positive) <then_branch = t () => (float[] p) { p = Sqrt(s) },"
        "else_branch = e () => (float[] q) { q = Neg(s) }> }"
    )
    assert not left
    x = np.linspace(-1, 1.5, 32, dtype="float32").reshape(1, 2, 4, 4)
    agree(made, plain, x=x)
    agree(made, plain, x=-x)


def test_refused_nodes_are_left_to_onnx_runtime():
    tiny = "RandomNormalLike<scale = 1e-30>"
    model = (
        f"(float[2, 4] x) => (float[2, 4] y, float[2, 4] z) {{ a = Relu(x) b = Exp(a) r = {tiny}(b) d = Add(b, r)"
        "e = Mul(d, a) y = Tanh(e) z = Sigmoid(e) }"
    )
    made, plain, left = session(model)
    assert len(left) == 1
    assert "RandomNormalLike (r) is left to another provider" in left[0]
    agree(made, plain, x=X)
    with pytest.raises(Exception, match=r"RandomNormalLike .* draws random numbers"):
        session(model, fallback=False)


def test_nodes_whose_results_are_no_tensors_are_left_to_onnx_runtime():
    made, plain, left = session(
        "(float[2, 4] x) => (float[2, 4] y, seq(float[2, 4]) s) { a = Exp(x) y = Tanh(a) s = SequenceConstruct(a, y) }"
    )
    assert left == ["SequenceConstruct (s) is left to another provider: 's' is not a tensor"]
    found, wanted = made.run(None, {"x": X}), plain.run(None, {"x": X})
    np.testing.assert_allclose(found[0], wanted[0], rtol=1e-6)
    np.testing.assert_allclose(found[1], wanted[1], rtol=1e-6)


@pytest.mark.parametrize("version", [3, 8])
def test_initializers_that_a_run_may_replace_are_inputs(version):
    w = np.array([1, 2, 3], "float32")
    text = "(float[3] x, float[3] w) => (float[3] y) { a = Add(x, w)  y = Mul(a, w) }"
    made, plain, left = session(onnx_model(text, {"w": w}, 17 if version > 3 else 8, version), topology="cpu1")
    assert not left
    agree(made, plain, x=w)
    if version > 3:  # before, initializers had to be named as inputs
        agree(made, plain, x=w, w=-w)


def test_artifacts_are_kept_and_taken_as_they_are(tmp_path):
    model = "(float[2, 4] x) => (float[2, 4] y) { a = Relu(x) y = Tanh(a) }"
    made, plain, _ = session(model, cache=tmp_path)
    agree(made, plain, x=X)
    (file,) = tmp_path.glob("*.so")
    written = file.stat().st_mtime_ns
    for options in ({"cache": tmp_path}, {"artifact": file}):
        made, plain, _ = session(model, **options)
        agree(made, plain, x=X)
    assert [*tmp_path.glob("*.so")] == [file]
    assert file.stat().st_mtime_ns == written
    with pytest.raises(Exception, match="has the inputs x and the outputs y, but the model of the session has"):
        session("(float[2, 4] v) => (float[2, 4] y) { a = Relu(v) y = Tanh(a) }", artifact=file)
    other, _, _ = session("(float[2, 4] x) => (float16[2, 4] y) { a = Relu(x) y = Cast<to = 10>(a) }", artifact=file)
    with pytest.raises(Exception, match="another data type in the session's model than in the artifact"):
        other.run(None, {"x": X})


def test_a_kept_artifact_is_of_what_the_topology_file_holds(tmp_path):
    file = tmp_path / "machine.toml"
    keys = set()
    for name in ("cpu1", "cpu2", "cpu1"):
        write_topology(file, load_topology(name))
        keys.add(Settings.of({"topology": str(file)}).key)
    assert len(keys) == 2


def test_sizes_can_be_given_and_threads_may_share_a_session():
    made, plain, left = session(
        "(float[n, 4] x) => (float[n, 4] y) { a = Exp(x) y = Add(a, x) }", input_shapes={"n": 2}
    )
    assert not left
    failures = []

    def run():
        try:
            for _ in range(20):
                agree(made, plain, x=X)
        except Exception as error:
            failures.append(error)

    threads = [threading.Thread(target=run) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures
    with pytest.raises(Exception, match="no plan of this module takes arguments"):
        made.run(None, {"x": X[:1]})


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"nonsense": 1}, "there is no option 'nonsense' of the execution provider; there are anchors, artifact"),
        ({"fallback": "perhaps"}, "fallback is 'perhaps'; true and false are allowed"),
        ({"input_shapes": [1]}, "input_shapes is [1]; allowed is an object such as"),
        ({"topology": "cpu0"}, "cpu0"),
        ({"input_shapes": {"n": "many"}}, "input_shapes has 'many' for 'n'; a size or a list of sizes is allowed"),
        ({"options": "fast", "time_limit": 3}, "options is 'fast'; a mapping is allowed"),
        ({"topology": object()}, "cannot be written as JSON"),
    ],
)
def test_wrong_options_are_named(options, message):
    with pytest.raises(InputError) as error:
        tvm_sched_onnxruntime.add_to(onnxruntime.SessionOptions(), **options)
    assert message in str(error.value)


def test_the_time_limit_is_the_schedulers():
    settings = Settings.of({"topology": "cpu1", "time_limit": "3"})
    assert dict(settings.compile.options) == {"time_limit": 3}
