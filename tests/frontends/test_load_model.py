"""Import: names of parameters, shapes, and what each wrong input is told."""

import subprocess
import sys

import numpy as np
import pytest
import tvm

from relax import cases
from tvm_frontends import load_model
from tvm_frontends.errors import ModelError, ModelWarning
from tvm_frontends.shapes import DeclaredInput, bind_shapes
from tvm_sched.relax import compile

onnx = pytest.importorskip("onnx")
from relax.onnx_models import small_model  # noqa: E402


@pytest.mark.parametrize("ir_version", [3, 8])
def test_onnx_names(ir_version):
    model = load_model(small_model(ir_version=ir_version), {"x": (2, 4)})
    assert model.name == "small"
    assert model.inputs == {"x": ((2, 4), "float32")}
    assert list(model.parameters) == ["dense/w", "dense.b"]
    assert [v.name for v in model.mod["main"].params] == ["x", "dense/w", "dense.b"]


def test_onnx_file(tmp_path):
    path = tmp_path / "net.onnx"
    onnx.save(small_model(batch=5), path)
    model = load_model(path)
    assert model.name == "net"
    assert model.inputs == {"x": ((5, 4), "float32")}


def test_a_folder_of_onnx_runtime_genai(tmp_path):
    folder = tmp_path / "phi"
    folder.mkdir()
    onnx.save(small_model(batch=5), folder / "decoder.onnx")
    (folder / "genai_config.json").write_text(
        '{"model": {"decoder": {"filename": "decoder.onnx", "num_hidden_layers": 1}}}'
    )
    model = load_model(folder)
    assert model.name == "phi"
    assert model.inputs == {"x": ((5, 4), "float32")}


def test_heads_of_a_folder_of_onnx_runtime_genai_have_its_size(tmp_path):
    value = onnx.helper.make_tensor_value_info("past.0.key", onnx.TensorProto.FLOAT, ["batch", 2, "past", "head"])
    result = onnx.helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, ["batch", 2, "past", "head"])
    graph = onnx.helper.make_graph([onnx.helper.make_node("Relu", ["past.0.key"], ["y"])], "g", [value], [result])
    onnx.save(onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 18)]), tmp_path / "d.onnx")
    names = '{"past_key_names": "past.%d.key", "past_value_names": "past.%d.value"}'
    config = f'{{"model": {{"decoder": {{"filename": "d.onnx", "head_size": 8, "inputs": {names}}}}}}}'
    (tmp_path / "genai_config.json").write_text(config)
    assert load_model(tmp_path, {"batch": 1, "past": 3}).inputs == {"past.0.key": ((1, 2, 3, 8), "float32")}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{"model": {"decoder": {"filename": "other.onnx"}}}',
         r"filename is 'other.onnx', and the folder has no such file"),
        ('{"model": {"decoder": {"filename": "../other.onnx"}}}',
         r"filename is '../other.onnx', and the folder has no"),
        ('{"model": {"decoder": {"pipeline": []}}}',
         r"names no ONNX file; a decoder in several files is not supported"),
        ("{", r"genai_config.json: not a configuration of ONNX Runtime GenAI"),
    ],
)  # fmt: skip
def test_wrong_folders_of_onnx_runtime_genai(tmp_path, text, message):
    onnx.save(small_model(), tmp_path / "decoder.onnx")
    (tmp_path / "genai_config.json").write_text(text)
    with pytest.raises(ModelError, match=message):
        load_model(tmp_path)


@pytest.mark.parametrize(
    ("shapes", "message"),
    [
        (None, r"input 'x': dimension 0 \('batch'\).*shapes=\{'batch': 1\}"),
        ({"z": (1, 4)}, r"input 'z', which the model does not have; its inputs are x\[batch, 4\]"),
        ({"x": (1, 4, 1)}, r"3 dimensions \(1, 4, 1\), the model declares 2"),
        ({"x": (1, 5)}, r"dimension 1 is given as 5, but the model fixes it at 4"),
        ({"x": (-1, 4)}, r"dimension 0 is given as -1"),
        ({"x": (1.5, 4)}, r"dimension 0 is given as 1.5"),
        ({"x": 4}, r"input 'x': shape 4 is given"),
        ({"x": "1,4"}, r"input 'x': shape '1,4' is given"),
        ("x:1,4", r"the shapes are 'x:1,4'; a mapping"),
    ],
)
def test_onnx_shapes(shapes, message):
    with pytest.raises(ModelError, match=message):
        load_model(small_model(), shapes)


