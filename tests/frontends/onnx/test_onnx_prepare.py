"""The step before import: what it makes of control flow, functions and shapes, and what it refuses."""

from pathlib import Path

import numpy as np
import pytest

from tvm_frontends import load_model
from tvm_frontends.errors import ModelError

onnx = pytest.importorskip("onnx")
pytest.importorskip("onnxscript", reason="the importer folds constants with it (extra onnx)")
from onnx import TensorProto, helper, parser  # noqa: E402
from onnx.reference import ReferenceEvaluator  # noqa: E402

ort = pytest.importorskip("onnxruntime", reason="ONNX Runtime is the peer of this test (extra dev)")

from onnx_text import onnx_model  # noqa: E402
from tvm_frontends.onnx import branches, fold, from_onnx, prepare, read_onnx, upgrade_opset  # noqa: E402
from tvm_frontends.onnx import loop_operators as loops  # noqa: E402

X = np.arange(6, dtype=np.float32).reshape(2, 3)
HEAD = '<ir_version: 8, opset_import: ["": 17, "my": 1]>\n'


def parse(text):
    return parser.parse_model(HEAD + text)


def prepared(model, feeds, constants=None):
    """Prepare a model; check that it computes what it did, and return its graph."""
    shapes = {name: value.shape for name, value in feeds.items() if name not in (constants or {})}
    made = prepare.prepare(model, shapes, constants, "m").model
    left = {name: value for name, value in feeds.items() if name in shapes}
    found = ReferenceEvaluator(made).run(None, left)
    expected = ort.InferenceSession(model.SerializeToString()).run(None, feeds)
    for mine, theirs in zip(found, expected, strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=1e-6)
        assert mine.shape == theirs.shape
    return made.graph


def operators(graph):
    return [node.op_type for node in graph.node]


def test_shapes_that_are_computed_become_constants():
    model = parse(
        """g (float[N, 3] x) => (float[M] y) {
            s = Shape(x)  zero = Constant<value_int = 0>()  n = Gather(s, zero)  three = Constant<value_int = 3>()
            m = Mul(n, three)  axis = Constant<value_ints = [0]>()  p = Unsqueeze(m, axis)  y = Reshape(x, p) }"""
    )
    assert operators(prepared(model, {"x": X})) == ["Reshape"]


def test_a_chain_of_operators_of_com_microsoft_is_folded_in_one_round(monkeypatch):
    """Once each of them took two rounds over the whole graph: 26 rounds for Kokoro-82M, until it was refused."""
    rounds = []
    monkeypatch.setattr(fold, "resolve_sequences", lambda model: bool(rounds.append(model)))
    nodes = []
    for k in range(12):
        nodes.append(helper.make_node("Gelu", [f"x{k}"], [f"g{k}"], domain="com.microsoft"))
        nodes.append(helper.make_node("Shape", [f"g{k}"], [f"s{k}"]))
        nodes.append(helper.make_node("Reshape", [f"g{k}", f"s{k}"], [f"x{k + 1}"]))
    x, y = (
        helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name, shape in (("x0", [2, 3]), ("x12", None))
    )
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
    model = helper.make_model(helper.make_graph(nodes, "g", [x], [y]), opset_imports=opsets, ir_version=8)
    made = prepare.prepare(model, {"x0": (2, 3)}, None, "m").model
    assert "Shape" not in operators(made.graph)
    assert len(rounds) <= 3


@pytest.mark.parametrize("opset", [17, 18])
def test_parts_of_a_shape_become_constants(opset):
    """Split names the sizes of its parts in no version, their number from 18 on."""
    count = ", num_outputs = 2" if opset >= 18 else ""
    head = f'<ir_version: 8, opset_import: ["" : {opset}]>'
    model = parser.parse_model(f"""{head} agraph (float[a, b, c, e] x) => (float[p, q, r] y) {{
        shape = Shape (x)
        first, last = Split <axis = 0{count}> (shape)
        none = Constant <value_ints = [-1]> ()
        new = Concat <axis = 0> (last, none)
        y = Reshape (x, new)
    }}""")
    assert operators(prepared(model, {"x": np.ones((2, 3, 4, 5), "float32")})) == ["Reshape"]


