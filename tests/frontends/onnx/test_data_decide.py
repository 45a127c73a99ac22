"""Branches and loops that data decide run in the executor: each body is a plan, and the values are ONNX's."""

import itertools
import os
import signal
import threading

import numpy as np
import pytest

onnx = pytest.importorskip("onnx")
from onnx.reference import ReferenceEvaluator  # noqa: E402

ort = pytest.importorskip("onnxruntime", reason="ONNX's reference gives collected scalars two dimensions")

from tvm_frontends.errors import ModelError  # noqa: E402
from tvm_sched.relax import compile, make_problem  # noqa: E402
from tvm_sched.schedulers import solve  # noqa: E402
from tvm_sched_runtime.errors import InputError  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore::tvm_frontends.errors.ModelWarning")
HEAD = '<ir_version: 9, opset_import: ["": 18]> '
X = (np.arange(16, dtype="float32") - 7).reshape(4, 4)


def compiled(text):
    model = onnx.parser.parse_model(HEAD + text)
    return model, compile(model, "cpu2", "heft").module


def check(case, *inputs, session=None):
    model, module = case
    session = session or ort.InferenceSession(model.SerializeToString())
    feeds = {item.name: np.asarray(value) for item, value in zip(model.graph.input, inputs, strict=True)}
    found = module.run(*feeds.values())
    for one, wanted in zip(found, session.run(None, feeds), strict=True):
        np.testing.assert_array_equal(one, wanted, strict=True)


@pytest.fixture(scope="module")
def branch():
    """Results of other sizes, constants, a value of the graph around, one branch in the other; twice the same result."""
    return compiled(
        """g (float[4, 4] x, bool c, bool d, bool[4] keep) =>
          (float[n, 4] y, float[k] s, float z, float[m, 4] w, float[m, 4] v)
        <int64[1] zero = {0}, float[3] three = {1, 2, 3}, float[2] two = {5, 6}> {
          a = Abs(x) r = Compress<axis=0>(a, keep)
          y, s, z, w = If(c) <
            then_branch = t () => (float[p, 4] ty, float[q] ts, float tz, float[i, 4] r) {
              ty = MatMul(r, x) ts = Identity(three) tz = ReduceSum<keepdims=0>(ty) },
            else_branch = e () => (float[o, 4] ey, float[u] es, float ez, float[j, 4] ew) {
              es = Identity(two) ez = ReduceMax<keepdims=0>(x) ew = Relu(x)
              ey = If(d) <then_branch = t2 () => (float[e2, 4] e3) { n = Neg(x) e3 = Concat<axis=0>(n, r) },
                          else_branch = e2 () => (float[e4, 4] a) { }> }>
          v = Abs(w) }"""
    )


@pytest.mark.parametrize("keep", [[1, 0, 1, 0], [1, 1, 1, 1], [0, 0, 0, 0]])
def test_a_branch_that_data_choose(branch, keep):
    for c, d in ((True, True), (False, True), (False, False), (True, False)):
        # ONNX Runtime refuses branches that return a value of the graph around.
        check(branch, X, c, d, np.array(keep, bool), session=ReferenceEvaluator(branch[0]))


def test_one_branch_runs(branch):
    _, module = branch
    module.configure(trace=True)
    kinds = {}
    for c in (True, False):
        module.run(X, np.array(c), np.array(False), np.ones(4, bool))
        kinds[c] = {event["event"]["name"] for event in module.timeline()["events"] if event["event"]}
    module.configure(trace=False)
    assert any("relu" in name for name in kinds[False])
    assert not any("relu" in name for name in kinds[True])
    assert any("matmul" in name for name in kinds[True])
    assert not any("matmul" in name for name in kinds[False])