def test_integers_of_numpy_are_sizes():
    assert load_model(small_model(), {"x": np.array([2, 4])}).inputs == {"x": ((2, 4), "float32")}


def test_symbols_are_shared():
    declared = [DeclaredInput("a", ("n", 2)), DeclaredInput("b", ("n", "m")), DeclaredInput("c", None)]
    shapes, symbols = bind_shapes(declared, {"b": (3, 4), "c": ()}, "m")
    assert shapes == {"a": (3, 2), "b": (3, 4), "c": ()}
    assert symbols == {"n": 3, "m": 4}
    with pytest.raises(
        ModelError, match=r"'n'.*given as 4, but input 'b', dimension 0, says 3; one symbol has one size"
    ):
        bind_shapes(declared, {"b": (3, 4), "a": (4, 2)}, "m")
    with pytest.raises(ModelError, match="does not say how many dimensions input 'c'"):
        bind_shapes(declared, {"b": (3, 4)}, "m")


def test_unknown_operator():
    with pytest.raises(ModelError, match=r"does not know the operators Frobnicate \(node 'last'\)"):
        load_model(small_model(operator="Frobnicate"), {"x": (1, 4)})


def test_files_that_cannot_be_read(tmp_path):
    with pytest.raises(ModelError, match="no such file"):
        load_model(tmp_path / "missing.onnx")
    with pytest.raises(ModelError, match=r"a folder without config\.json"):
        load_model(tmp_path)
    for name, message in (
        ("a.onnx", "not a readable ONNX file"),
        ("b.pt2", "not a readable torch.export program|needs torch"),
        ("c.json", "not a module that tvm.ir.save_json wrote"),
        ("d.py", "not a TVMScript module"),
        ("e.xyz", "files ending in '.xyz' are not known; allowed are .onnx"),
    ):
        path = tmp_path / name
        path.write_text("not a model (")
        with pytest.raises(ModelError, match=message):
            load_model(path)
    (tmp_path / "f.py").write_text("import sys\nsys.exit(0)\n")
    with pytest.raises(ModelError, match="it ended the program"):
        load_model(tmp_path / "f.py")
    (tmp_path / "f.py").write_text("import math\n")
    with pytest.raises(ModelError, match="defines 0 modules"):
        load_model(tmp_path / "f.py")


def test_objects_that_are_no_models():
    with pytest.raises(ModelError, match=r"is of the type int; a path, an onnx\.ModelProto"):
        load_model(3)
    with pytest.raises(ModelError, match="has no Relax function 'main'"):
        load_model(tvm.IRModule({}))


def test_relax_symbols():
    with pytest.raises(ModelError, match=r"input 'x': dimension 0 \('n'\)"):
        load_model(cases.Symbolic)
    model = load_model(cases.Symbolic, {"y": (2, 5)})
    assert model.inputs == {"x": ((2, 8), "float32"), "y": ((2, 5), "float32")}


def test_relax_sizes_that_follow_from_symbols():
    model = load_model(cases.Derived, {"x": (3, 4)})
    assert model.inputs == {"x": ((3, 4), "float32"), "y": ((13,), "float32")}
    with pytest.raises(ModelError, match=r"input 'y': dimension 0 is given as 12.*which is 13"):
        load_model(cases.Derived, {"x": (3, 4), "y": (12,)})


def test_relax_files(tmp_path):
    # TVM 0.27 crashes when it writes a module with functions as JSON; what it can write is read.
    (tmp_path / "m.json").write_text(tvm.ir.save_json(tvm.IRModule({})))
    with pytest.raises(ModelError, match="has no Relax function 'main'"):
        load_model(tmp_path / "m.json")
    (tmp_path / "printed.py").write_text(cases.Branches.script())
    assert load_model(tmp_path / "printed.py").name == "printed"
    (tmp_path / "written.py").write_text(
        "from tvm.script import ir as I\nfrom tvm.script import relax as R\n\n"
        '@I.ir_module\nclass Module:\n    @R.function\n    def main(x: R.Tensor((2,), "float32")):\n'
        "        y = R.exp(x)\n        return y\n"
    )
    assert load_model(tmp_path / "written.py").inputs == {"x": ((2,), "float32")}


def test_relax_parameters():
    """Values in the function attribute ``params`` are parameters, as TVM's own frontends leave them."""
    value = tvm.runtime.tensor(np.ones((64, 64), "float32"))
    mod = cases.Branches.clone()
    mod["main"] = mod["main"].with_attr("params", [value])
    model = load_model(mod)
    assert model.inputs == {}
    assert list(model.parameters) == ["x"]


