"""Valid models with rare features, against values by hand: sequences, sparse tensors, branches, no elements, odd windows."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

onnx = pytest.importorskip("onnx")
from onnx import helper, numpy_helper  # noqa: E402

from tvm_frontends import ModelError, load_model  # noqa: E402
from tvm_sched.relax import compile  # noqa: E402

X = np.arange(12, dtype="float32").reshape(4, 3)
NONE = np.zeros((0, 3), "float32")
node = helper.make_node


def info(name: str, value: Any) -> Any:
    return helper.make_tensor_value_info(
        name, helper.np_dtype_to_tensor_dtype(np.asarray(value).dtype), np.shape(value)
    )


def model(
    nodes: list[Any], inputs: dict[str, Any], outputs: dict[str, Any], constants: dict[str, Any] | None = None,
    opset: int = 18, sparse: tuple[Any, ...] = (),
) -> Any:  # fmt: skip
    fixed = [numpy_helper.from_array(np.asarray(value), name) for name, value in (constants or {}).items()]
    given, made = ([info(*item) for item in values.items()] for values in (inputs, outputs))
    graph = helper.make_graph(nodes, "g", given, made, fixed, sparse_initializer=sparse)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=9)


def check(nodes: list[Any], inputs: dict[str, Any], outputs: dict[str, Any], *rest: Any, **others: Any) -> None:
    found = compile(model(nodes, inputs, outputs, *rest, **others), "cpu1", "single").run(*inputs.values())
    for mine, right in zip(found if isinstance(found, list) else [found], outputs.values(), strict=True):
        assert mine.dtype == np.asarray(right).dtype
        np.testing.assert_array_equal(mine, right)


def test_sequences_of_known_length():
    rows = node("SplitToSequence", ["x"], ["rows"], axis=0)
    flat = node("SplitToSequence", ["x"], ["flat"], axis=0, keepdims=0)
    uneven = node("SplitToSequence", ["x", "three"], ["uneven"], axis=0, keepdims=0)  # ignored beside sizes
    check(
        [
            rows, node("SequenceErase", ["rows", "one"], ["a"]), node("ConcatFromSequence", ["a"], ["erased"], axis=0),
            flat, node("SequenceErase", ["flat"], ["b"]), node("ConcatFromSequence", ["b"], ["last"], axis=1, new_axis=1),
            uneven, node("SequenceAt", ["uneven", "minus"], ["rest"]),
            node("Identity", ["rows"], ["c"]), node("SequenceInsert", ["c", "rest", "minus"], ["d"]),
            node("ConcatFromSequence", ["d"], ["inserted"], axis=0), node("SequenceLength", ["d"], ["length"]),
            node("SequenceEmpty", [], ["none"]), node("SequenceInsert", ["none", "x"], ["e"]),
            node("SequenceAt", ["e", "minus"], ["only"]),
        ],
        {"x": X},
        {"erased": X[[0, 2, 3]], "last": X[:3].T, "rest": X[3:], "inserted": X[[0, 1, 2, 3, 3]],
         "length": np.array(5), "only": X},
        {"one": np.array(1, "int32"), "three": np.array(3), "minus": np.array(-1)},
    )  # fmt: skip


def test_a_function_of_each_tensor_of_a_sequence():
    negate = helper.make_graph(
        [node("Neg", ["e"], ["o"])], "b", [helper.make_tensor_value_info("e", 1, None)],
        [helper.make_tensor_value_info("o", 1, None)],
    )  # fmt: skip
    nodes = [
        node("SplitToSequence", ["x"], ["s"], axis=0), node("SequenceMap", ["s"], ["t"], body=negate),
        node("SequenceErase", ["t", "p"], ["u"]), node("ConcatFromSequence", ["u"], ["y"], axis=0),
    ]  # fmt: skip
    check(nodes, {"x": X}, {"y": -X[1:]}, {"p": np.array(0)})


def sparse(name: str, dense: Any, flat: bool) -> Any:
    positions = np.flatnonzero(dense) if flat else np.argwhere(dense)
    stored = (numpy_helper.from_array(dense[dense != 0], name), numpy_helper.from_array(positions, f"{name}_positions"))
    return helper.make_sparse_tensor(*stored, list(dense.shape))


def test_sparse_initializers_and_constants():
    dense = np.zeros((3, 5), "float32")
    dense[0, 2], dense[2, 4], dense[1, 0] = 2, -1, 3
    nothing = np.zeros((3, 2), "float32")
    check(
        [
            node("Constant", [], ["c"], sparse_value=sparse("c", dense, False)), node("MatMul", ["x", "a"], ["by_a"]),
            node("MatMul", ["x", "b"], ["by_b"]), node("MatMul", ["x", "c"], ["by_c"]), node("MatMul", ["x", "n"], ["by_n"]),
        ],
        {"x": X},
        {"by_a": X @ dense, "by_b": X @ dense, "by_c": X @ dense, "by_n": X @ nothing},
        sparse=(sparse("a", dense, True), sparse("b", dense, False), sparse("n", nothing, True)),
    )  # fmt: skip


@pytest.mark.parametrize("positions", [[15], [-1], [0, 1], [[3, 0]]])
def test_a_sparse_tensor_with_positions_outside_is_refused(positions):
    broken = helper.make_sparse_tensor(
        numpy_helper.from_array(np.ones(1, "float32"), "a"), numpy_helper.from_array(np.array(positions), "p"), [3, 5]
    )
    made = model([node("MatMul", ["x", "a"], ["y"])], {"x": X}, {"y": np.zeros((4, 5), "float32")}, sparse=(broken,))
    with pytest.raises(ModelError, match=r"'a' of the shape \(3, 5\): its indices, .* are not 1 positions in it"):
        load_model(made)


def branch(nodes: list[Any], *outputs: str, kind: int = 1, shape: Any = (4, 3)) -> Any:
    infos = [helper.make_tensor_value_info(name, kind, shape) for name in outputs]
    return helper.make_graph(nodes, "b", [], infos)


def parsed(text: str, opset: int = 17) -> Any:
    return onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["" : {opset}]>\n{text}')


def runs(model: Any, *inputs: Any) -> Any:
    return compile(model, "cpu1", "single").run(*inputs)


TWICE = """Loop (n, true, x) <body = b (int64 i, bool c0, float[4,3] v) => (bool c1, float[4,3] w {out}) {{
    s = ReduceMax <keepdims = 0> (v)  most = Constant <value = float {{20.0}}> ()
    c1 = {condition}  w = Add(v, v)  {scan} }}>"""
CONSTANTS = "n = Constant <value = int64 {3}> ()  true = Constant <value = bool {1}> ()"


@pytest.mark.parametrize("chosen", [True, False])
@pytest.mark.parametrize("condition", ["Identity(c0)", "Less(s, most)"])
@pytest.mark.parametrize("depth", [1, 2])
def test_loops_in_branches(chosen, condition, depth):
    """With a count, and with an end that the data decide; in a branch, and in a branch of a branch."""
    then = f"{CONSTANTS} a = {TWICE.format(out='', condition=condition, scan='')}"
    if depth == 2:
        inner = "else_branch = e2 () => (float[4,3] f) { f = Abs(x) }"
        then = f"a = If (d) <then_branch = t2 () => (float[4,3] a) {{ {then} }}, {inner}>"
    made = parsed(
        "g (bool c, bool d, float[4,3] x) => (float[4,3] y) "
        f"{{ y = If (c) <then_branch = t () => (float[4,3] a) {{ {then} }}, "
        "else_branch = e () => (float[4,3] b) { b = Neg(x) }> }"
    )
    times = 8 if condition.startswith("Identity") else 4
    right = times * X if chosen else -X
    np.testing.assert_array_equal(runs(made, np.array(chosen), np.array(True), X), right)


@pytest.mark.parametrize("chosen", [True, False])
def test_collected_outputs_of_a_loop_in_a_branch(chosen):
    loop = TWICE.format(out=", float[4,3] o", condition="Identity(c0)", scan="o = Identity(w)")
    made = parsed(
        f"g (bool c, float[4,3] x) => (float[3,4,3] y) {{ y = If (c) <then_branch = t () => (float[3,4,3] a) {{ {CONSTANTS} "
        f"last, a = {loop} }}, else_branch = e () => (float[3,4,3] b) {{ s = Constant <value = int64[3] {{3,4,3}}> () "
        "b = Expand(x, s) }> }"
    )
    right = np.stack([2 * X, 4 * X, 8 * X] if chosen else [X] * 3)
    np.testing.assert_array_equal(runs(made, np.array(chosen), X), right)


@pytest.mark.parametrize("chosen", [True, False])
def test_sequences_and_optional_values_as_results_of_branches(chosen):
    branches = """<then_branch = t () => (seq(float[4,3]) a, optional(float[4,3]) o) {
        n = Neg(x)  a = SequenceConstruct(x, n)  o = Optional(n) },
        else_branch = e () => (seq(float[4,3]) b, optional(float[4,3]) p) {
        m = Abs(x)  k = Exp(x)  b = SequenceConstruct(k, m)  p = Optional(k) }>"""
    made = parsed(
        f"g (bool c, float[4,3] x) => (float[4,3] y, float[4,3] z) {{ s, q = If (c) {branches} "
        "one = Constant <value = int64 {1}> ()  y = SequenceAt(s, one)  z = OptionalGetElement(q) }"
    )
    first, second = runs(made, np.array(chosen), -X)
    np.testing.assert_array_equal(first, X)
    np.testing.assert_allclose(second, X if chosen else np.exp(-X), rtol=1e-6)


def test_attention_without_queries():
    made = parsed("g (float[1,2,0,4] q, float[1,2,5,4] k) => (float[1,2,0,4] y) { y = Attention(q, k, k) }", 23)
    assert runs(made, np.zeros((1, 2, 0, 4), "float32"), np.ones((1, 2, 5, 4), "float32")).shape == (1, 2, 0, 4)
    made = parsed(
        "g (float[1,0,8] q, float[1,4,8] k) => (float[1,0,8] y, float[1,4,8] z) "
        "{ y = Attention <q_num_heads = 2, kv_num_heads = 2> (q, k, k)  z = Neg(k) }", 23,
    )  # fmt: skip
    k = np.ones((1, 4, 8), "float32")
    assert [result.shape for result in runs(made, np.zeros((1, 0, 8), "float32"), k)] == [(1, 0, 8), (1, 4, 8)]


@pytest.mark.parametrize("chosen", [True, False])
def test_branches_that_return_values_of_the_outer_graph(chosen):
    inner = node("If", ["d"], ["n"], then_branch=branch([node("Abs", ["x"], ["o"])], "o"), else_branch=branch([], "w"))
    negative = [node("Neg", ["a"], ["m"])]
    check(
        [
            node("Abs", ["x"], ["a"]),
            node("If", ["c"], ["p", "q"], then_branch=branch([], "x", "a"), else_branch=branch(negative, "m", "w")),
            node("If", ["c"], ["r"], then_branch=branch([inner], "n"), else_branch=branch([], "x")),
        ],
        {"x": -X, "c": np.array(chosen), "d": np.array(False)},
        {"p": -X, "q": X if chosen else X + 7, "r": X + 7 if chosen else -X},
        {"w": X + 7},
    )


@pytest.mark.parametrize("chosen", [True, False])
def test_a_condition_whose_shape_follows_from_the_whole_graph(chosen):
    """No inference of single nodes knows the shape of what a branch or a loop returns."""
    scalar: dict[str, Any] = {"kind": 9, "shape": None}
    body = helper.make_graph(
        [node("Identity", ["go"], ["on"]), node("Not", ["v"], ["next"])],
        "b",
        [helper.make_tensor_value_info(name, kind, ()) for name, kind in (("k", 7), ("go", 9), ("v", 9))],
        [helper.make_tensor_value_info(name, 9, ()) for name in ("on", "next")],
    )
    flip = branch([node("Not", ["c"], ["f"])], "f", **scalar)
    keep = branch([node("Identity", ["c"], ["g"])], "g", **scalar)
    here, there = branch([node("Abs", ["x"], ["o"])], "o"), branch([node("Neg", ["x"], ["m"])], "m")
    check(
        [
            node("If", ["c"], ["d"], then_branch=flip, else_branch=keep), node("Not", ["d"], ["e"]),  # always true
            node("If", ["e"], ["y"], then_branch=here, else_branch=there),
            node("Loop", ["n", "", "c"], ["h"], body=body),
            node("If", ["h"], ["z"], then_branch=here, else_branch=there),
        ],
        {"x": X, "c": np.array(chosen)},
        {"y": X, "z": -X if chosen else X},
        {"n": np.array(3)},
    )  # fmt: skip


def test_results_without_elements():
    check(
        [
            node("Expand", ["x", "to_none"], ["expanded"]),
            node("DepthToSpace", ["image"], ["space"], blocksize=2),
            node("Resize", ["image", "", "", "size"], ["resized"]),
            node("ReverseSequence", ["columns", "lengths"], ["reversed"]),
            node("LSTM", ["series", "w", "r"], ["hidden"], hidden_size=2),
            node("Shape", ["scalar"], ["axes"]), node("Reshape", ["one", "axes"], ["reshaped"]),
        ],
        {"x": X[:1], "image": np.zeros((0, 4, 2, 2), "float32"), "columns": np.zeros((4, 0), "float32"),
         "series": np.zeros((3, 0, 4), "float32"), "scalar": np.float32(1), "one": np.array([5], "float32")},
        {"expanded": NONE, "space": np.zeros((0, 1, 4, 4), "float32"), "resized": np.zeros((0, 4, 3, 3), "float32"),
         "reversed": np.zeros((4, 0), "float32"), "hidden": np.zeros((3, 1, 0, 2), "float32"), "reshaped": np.float32(5)},
        {"to_none": np.array([0, 3]), "size": np.array([0, 4, 3, 3]), "lengths": np.zeros(0, "int64"),
         "w": np.ones((1, 8, 4), "float32"), "r": np.ones((1, 8, 2), "float32")},
    )  # fmt: skip


def test_writing_nothing_changes_nothing():
    check(
        [
            node("ScatterND", ["x", "i", "u"], ["a"]), node("ScatterND", ["x", "j", "u"], ["b"], reduction="add"),
            node("ScatterElements", ["x", "k", "u"], ["c"], axis=0),
        ],
        {"x": X, "u": NONE, "j": np.zeros((0, 1), "int64")},
        {"a": X, "b": X, "c": X},
        {"i": np.zeros((0, 1), "int64"), "k": np.zeros((0, 3), "int64")},
    )  # fmt: skip


@pytest.mark.parametrize("opset", [11, 18, 22])
def test_windows_that_start_in_the_padding_are_left_out(opset):
    """Of 6 values and a padding of 1 and 2, windows of 2 at every third place start at -1, 2 and 5, and none at 8."""
    x = np.arange(1, 7, dtype="float32").reshape(1, 1, 6)
    pads = {"kernel_shape": [2], "strides": [3], "pads": [1, 2], "ceil_mode": 1}
    outputs = {
        "mean": np.array([1, 3.5, 6]), "padded": np.array([0.5, 3.5, 3]), "most": np.array([1, 4, 6]),
        "flat": np.array([[1, 4, 6]]), "norm": np.array([1, 7, 6]),
    }  # fmt: skip
    nodes = [
        node("AveragePool", ["x"], ["mean"], **pads), node("AveragePool", ["x"], ["padded"], count_include_pad=1, **pads),
        node("MaxPool", ["x"], ["most"], **pads), node("Flatten", ["most"], ["flat"]),
    ]  # fmt: skip
    if opset >= 18:
        nodes.append(node("LpPool", ["x"], ["norm"], p=1, **pads))
    else:
        del outputs["norm"]
    shaped = {k: v.astype("float32").reshape((1, 3) if k == "flat" else (1, 1, 3)) for k, v in outputs.items()}
    check(nodes, {"x": x}, shaped, opset=opset)


def test_zeros_keep_what_a_sum_or_product_makes_of_them():
    x = np.array([0.0, -0.0, np.inf, np.nan, -2], "float32")
    names = ["sum", "difference", "product", "same"]
    nodes = [
        node(op, ["x", by], [name]) for op, by, name in zip(("Add", "Sub", "Mul", "Sub"), "znzz", names, strict=True)
    ]
    zero = np.float32(0)
    with np.errstate(invalid="ignore"):
        right = dict(zip(names, (x + zero, x - -zero, x * zero, x - zero), strict=True))
    found = compile(model(nodes, {"x": x}, right, {"z": zero, "n": -zero}), "cpu1", "single").run(x)
    for mine, value in zip(found, right.values(), strict=True):
        np.testing.assert_array_equal(mine, value)
        np.testing.assert_array_equal(np.signbit(mine) & ~np.isnan(mine), np.signbit(value) & ~np.isnan(value))