@pytest.mark.parametrize("chosen", [True, False])
def test_a_condition_that_is_a_constant(chosen):
    model = parse(
        """g (float[2, 3] x, bool c) => (float[A, B] y) {
            y = If(c) <then_branch = t () => (float[2, 3] a) { a = Relu(x) },
                       else_branch = e () => (float[3, 2] b) { b = Transpose(x) }> }"""
    )
    graph = prepared(model, {"x": X, "c": np.array(chosen)}, {"c": chosen})
    assert operators(graph) == ["Relu" if chosen else "Transpose"]
    assert operators(prepare.prepare(model, {"x": (2, 3), "c": ()}, None, "m").model.graph) == ["If"]


@pytest.mark.parametrize("chosen", [True, False])
def test_a_condition_of_the_data_selects(chosen):
    model = parse(
        """g (float[2, 3] x, bool c) => (float[2, 3] y) {
            z = Exp(x)
            y = If(c) <then_branch = t () => (float[2, 3] a) { a = Identity(z) },
                       else_branch = e () => (float[2, 3] b) { b = Neg(x) }> }"""
    )
    assert operators(prepared(model, {"x": X, "c": np.array(chosen)})) == ["Exp", "Neg", "Where"]


def test_a_branch_that_could_read_outside_a_tensor_is_not_run_for_nothing():
    model = parse(
        """g (float[2, 3] x, bool c, int64[1] i) => (float[1, 3] y) {
            y = If(c) <then_branch = t () => (float[1, 3] a) { a = Gather(x, i) },
                       else_branch = e () => (float[1, 3] b) { b = ReduceMax<axes = [0]>(x) }> }"""
    )
    assert operators(prepare.prepare(model, {"x": (2, 3), "c": (), "i": (1,)}, None, "m").model.graph) == ["If"]


def test_large_branches_are_selected_where_none_can_run():
    model = parse(
        """g (float[64, 64] x, bool c) => (float[64, 64] y) {
            y = If(c) <then_branch = t () => (float[64, 64] a) { a = MatMul(x, x) },
                       else_branch = e () => (float[64, 64] b) { b = Neg(x) }> }"""
    )
    for possible, wanted in ((False, ["MatMul", "Neg", "Where"]), (True, ["If"])):
        with branches.running_branches(possible):
            made = prepare.prepare(model, {"x": (64, 64), "c": ()}, None, "m").model
        assert operators(made.graph) == wanted


LOOP = """g (float[2, 3] x) => (float[2, 3] y, float[N, 2, 3] s) <int64 n = {%d}, bool c = {1}> {
    y, s = Loop(n, c, x) <body = b (int64 i, bool ci, float[2, 3] v) => (bool co, float[2, 3] w, float[2, 3] o) {
        co = Identity(ci)  f = Cast<to = 1>(i)  w = Add(v, f)  o = Mul(w, w) }> }"""


def test_loops_of_known_length():
    assert "Loop" not in operators(prepared(parse(LOOP % 4), {"x": X}))
    assert operators(prepare.prepare(parse(LOOP % 100_000), {"x": (2, 3)}, None, "m").model.graph) == ["Loop"]
    assert loops.MAX_NODES < 400_000


def test_a_loop_whose_condition_folds():
    model = parse(
        """g (float[2, 3] x) => (float[2, 3] y, float[N, 2, 3] s) <bool c = {1}, int64 last = {3}> {
            y, s = Loop( , c, x) <body = b (int64 i, bool ci, float[2, 3] v) => (bool co, float[2, 3] w, float[2, 3] o) {
                co = Less(i, last)  f = Cast<to = 1>(i)  w = Add(v, f)  o = Mul(w, w) }> }"""
    )
    graph = prepared(model, {"x": X})
    assert "Loop" not in operators(graph)
    assert operators(graph).count("Mul") == 4


COUNTERS = """g (float[2, 3] x) => (float[2, 3] y) <bool c = {1}, int32 zero = {0}, int32 one = {1}, int32 last = {5}> {
    k, y = Loop( , c, zero, x) <body = b (int64 i, bool ci, int32 j, float[2, 3] v)
                                      => (bool co, int32 next, float[2, 3] w) {
        next = Add(j, one)  %s  w = Relu(v) }> }"""