def test_torch(tmp_path):
    torch = pytest.importorskip("torch")

    class Net(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.dense = torch.nn.Linear(4, 3)
            self.norm = torch.nn.BatchNorm1d(3)

        def forward(self, x, y):
            return self.norm(self.dense(x)) + y

    net = Net().eval()
    batch = torch.export.Dim("batch", min=2, max=64)
    example = (torch.randn(4, 4), torch.randn(4, 3))
    program = torch.export.export(net, example, dynamic_shapes={"x": {0: batch}, "y": {0: batch}})
    with pytest.raises(ModelError, match=r"input 'x': dimension 0 .* has no fixed size"):
        load_model(program)
    model = load_model(program, {"x": (8, 4)})
    assert model.inputs == {"x": ((8, 4), "float32"), "y": ((8, 3), "float32")}
    assert "dense.weight" in model.parameters
    np.testing.assert_array_equal(model.parameters["dense.weight"], net.dense.weight.detach().numpy())
    torch.export.save(program, tmp_path / "net.pt2")
    assert load_model(tmp_path / "net.pt2", {"x": (8, 4)}).name == "net"
    with pytest.raises(ModelError, match=r"torch\.export\.export\(model"):
        load_model(net)


def test_a_torch_program_keeps_its_ranges_and_takes_tensors():
    torch = pytest.importorskip("torch")
    program = cases.scaled_batches(torch.ones(3))
    assert load_model(program, {"x": (64, 3)}).inputs["x"] == ((64, 3), "float32")
    with pytest.raises(ModelError, match="dimension 0 is given as 65; the program was exported for 2 to 64"):
        load_model(program, {"x": (65, 3)})


def test_arguments_of_a_torch_program_that_are_no_tensors():
    torch = pytest.importorskip("torch")
    assert load_model(cases.scaled_batches(3), {"x": (4, 3)}).inputs == {"x": ((4, 3), "float32")}

    class Scale(torch.nn.Module):
        def forward(self, x, by):
            return x * by

    program = torch.export.export(Scale(), (torch.ones(3), 3), dynamic_shapes=({}, torch.export.Dim.DYNAMIC))
    with pytest.raises(ModelError, match=r"input 'by' is a number that torch\.export left open; export .* fixed"):
        load_model(program)


def test_a_torch_program_that_writes_to_its_buffers_says_so():
    torch = pytest.importorskip("torch")

    class Counter(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("count", torch.zeros(()))

        def forward(self, x):
            self.count.add_(1)
            return x + self.count

    program = torch.export.export(Counter().eval(), (torch.ones(2),))
    with pytest.warns(ModelWarning, match=r"writes to its buffers count; the writes are lost after each run"):
        compiled = compile(program, "cpu1", "single")
    for _ in range(2):
        np.testing.assert_array_equal(compiled.run(np.ones(2, np.float32)), [2, 2])


def test_a_damaged_torch_program_is_one_error(tmp_path, caplog):
    torch = pytest.importorskip("torch")
    path = tmp_path / "state.pt2"
    torch.save({"a": torch.ones(3)}, path)
    with pytest.raises(ModelError, match=r"not a readable torch\.export program"):
        load_model(path)
    assert not caplog.records, "torch logs the traceback"


def test_a_wrong_onnx_model():
    model = small_model()
    model.graph.node[0].input[0] = "nowhere"
    with pytest.raises(ModelError, match=r"MatMul \(node 'm'\) reads 'nowhere', which nothing writes"):
        load_model(model, {"x": (1, 4)})


@pytest.mark.thorough  # imports transformers twice
@pytest.mark.slow
def test_exported_program_that_returns_an_object_of_transformers(tmp_path):
    """Reading the file needs the package whose class it names: it is imported for that."""
    torch, transformers = pytest.importorskip("torch"), pytest.importorskip("transformers")
    config = transformers.BertConfig(
        hidden_size=8, num_hidden_layers=1, num_attention_heads=2, intermediate_size=8, vocab_size=20
    )
    network = transformers.BertModel(config).eval()
    program = torch.export.export(network, (torch.ones(1, 4, dtype=torch.long),))
    torch.export.save(program, tmp_path / "bert.pt2")
    script = f"from tvm_frontends import load_model; print(load_model({str(tmp_path / 'bert.pt2')!r}).inputs)"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert "(1, 4)" in done.stdout, done.stderr
