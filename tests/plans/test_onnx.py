"""Plans of ONNX files, tried with ONNX Runtime and OpenVINO on the CPU."""

from __future__ import annotations

import importlib.util
import json
from itertools import pairwise

import numpy as np
import pytest
from plan_cases import machine

from tvm_sched_plans import export_plan
from tvm_sched_plans.onnx_source import read_onnx
from tvm_sched_plans.unit_chain import segments
from tvm_sched_runtime.errors import InfeasibleError, InputError

onnx = pytest.importorskip("onnx")
MB = 1_000_000


def build(path, nodes, inputs, outputs, weights=()):
    """An ONNX file; ``inputs`` and ``outputs`` are names with shapes."""
    helper = onnx.helper

    def values(named):
        return [helper.make_tensor_value_info(name, 1, shape) for name, shape in named.items()]

    rng = np.random.default_rng(0)
    tensors = [
        onnx.numpy_helper.from_array(rng.normal(size=shape, scale=0.1).astype("float32"), name)
        for name, shape in dict(weights).items()
    ]
    graph = helper.make_graph(nodes, "g", values(inputs), values(outputs), tensors)
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=10), path)
    return path


@pytest.fixture
def towers(tmp_path):
    """Eight layers with a skip connection over all of them; nodes without names."""
    node = onnx.helper.make_node
    nodes, weights = [], {}
    for i in range(8):
        weights[f"w{i}"] = (256, 256)
        nodes.append(node("MatMul", [f"x{i}", f"w{i}"], [f"y{i}"]))
        nodes.append(node("Relu", [f"y{i}"], [f"x{i + 1}"]))
    nodes.append(node("Add", ["x8", "x1"], ["sum"]))
    nodes.append(node("Softmax", ["sum"], ["out"]))
    return build(
        tmp_path / "towers.onnx", nodes, {"x0": ["batch", 256]}, {"out": ["batch", 256], "x4": ["batch", 256]}, weights
    )


def expected(path, inputs):
    runtime = pytest.importorskip("onnxruntime")
    session = runtime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    names = [value.name for value in session.get_outputs()]
    return dict(zip(names, session.run(names, inputs), strict=True))