def test_a_loop_that_counts_is_unrolled_at_once(monkeypatch):
    rounds = []
    unroll = fold.unroll_loops

    def counted(model, in_branches=False):
        rounds.extend([1] if not in_branches else [])
        return unroll(model, in_branches)

    monkeypatch.setattr(fold, "unroll_loops", counted)
    graph = prepared(parse(COUNTERS % "co = Less(next, last)"), {"x": X})
    assert operators(graph) == ["Relu"] * 5
    assert len(rounds) <= 3


def test_a_condition_that_folding_alone_finds():
    body = """inside = Less(next, last)
        co = If(inside) <then_branch = t () => (bool a) { a = Identity(c) },
                         else_branch = e () => (bool b) { b = Not(c) }>"""
    assert operators(prepared(parse(COUNTERS % body), {"x": X})) == ["Relu"] * 5


def test_a_counter_that_never_ends_is_not_unrolled():
    made = prepare.prepare(parse(COUNTERS % "co = Less(zero, next)"), {"x": (2, 3)}, None, "m").model
    assert operators(made.graph) == ["Loop"]


def test_nested_loops():
    model = parse(
        """g (float[2, 3] x) => (float[2, 3] y) <int64 n = {3}, bool c = {1}> {
            y = Loop(n, c, x) <body = outer (int64 i, bool ci, float[2, 3] v) => (bool co, float[2, 3] w) {
                co = Identity(ci)
                w = Loop(n, c, v) <body = inner (int64 j, bool cj, float[2, 3] v2) => (bool co2, float[2, 3] w2) {
                    co2 = Identity(cj)  k = Add(i, j)  f = Cast<to = 1>(k)  w2 = Add(v2, f) }> }> }"""
    )
    assert operators(prepared(model, {"x": X})) == ["Add"] * 9


@pytest.mark.parametrize(
    ("limit", "condition"), [("n", "Identity(ci)"), ("", "Identity(ci)"), ("", "Greater(total, zero)")]
)
def test_loops_of_unknown_length_stay_and_those_without_end_are_refused(limit, condition):
    model = parse(
        f"""g (float[2, 3] x, int64 n) => (float[2, 3] y) <bool c = {{1}}, float zero = {{0}}> {{
            y = Loop({limit}, c, x) <body = b (int64 i, bool ci, float[2, 3] v) => (bool co, float[2, 3] w) {{
                total = ReduceSum<keepdims = 0>(v)  co = {condition}  w = Relu(v) }}> }}"""
    )
    if not limit and condition.startswith("Identity"):
        with pytest.raises(ModelError, match=r"Loop \(node '.*'\):? .*never ends"):
            prepare.prepare(model, {"x": (2, 3), "n": ()}, None, "m")
        return
    made = prepare.prepare(model, {"x": (2, 3), "n": ()}, None, "m").model
    assert operators(made.graph) == ["Loop"]  # no iteration is unrolled before it


@pytest.mark.parametrize("factor", [0.01, 1, 10, 1000])
def test_a_loop_that_data_end_early(factor):
    """After the condition is false, values stay: all four iterations run, or two, one or none."""
    model = parse(
        """g (float[2, 3] x) => (float[2, 3] y, float[2, 3] z) <int64 n = {4}, float most = {100}> {
            s = ReduceMax<keepdims = 0>(x)  c = Less(s, most)
            y, z = Loop(n, c, x, x) <body = b (int64 i, bool ci, float[2, 3] v, float[2, 3] u)
                                              => (bool co, float[2, 3] w, float[2, 3] q) {
                w = Add(v, v)  q = Add(u, v)  t = ReduceMax<keepdims = 0>(w)  co = Less(t, most) }> }"""
    )
    assert "Loop" not in operators(prepared(model, {"x": X * np.float32(factor)}))