@pytest.fixture(scope="module")
def loop():
    """Ends by data or by its trip count; carries a value that grows, swaps two, collects, and holds a loop."""
    return compiled(
        """g (float[3] x, float limit, int64 most) =>
          (float[3] y, float[n] grown, float[3] p, float[3] q, float[k] sums, float[j, 3] all, int64[i] at)
        <int64[1] zero = {0}, bool yes = {1}, float[0] none = {}, int64 three = {3}> {
          a = Abs(x) b = Neg(x)
          y, grown, p, q, sums, all, at = Loop(most, yes, a, none, a, b) <
            body = l (int64 i, bool c, float[3] v, float[m] g, float[3] p0, float[3] q0)
                => (bool again, float[3] w, float[m2] h, float[3] q0, float[3] p0, float s, float[3] vv, int64 ii) {
              w = Loop(i, c, v) <body = l2 (int64 i2, bool c2, float[3] v2) => (bool c2, float[3] w2) { w2 = Add(v2, a) }>
              s = ReduceSum<keepdims=0>(w) again = Less(s, limit) s1 = Unsqueeze(s, zero) h = Concat<axis=0>(g, s1)
              f = Cast<to=1>(i) vv = Mul(v, f) ii = Add(i, three) }> }"""
    )


@pytest.mark.parametrize(("limit", "most"), [(20, 100), (5, 100), (1e9, 7), (-1, 3), (1e9, 1)])
def test_a_loop_that_data_end(loop, limit, most):
    check(loop, np.array([1, -2, 3], "float32"), np.float32(limit), most)


def test_a_loop_without_iterations(loop):
    x = np.array([1, -2, 3], "float32")
    found = loop[1].run(x, np.array(9, "float32"), np.array(0))
    assert [value.shape for value in found] == [(3,), (0,), (3,), (3,), (0,), (0, 3), (0,)]
    np.testing.assert_array_equal(found[0], abs(x))
    np.testing.assert_array_equal(found[3], -x)


def test_results_that_are_one_value_or_the_input_are_the_callers_own():
    """A branch returns the model's input, twice; a loop without an iteration returns one start twice."""
    _, module = compiled(
        """g (float[2] x, bool c, int64 most) => (float[a] y, float[b] z, float[2] p, float[2] q) {
          y, z = If(c) <then_branch = t () => (float[d] x, float[e] x) { },
                        else_branch = e () => (float[f] w, float[h] w) { w = Concat<axis=0>(x, x) }>
          p, q = Loop(most, , x, x) <body = b (int64 i, bool on, float[2] v, float[2] u)
              => (bool on, float[2] v2, float[2] u2) { v2 = Add(v, x) u2 = Sub(u, x) }> }"""
    )
    x = np.array([1, 2], "float32")
    for c in (True, False):
        values = [x, *module.run(x, np.array(c), np.array(0))]
        assert not any(np.shares_memory(one, other) for one, other in itertools.combinations(values, 2))
        np.testing.assert_array_equal(values[3], x)


def test_runs_at_once_keep_apart(loop):
    loop[1].configure(instances=2)
    failed = []

    def work(turn):
        try:
            for most in (turn, 4, turn + 1):
                check(loop, np.array([turn, 1, 2], "float32"), np.float32(1e9), most)
        except BaseException as error:
            failed.append(error)

    threads = [threading.Thread(target=work, args=(turn,)) for turn in range(1, 4)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    assert failed == []
    loop[1].configure(instances=1)


def test_ctrl_c_ends_an_endless_loop_and_the_next_run_is_right(loop):
    threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGINT)).start()
    with pytest.raises(KeyboardInterrupt):
        loop[1].run(np.zeros(3, "float32"), np.array(1, "float32"), np.array(2**62))
    check(loop, np.array([1, -2, 3], "float32"), np.float32(20), 100)


