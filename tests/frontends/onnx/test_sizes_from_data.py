"""Operators whose sizes the elements of tensors say: one artifact is right for several sizes, in scheduled segments."""

import numpy as np
import pytest

onnx = pytest.importorskip("onnx")
from onnx.reference import ReferenceEvaluator  # noqa: E402

from tvm_sched.relax import compile  # noqa: E402
from tvm_sched_runtime.errors import ExecutionError  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore::tvm_frontends.errors.ModelWarning")
HEAD = '<ir_version: 9, opset_import: ["": 18]> '
X = np.arange(30, dtype="float32").reshape(5, 6)


def compiled(text):
    """The model, and its artifact without a dynamic tail."""
    model = onnx.parser.parse_model(HEAD + text)
    module = compile(model, "cpu2", "heft").module
    assert "tail" not in module.info()
    return model, module


def check(case, **inputs):
    model, module = case
    values = {name: np.asarray(value) for name, value in inputs.items()}
    found = module.run(*(values[item.name] for item in model.graph.input))
    for one, wanted in zip(found, ReferenceEvaluator(model).run(None, values), strict=True):
        assert (one.shape, one.dtype) == (wanted.shape, wanted.dtype)
        np.testing.assert_array_equal(one, wanted)


@pytest.fixture(scope="module")
def bounds():
    return compiled(
        """g (float[5, 6] x, int64[2] begin, int64[2] end, int64[2] step, int64[4] width, float fill) =>
          (float[a, b] cut, float[c, d] padded, float[e, f] edge) <int64[2] axes = {0, -1}> {
            cut = Slice(x, begin, end, axes, step) padded = Pad(x, width, fill) wide = Abs(width)
            edge = Pad<mode="edge">(x, wide) }"""
    )


@pytest.mark.parametrize(
    ("begin", "end", "step", "width"),
    [
        ([1, 2], [3, 4], [1, 1], [0, 0, 0, 0]),
        ([-2, -1], [100, -100], [1, -1], [1, 0, 2, 7]),
        ([4, 5], [2, -(2**62)], [1, -2], [-1, 3, 0, -5]),
        ([-100, 0], [2**62, 6], [2, 4], [-2, -3, -3, -3]),
    ],
)
def test_positions_of_slices_and_pads(bounds, begin, end, step, width):
    rows, columns = map(slice, begin, end, step)
    pairs = np.array(width).reshape(2, 2).T
    inner = tuple(slice(max(-a, 0), size - max(-b, 0)) for (a, b), size in zip(pairs, X.shape, strict=True))
    padded = np.pad(X[inner], np.maximum(pairs, 0), constant_values=7)
    wanted = [X[rows, columns], padded, np.pad(X, abs(pairs), "edge")]
    found = bounds[1].run(X, *map(np.array, (begin, end, step, width)), np.array(7, "float32"))
    for one, right in zip(found, wanted, strict=True):
        np.testing.assert_array_equal(one, right, strict=True)


@pytest.fixture(scope="module")
def sizes():
    """Sizes of most operators that take some; ``n`` is used twice, and is one symbol."""
    return compiled(
        """g (float[3, 1] x, float[2, 6] m, int64 n, int64[2] parts, int64[2] shape, int64[1] k) =>
          (float[a, 6] tiled, float[3, b] wide, float[c, d] shaped, float[3, f] ones, float[2, g] first, float[2, h] second,
           float[2, i] top, int64[2, i] places, float[2, o] hot, float[p] sum, int64[q] down)
          <int64[1] one = {1}, int64[1] zero = {0}, int64[1] three = {3}, int64 z = {0},
           int64 s = {1}, int64 e = {-7}, int64 t = {-2}, float[2] values = {0.5, 2.0}, int64[2] ids = {1, -1}> {
            n1 = Unsqueeze(n, zero) r = Concat<axis=0>(n1, one) tiled = Tile(m, r) w = Concat<axis=0>(three, n1)
            wide = Expand(x, w) shaped = Reshape(m, shape) ones = ConstantOfShape<value = float[1] {1.0}>(w)
            first, second = Split<axis=1>(m, parts) top, places = TopK(m, k) hot = OneHot(ids, n, values)
            count = Range(z, n, s) f = Cast<to=1>(count) all = ReduceSum<keepdims=0>(wide, zero) sum = Add(f, all)
            low = Neg(n) down = Range(low, e, t) }"""
    )


@pytest.mark.parametrize(
    ("n", "parts", "shape", "k"), [(4, [2, 4], [3, 4], 2), (1, [0, 6], [-1, 6], 6), (0, [6, 0], [0, -1], 0)]
)
def test_sizes_that_data_say(sizes, n, parts, shape, k):
    x, m = np.array([[1], [2], [4]], "float32"), np.arange(12, dtype="float32")[::-1].reshape(2, 6) % 7
    if n == 0:  # the reference makes no OneHot of no classes
        found = sizes[1].run(x, m, np.array(n), np.array(parts), np.array(shape), np.array([k]))
        assert [value.shape for value in found] == [
            (0, 6), (3, 0), (2, 6), (3, 0), (2, 6), (2, 0), (2, 0), (2, 0), (2, 0), (0,), (4,)
        ]  # fmt: skip
        assert found[-1].tolist() == [0, -2, -4, -6]
        return
    check(sizes, x=x, m=m, n=n, parts=parts, shape=shape, k=[k])