@pytest.mark.parametrize("s", [-1, 1])
def test_a_condition_of_one_dimension_leaves_scalars_scalars(s):
    """ONNX lets a condition have one element in any number of dimensions."""
    model = parse(
        """g (float[1] s, float x) => (float y, float z)
            <int64 n = {5}, float zero = {0}, float one = {1}, float most = {3.5}> {
            c = Greater(s, zero)
            y = Loop(n, c, x) <body = b (int64 i, bool[1] ci, float v) => (bool co, float w) {
                w = Add(v, one)  co = Less(w, most) }>
            z = If(c) <then_branch = t () => (float a) { a = Neg(x) },
                       else_branch = e () => (float b) { b = Add(x, one) }> }"""
    )
    graph = prepared(model, {"s": np.array([s], np.float32), "x": np.array(0, np.float32)})
    assert not {"Loop", "If"} & set(operators(graph))


def test_scans():
    model = parse(
        """g (float[2] h, float[2, 3] x) => (float[2] y, float[2, 3] s) {
            y, s = Scan <num_scan_inputs = 1, scan_input_axes = [1], scan_input_directions = [1],
                         scan_output_axes = [1], scan_output_directions = [1],
                         body = b (float[2] a, float[2] e) => (float[2] c, float[2] d) {
                             c = Add(a, e)  d = Mul(c, c) }>(h, x) }"""
    )
    assert "Scan" not in operators(prepared(model, {"h": X[:, 0].copy(), "x": X}))


def test_functions_are_inlined():
    model = parse(
        """g (float[2, 3] x) => (float[2, 3] y) { t = my.scale<k = 2.0>(x)  y = my.scale<k = 3.0>(t) }
        <domain: "my", opset_import: ["": 17]>
        scale <k> (a) => (b) { c = Constant<value_float: float = @k>()  b = Mul(a, c) }"""
    )
    assert operators(prepared(model, {"x": X})) == ["Mul", "Mul"]


@pytest.mark.parametrize(
    "text",
    [
        "g (float[2, 3] x) => (float[2, 3] x, float[2, 3] y) { y = Relu(x) }",
        "g (float[2, 3] x) => (float[2] w, float[2, 3] y) <float[2] w = {1, 2}> { y = Relu(x) }",
        "g (float[2, 3] x) => (int64[2] s, float[2, 3] y) { y = Relu(x)  s = Shape(x) }",
        "g (float[2, 3] x, float[4] unused) => (float[2, 3] y, float[2, 3] y) { y = Relu(x) }",
        "g (float[2, 3] x) => (float[2, 3] y) { y = Identity(x) }",
    ],
    ids=["input", "initializer", "constant", "twice and unused", "identity"],
)
def test_odd_outputs(text):
    model = parse(text)
    if "unused" in text:  # the parser drops an output that stands twice
        model.graph.output.append(model.graph.output[0])
    feeds = {"x": X, **({"unused": np.ones(4, np.float32)} if "unused" in text else {})}
    compiled_inputs = load_model(model).inputs
    assert list(compiled_inputs) == list(feeds)


def test_symbols_that_say_nothing_are_sizes_of_their_own():
    dims = ["?", "-1", "", None, "unk__7", "unk__7"]
    model = helper.make_model(
        helper.make_graph(
            [helper.make_node("Relu", ["x"], ["y"])],
            "g",
            [helper.make_tensor_value_info("x", TensorProto.FLOAT, dims)],
            [helper.make_tensor_value_info("y", TensorProto.FLOAT, dims)],
        ),
        ir_version=8,
        opset_imports=[helper.make_opsetid("", 17)],
    )
    assert load_model(model, {"x": (1, 2, 3, 4, 5, 5)}).inputs["x"][0] == (1, 2, 3, 4, 5, 5)
    with pytest.raises(ModelError, match="one symbol has one size"):
        load_model(model, {"x": (1, 2, 3, 4, 5, 6)})


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{ y = Relu(x)  y = Neg(x) }", r"Neg \(node 'y'\) writes 'y', which Relu \(node 'y'\) writes already"),
        ("{ y = Add(x, z) }", r"Add \(node 'y'\) reads 'z', which nothing writes"),
        ("{ z = Relu(x) }", "output 'y' of the graph is written by no node"),
        ("{ y = my.Frobnicate(x) }", r"does not know the operators my\.Frobnicate \(node '"),
        ("{ y = my.Relu(x) }", r"does not know the operators my\.Relu"),
        (
            "{ y = com.microsoft.SparseAttention(x) }",
            r"SparseAttention \(node '.*export the model with GroupQueryAttention",
        ),
        ("<float[2] w = {1, 2}> { y = Add(x, w) }", r"Add \(node '.*'\): their shapes cannot be broadcast"),
    ],
)
def test_broken_graphs_are_refused_with_the_node(text, message):
    with pytest.raises(ModelError, match=message):
        load_model(parse(f"g (float[2, 3] x) => (float[2, 3] y) {text}"))