def test_a_greedy_decoder():
    """Each step embeds the last token, updates a state, and takes the likeliest token, until the one that ends."""
    rng = np.random.default_rng(3)
    model = onnx.parser.parse_model(
        HEAD
        + """g (float[8] start, int64 most) => (int64[n, 1] tokens, float[8] last)
        <bool yes = {1}, int64[1] first = {0}, int64[1] end = {4}> {
          n, last, tokens = Loop(most, yes, first, start) <
            body = step (int64 i, bool c, int64[1] token, float[8] h)
                => (bool again, int64[1] next, float[8] h2, int64[1] next) {
              e = Gather(table, token) r = MatMul(h, w) e1 = Squeeze(e, first) s = Add(e1, r) h2 = Tanh(s)
              logits = MatMul(h2, out) next = ArgMax<axis=0>(logits) stop = Equal(next, end) go = Not(stop)
              again = Squeeze(go, first) }> }"""
    )
    weights = {"table": (6, 8), "w": (8, 8), "out": (8, 6)}
    model.graph.initializer.extend(
        onnx.numpy_helper.from_array(rng.standard_normal(shape).astype("float32"), name)
        for name, shape in weights.items()
    )
    module = compile(model, "cpu2", "heft").module
    session, lengths = ort.InferenceSession(model.SerializeToString()), set()
    for seed in range(4):
        start = np.random.default_rng(seed).standard_normal(8).astype("float32")
        tokens, last = module.run(start, np.array(12))
        wanted, wanted_last = session.run(None, {"start": start, "most": np.array(12)})
        np.testing.assert_array_equal(tokens, wanted, strict=True)
        np.testing.assert_allclose(last, wanted_last, atol=1e-5)
        lengths.add(len(tokens))
    assert len(lengths) > 1


SEQUENCE = """g (float[2] x, int64 n) => (float[k] y) <bool yes = {1}> {
    e = SequenceEmpty() l = Loop(n, yes, e) <body = b (int64 i, bool c, seq(float[m]) s) => (bool c, seq(float[m2]) t) {
        t = SequenceInsert(s, x) }> y = ConcatFromSequence<axis=0>(l) }"""


def test_what_is_refused():
    with pytest.raises((ModelError, InputError), match=r"Loop .*sequence"):
        compiled(SEQUENCE)
    ranks = """g (float[2] x, bool c) => (float[k] y) { y = If(c) <
        then_branch = t () => (float[a] p) { p = Exp(x) }, else_branch = e () => (float[b, d] q) { q = Expand(x, s) }> }"""
    model = onnx.parser.parse_model(HEAD + ranks)
    model.graph.initializer.append(onnx.numpy_helper.from_array(np.array([3, 2]), "s"))
    with pytest.raises((ModelError, InputError), match=r"If .*one number of dimensions"):
        compile(model, "cpu2", "heft")
    endless = """g (float[2] x, bool go) => (float[2] y) { y = Loop( , go, x) <body = b (int64 i, bool c, float[2] v) =>
        (bool again, float[2] w) { again = Identity(c) w = Exp(v) }> }"""
    with pytest.raises((ModelError, InputError), match=r"Loop .*never ends once it has begun"):
        compiled(endless)
    opened = """g (float[n] x, bool c) => (float[k] y) { y = If(c) <then_branch = t () => (float[a] p) { p = Exp(x) },
        else_branch = e () => (float[b] q) { q = Concat<axis=0>(x, x) }> }"""
    with pytest.raises(InputError, match="for any size: If: "):
        compiled(opened)


def test_a_problem_is_of_the_graph_that_is_compiled():
    costly = """g (float[256,256] x, bool c) => (float[256,256] y) { h = Abs(x) y = If(c) <
        then_branch = t () => (float[256,256] p) { a = MatMul(h, h) p = MatMul(a, h) },
        else_branch = e () => (float[256,256] q) { d = MatMul(h, h) q = Relu(d) }> }"""
    model = onnx.parser.parse_model(HEAD + costly)
    schedule = solve(make_problem(model, "cpu2"), method="heft")
    module = compile(model, "cpu2", schedule=schedule).module
    x = np.eye(256, dtype="float32")
    (found,) = module.run(-x, np.array(True))
    np.testing.assert_array_equal(found, x)
    with pytest.raises(InputError, match="If"):
        compile(onnx.parser.parse_model(HEAD + BRANCH), "v100-server", "heft", backend="emulated")


BRANCH = """g (float[2] x, bool c) => (float[k] y) { y = If(c) <
    then_branch = t () => (float[a] p) { p = Exp(x) }, else_branch = e () => (float[b] q) { q = Concat<axis=0>(x, x) }> }"""