def load_script(path):
    spec = importlib.util.spec_from_file_location(path.stem, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


ROWS = {"x0": np.random.default_rng(1).normal(size=(1024, 256)).astype("float32")}


def test_the_graph_has_the_files_nodes_and_sizes(towers):
    source = read_onnx(towers, {"batch": 1024})
    graph = source.graph
    assert len(graph.operators) == 18
    sizes = {tensor.name: (tensor.size, tensor.kind) for tensor in graph.tensors}
    assert sizes["w0"] == (256 * 256 * 4, "parameter")
    assert sizes["x0"] == (1024 * 256 * 4, "input")
    assert sizes["out"] == (1024 * 256 * 4, "activation")
    assert sum(o.flops for o in graph.operators if o.kind == "library.matmul") == 8 * 2 * 1024 * 256 * 256
    assert graph.outputs == ("out", "x4")


def test_parts_on_two_gpus_give_the_same_results(towers, tmp_path):
    wanted = expected(towers, ROWS)
    topology = machine(5.6 * MB, 5.7 * MB, bandwidth=400e9)
    path = tmp_path / "plan.json"
    made = export_plan(towers, topology, "onnxruntime", path, shapes={"batch": 1024}, overhead=0)
    assert made.ours.fits
    assert {run["device"] for run in made.settings["runs"]} == {"cuda:0", "cuda:1"}
    assert [row.fits for row in made.defaults] == [False, True]
    assert made.ours.total_ns <= made.defaults[1].total_ns
    plan = load_script(tmp_path / "run_onnxruntime.py").Plan(path, cpu=True)
    assert len(plan.sessions) == len(made.settings["runs"]) >= 2
    found = plan.run(ROWS)
    assert set(found) == set(wanted)
    for name, value in wanted.items():
        np.testing.assert_array_equal(found[name], value)


def test_annotations_are_read_by_onnx_runtime(towers, tmp_path):
    runtime = pytest.importorskip("onnxruntime")
    wanted = expected(towers, ROWS)
    path = tmp_path / "plan.json"
    made = export_plan(
        towers, machine(5.6 * MB, bandwidth=400e9), "onnxruntime", path, shapes={"batch": 1024}, overhead=0
    )
    assert {run["device"] for run in made.settings["runs"]} == {"cpu", "cuda:0"}
    document = json.loads(path.read_text())
    annotated = onnx.load(tmp_path / document["model"])
    marks = [next(p.value for p in node.metadata_props if p.key == "layer_ann") for node in annotated.graph.node]
    for run in document["runs"]:
        first, last = run["nodes"]
        assert set(marks[first:last]) == {f"tvm_sched.{run['device'].split(':')[0]}"}
    # The CPU stands for the GPU here: each rule is one that ONNX Runtime maps to a provider it has.
    options = runtime.SessionOptions()
    rules = document["session_options"]["session.layer_assignment_settings"]
    options.add_session_config_entry(
        "session.layer_assignment_settings", rules.replace("cuda(", "CPUExecutionProvider(")
    )
    session = runtime.InferenceSession(str(tmp_path / document["model"]), options, providers=["CPUExecutionProvider"])
    for value, name in zip(session.run(None, ROWS), [v.name for v in session.get_outputs()], strict=True):
        np.testing.assert_array_equal(value, wanted[name])
    wrong = runtime.SessionOptions()
    wrong.add_session_config_entry("session.layer_assignment_settings", "cpu=tvm_sched.cpu")
    with pytest.raises(Exception, match="Invalid layering config"):
        runtime.InferenceSession(str(tmp_path / document["model"]), wrong, providers=["CPUExecutionProvider"])


def test_openvino_compiles_the_affinities(towers, tmp_path):
    openvino = pytest.importorskip("openvino", reason="the package openvino is not installed")
    path = tmp_path / "plan.py"
    topology = machine(5.6 * MB, 5.7 * MB, bandwidth=400e9)
    made = export_plan(towers, topology, "openvino", path, shapes={"batch": 1024}, overhead=0)
    assert set(made.settings["affinity"].values()) >= {"GPU.0", "GPU.1"}
    script = load_script(path)
    core = openvino.Core()
    model = core.read_model(towers)
    order = script.set_affinities(model)
    assert set(order) == set(made.settings["affinity"].values())
    for operator in model.get_ordered_ops():
        affinity = operator.get_rt_info()["affinity"]
        names = [name for output in operator.outputs() for name in output.get_names()]
        planned = [made.settings["affinity"][name] for name in names if name in made.settings["affinity"]]
        assert not planned or affinity.astype(str) == planned[0]
    everywhere = {"GPU.0": "CPU", "GPU.1": "CPU"}
    found = script.compile_model(str(towers), everywhere, core)(ROWS)
    plain = core.compile_model(core.read_model(towers), "CPU")(ROWS)
    for a, b in zip(found.values(), plain.values(), strict=True):
        np.testing.assert_array_equal(a, b)


def test_captured_values_of_subgraphs_are_read(tmp_path):
    helper = onnx.helper
    branch = [
        helper.make_graph(
            [helper.make_node(kind, ["a", "w"], ["r"])], kind, [], [helper.make_tensor_value_info("r", 1, [4, 4])]
        )
        for kind in ("Add", "Mul")
    ]
    nodes = [
        helper.make_node("Relu", ["x"], ["a"]),
        helper.make_node("ReduceMax", ["x"], ["m"], keepdims=0),
        helper.make_node("Greater", ["m", "m"], ["c"]),
        helper.make_node("If", ["c"], ["out"], then_branch=branch[0], else_branch=branch[1]),
    ]
    path = build(tmp_path / "if.onnx", nodes, {"x": [4, 4]}, {"out": [4, 4]}, {"w": (4, 4)})
    source = read_onnx(path)
    assert set(source.graph.operators[3].inputs) == {"c", "a", "w"}
    plan = export_plan(path, machine(10_000), "onnxruntime", tmp_path / "plan.json", overhead=0)
    found = load_script(tmp_path / "run_onnxruntime.py").Plan(tmp_path / "plan.json", cpu=True)
    inputs = {"x": np.ones((4, 4), dtype="float32")}
    np.testing.assert_array_equal(found.run(inputs)["out"], expected(path, inputs)["out"])
    assert plan.ours.fits


@pytest.mark.parametrize(
    ("shapes", "said"),
    [({}, "'batch' of input 'x0' is open; give its size, e.g. --shape batch=1"),
     ({"batch": 1, "tokens": 2}, "no input or open dimension 'tokens'; the inputs are x0"),
     ({"x0": (1, 2, 3)}, "input 'x0' has 2 dimensions"), ({"x0": (4, 255)}, "is fixed to 256; 255 was given"),
     ({"batch": 0}, "size of 'batch' is 0"), ({"batch": "x"}, "size of 'batch' is 'x'"),
     ({"batch": 2.5}, "size of 'batch' is 2.5"), ({"x0": (-1, 256)}, "size of dimension 0 of input 'x0' is -1")],
)  # fmt: skip
def test_wrong_shapes_are_refused(towers, shapes, said):
    with pytest.raises(InputError, match=said):
        export_plan(towers, machine(1e9), "openvino", shapes=shapes)


def test_wrong_files_are_refused(tmp_path):
    path = tmp_path / "a.onnx"
    with pytest.raises(InputError, match="No such file"):
        export_plan(path, machine(1e9), "openvino")
    path.write_bytes(b"nothing of the kind")
    with pytest.raises(InputError, match=r"not an ONNX file|without nodes"):
        export_plan(path, machine(1e9), "openvino")
    node = onnx.helper.make_node
    build(path, [node("NonZero", ["x"], ["i"]), node("Cast", ["i"], ["out"], to=1)], {"x": [4]}, {"out": [1, 4]})
    with pytest.raises(InputError, match="the size of 'i' cannot be known before a run"):
        export_plan(path, machine(1e9), "onnxruntime")


def test_what_does_not_fit_anywhere(towers):
    import msgspec

    topology = msgspec.structs.replace(machine(4.6 * MB), host_memory=int(0.4 * MB))
    with pytest.raises(InfeasibleError, match=r"weights 2 MiB.* GPUs like 'gpu0' .*would do"):
        export_plan(towers, topology, "onnxruntime", shapes={"batch": 1024}, overhead=0)


def test_runs_are_in_order_and_cover_all_nodes(towers):
    made = export_plan(
        towers, machine(5.6 * MB, 5.7 * MB, bandwidth=400e9), "onnxruntime", shapes={"batch": 1024}, overhead=0
    )
    ends = [run["nodes"] for run in made.settings["runs"]]
    assert ends[0][0] == 0
    assert ends[-1][1] == 18
    assert all(a[1] == b[0] for a, b in pairwise(ends))
    assert segments((0, 0, 1)) == [(0, 0, 2), (1, 2, 3)]