def test_inputs_that_are_no_tensors_are_refused():
    with pytest.raises(ModelError, match="input 's' is of the kind sequence; tensors are allowed"):
        load_model(parse("g (seq(float[2]) s) => (float[M] y) { y = ConcatFromSequence<axis = 0>(s) }"))


@pytest.mark.parametrize(
    ("constants", "message"),
    [
        ({"z": 1}, "constant is given for input 'z', which the model does not have; its inputs are x, k"),
        ({"k": 1.5}, r"constant 'k': 1.5 does not fit"),
        ({"k": "many"}, r"constant 'k': 'many' does not fit"),
        ({"k": [1, 2]}, r"constant 'k' has the shape \(2,\); the model declares \(1\)"),
    ],
)
def test_constants_that_do_not_fit(constants, message):
    model = parse("g (float[2, 3] x, int64[1] k) => (float[A, B] y) { y = Expand(x, k) }")
    with pytest.raises(ModelError, match=message):
        from_onnx(model, {}, None, "m", constants)


def test_folding_does_not_blow_weights_up():
    model = parse(
        "g (float[2, 3] x) => (float[2, 3] y, float[4096, 4096] e) <float[1] w = {1}, int64[2] s = {4096, 4096}>"
        "{ y = Relu(x)  e = Expand(w, s) }"
    )
    made = prepare.prepare(model, {"x": (2, 3)}, None, "m")
    assert "Expand" in operators(made.model.graph)
    assert fold.ALWAYS_BYTES < 4 * 4096**2


def test_an_old_opset_is_brought_up():
    text = "(float[2, 3, 4] x) => (float[2, 3, 4] y) { y = Add<axis = 1, broadcast = 1>(x, w) }"
    model = onnx_model(text, {"w": np.arange(3, dtype=np.float32)}, opset=6, ir_version=4)
    made = prepare.prepare(model, {"x": (2, 3, 4)}, None, "m").model
    assert [item.version for item in made.opset_import if item.domain == ""] == [prepare.OPSET]
    x = np.random.default_rng(0).standard_normal((2, 3, 4)).astype(np.float32)
    found = ReferenceEvaluator(made).run(None, {"x": x})[0]
    np.testing.assert_allclose(found, x + np.arange(3, dtype=np.float32).reshape(3, 1))


def test_a_crash_of_the_native_library_is_an_error(monkeypatch, tmp_path):
    script = tmp_path / "crash.py"
    script.write_text("import os, signal\nos.kill(os.getpid(), signal.SIGSEGV)\n")
    monkeypatch.setattr(upgrade_opset, "__file__", str(script))
    with pytest.raises(upgrade_opset.NativeError, match="ended its process with signal 11"):
        upgrade_opset.upgrade(parse("g (float[2] x) => (float[2] y) { y = Relu(x) }"), 13)


def test_a_failure_of_the_folding_library_is_a_warning(monkeypatch):
    def fail(model):
        raise RuntimeError("boom")

    monkeypatch.setattr(prepare, "fold_model", fail)
    with pytest.warns(prepare.ModelWarning, match="its constants are not folded: boom"):
        model = load_model(parse("g (float[N, 3] x) => (float[N, 3] y) { y = Relu(x) }"), {"x": (2, 3)})
    assert model.inputs["x"][0] == (2, 3)


def external_model(folder, rows=512):
    w = np.random.default_rng(0).standard_normal((rows, 1024)).astype(np.float32)
    model = onnx_model(f"(float[1, {rows}] x) => (float[1, 1024] y) {{ y = MatMul(x, w) }}", {"w": w})
    path = folder / "m.onnx"
    onnx.save(model, path, save_as_external_data=True, location="m.data", size_threshold=0)
    return path, w