def test_a_size_that_cannot_be_is_an_error_that_names_it(sizes):
    x, m = np.ones((3, 1), "float32"), np.ones((2, 6), "float32")
    given = {"n": np.array(2), "parts": np.array([2, 4]), "shape": np.array([3, 4]), "k": np.array([2])}
    for name, wrong in (("n", -1), ("shape", [5, 2]), ("parts", [4, 4]), ("parts", [2, 2]), ("k", [7])):
        with pytest.raises(ExecutionError, match=r"size|elements|dimension"):
            sizes[1].run(x, m, *(np.asarray(wrong) if key == name else value for key, value in given.items()))


def test_nothing_is_read_of_an_axis_that_data_leave_empty():
    _, module = compiled(
        """g (float[3] x, bool[3] c, int64[1] b, int64[1] e, int64[1] s, int64[2] w) => (float[m] y, float[k] z)
        <int64[1] axes = {0}> {
        kept = Compress<axis = 0>(x, c) y = Slice(kept, b, e, axes, s) z = Pad<mode = "edge">(kept, w) }"""
    )
    x, begin, end, step = np.arange(3, dtype="float32"), np.array([-1]), np.array([-100]), np.array([-1])
    y, z = module.run(x, np.array([True, False, True]), begin, end, step, np.array([1, 2]))
    assert (y.tolist(), z.tolist()) == ([2, 0], [0, 0, 2, 2, 2])
    y, z = module.run(x, np.zeros(3, bool), begin, end, step, np.array([0, 0]))
    assert (y.shape, z.shape) == ((0,), (0,))
    with pytest.raises(ExecutionError, match="is -1"):  # there is no edge to repeat
        module.run(x, np.zeros(3, bool), begin, end, step, np.array([1, 2]))


def test_sizes_that_depend_on_sizes():
    """Frames of each token by its duration, those with a positive sum, and the distinct rows: three segments."""
    case = compiled(
        """g (int64[3] often, float[3, 4] x) => (float[m, 4] frames, float[q, 4] kept, int64[u] seen, float[4] s)
          <int64 z = {0}, int64 o = {1}, int64[1] zero = {0}, int64[1] one = {1}, int64[1] flat = {-1}, float h = {1.0}> {
            total = ReduceSum<keepdims=0>(often) at = Range(z, total, o) ends = CumSum(often, z) e = Unsqueeze(ends, one)
            behind = GreaterOrEqual(at, e) n = Cast<to=7>(behind) token = ReduceSum<keepdims=0>(n, zero)
            frames = Gather(x, token) sums = ReduceSum<keepdims=0>(frames, one) large = Greater(sums, h)
            where = NonZero(large) w = Reshape(where, flat) kept = Gather(frames, w) t = Gather(token, w)
            seen = Unique(t) s = ReduceSum<keepdims=0>(kept, zero) }"""
    )
    assert len(case[1].info()["segments"]) == 3
    with pytest.raises(AttributeError, match="segment2"):  # it takes what the one before it computed
        case[1]._module["tvm_sched.main:g#segment2"]
    x = np.array([[3, 1, 0, 0], [-2, 0, 0, 1], [1, 1, 1, 1]], "float32")
    for often in ([2, 1, 3], [0, 5, 0], [0, 0, 0], [40, 0, 1]):
        check(case, often=np.array(often), x=x)


def test_boxes_that_were_selected_are_suppressed():
    case = compiled(
        """g (float[6, 4] boxes, float[6] scores) => (int64[u, 3] rows, float[v, 4] found)
          <float least = {0.3}, float[1] iou = {0.5}, float[1] none = {0.0}, int64[1] zero = {0}, int64[2] both = {0, 1},
           int64 two = {2}, int64[1] most = {3}> {
            good = Greater(scores, least) b = Compress<axis=0>(boxes, good) s = Compress<axis=0>(scores, good)
            b3 = Unsqueeze(b, zero) s3 = Unsqueeze(s, both) rows = NonMaxSuppression(b3, s3, most, iou, none)
            i = Gather<axis=1>(rows, two) found = Gather(b, i) }"""
    )
    rows = [[0, 0, 2, 2], [0, 0, 2, 2.1], [5, 5, 7, 7], [5, 5, 7, 7.2], [9, 9, 10, 10], [0, 5, 1, 6]]
    for scores in ([0.9, 0.8, 0.7, 0.6, 0.2, 0.5], [0.1] * 6, [0.5, 0.6, 0.7, 0.8, 0.9, 0.4]):
        check(case, boxes=np.array(rows, "float32"), scores=np.array(scores, "float32"))


def test_a_product_of_onnx_runtime_over_an_axis_whose_size_data_decide():
    model = onnx.parser.parse_model(
        """<ir_version: 9, opset_import: ["": 18, "com.microsoft": 1]> g (float[5, 4] x, bool[5] c) => (float[4, 4] y) {
            k = Compress<axis=0>(x, c) y = com.microsoft.FusedMatMul<transA=1, alpha=0.5>(k, k) }"""
    )
    module = compile(model, "cpu1", "single").module
    x = np.arange(20, dtype="float32").reshape(5, 4) % 7
    for count in (3, 0):
        rows = x[:count]
        np.testing.assert_array_equal(module.run(x, np.arange(5) < count)[0], rows.T @ rows / 2)