def test_external_data_are_mapped(tmp_path):
    path, w = external_model(tmp_path)
    model = load_model(path)
    np.testing.assert_array_equal(model.parameters["w"], w)
    base = model.parameters["w"]
    while isinstance(base, np.ndarray) and base.base is not None:
        base = base.base
    assert type(base).__name__ in ("mmap", "memoryview"), "the weights were copied"


def test_external_data_that_are_not_there(tmp_path):
    path, _ = external_model(tmp_path)
    data = tmp_path / "m.data"
    data.write_bytes(data.read_bytes()[:-4])
    with pytest.raises(ModelError, match=r"'w' has its data in .*m\.data, which ends at byte \d+ where \d+ are needed"):
        read_onnx(path)
    data.unlink()
    with pytest.raises(ModelError, match="there is no such file"):
        read_onnx(path)
    model = onnx.load(path, load_external_data=False)
    model.graph.initializer[0].external_data[0].value = "../other.data"
    path.write_bytes(model.SerializeToString())
    with pytest.raises(ModelError, match="outside the model's folder"):
        read_onnx(path)


def cached(folder):
    """The model in a cache of Hugging Face: links to files that their checksums name, in another folder."""
    path, w = external_model(folder)
    blobs, links = folder / "blobs", folder / "snapshots" / "9f4b" / "onnx"
    blobs.mkdir()
    links.mkdir(parents=True)
    for name, checksum in (("m.onnx", "c" * 40), ("m.data", "b" * 40)):
        (folder / name).rename(blobs / checksum)
        (links / name).symlink_to(f"../../../blobs/{checksum}")
    return links / path.name, w


def test_external_data_behind_links(tmp_path, monkeypatch):
    path, w = cached(tmp_path)
    np.testing.assert_array_equal(load_model(path).parameters["w"], w)
    monkeypatch.chdir(path.parent)
    np.testing.assert_array_equal(load_model(path.name).parameters["w"], w)
    (path.parent / "m.data").unlink()  # data that nothing but the model's own folder has
    (tmp_path / "blobs" / ("b" * 40)).rename(tmp_path / "blobs" / "m.data")
    np.testing.assert_array_equal(load_model(path).parameters["w"], w)


def test_links_to_external_data_in_a_third_folder_are_refused(tmp_path):
    path, _ = cached(tmp_path)
    link = path.parent / "m.data"
    link.unlink()
    (tmp_path / "blobs" / ("b" * 40)).rename(tmp_path / "secret")
    link.symlink_to(tmp_path / "secret")
    with pytest.raises(ModelError, match="outside the model's folder"):
        read_onnx(path)


def test_weights_above_two_gigabytes(tmp_path):
    """A file of external data that is a hole on the disk: nothing reads it, and protobuf never sees it."""
    rows = 600_000
    path, _ = external_model(tmp_path)
    model = onnx.load(path, load_external_data=False)
    tensor = model.graph.initializer[0]
    tensor.dims[0] = rows
    model.graph.input[0].type.tensor_type.shape.dim[1].dim_value = rows
    for entry in tensor.external_data:
        if entry.key == "length":
            entry.value = str(rows * 4096)
    path.write_bytes(model.SerializeToString())
    with (tmp_path / "m.data").open("wb") as file:
        file.truncate(rows * 4096)
    imported = load_model(path)
    assert imported.parameters["w"].nbytes == rows * 4096 > 2**31


def test_what_is_unsafe_is_known_to_onnx():
    assert {name for name in branches.UNSAFE if not onnx.defs.has(name)} == set()


def test_an_old_model_that_lists_its_initializers_as_inputs(recwarn):
    """IR version 3: initializers stand among the inputs, which the version converter insists on."""
    path = Path(onnx.__file__).parent / "backend/test/data/light/light_squeezenet.onnx"
    made = prepare.prepare(onnx.load(path), {"data_0": (1, 3, 224, 224)}, None, "m")
    assert [item.version for item in made.model.opset_import if item.domain == ""] == [prepare.OPSET]
    assert not [warning for warning in recwarn if issubclass(warning.category, prepare.ModelWarning)]
    assert [item.name for item in made.model.graph.input] == ["data_0"]
