"""Outputs of an artifact have the model's names."""

import numpy as np
import pytest

from tvm_sched.relax import compile
from tvm_sched_runtime.runtime import load


def names(compiled, path):
    compiled.export(path)
    return [output["name"] for output in load(path).outputs()]


def test_onnx(tmp_path):
    onnx = pytest.importorskip("onnx")
    info = [onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, [2, 2]) for name in ("x", "b", "a")]
    nodes = [onnx.helper.make_node("MatMul", ["x", "x"], ["b"]), onnx.helper.make_node("Relu", ["b"], ["a"])]
    graph = onnx.helper.make_graph(nodes, "two", info[:1], info[1:])
    path = tmp_path / "two.so"
    assert names(compile(onnx.helper.make_model(graph), "cpu1"), path) == ["b", "a"]
    x = np.array([[1, -2], [3, -4]], np.float32)
    by_name = dict(zip(("b", "a"), load(path).run(x), strict=True))
    np.testing.assert_array_equal(by_name["b"], x @ x)
    np.testing.assert_array_equal(by_name["a"], np.maximum(x @ x, 0))


def test_torch_export(tmp_path):
    torch = pytest.importorskip("torch")

    class Keyed(torch.nn.Module):
        def forward(self, x):
            return {"logits": x @ x, "hidden": (x + 1, x * 2)}

    class Plain(torch.nn.Module):
        def forward(self, x):
            return torch.relu(x), x + 1

    for model, expected in ((Keyed(), ["logits", "hidden.0", "hidden.1"]), (Plain(), ["relu", "add"])):
        program = torch.export.export(model, (torch.ones(2, 2),))
        assert names(compile(program, "cpu1"), tmp_path / f"{expected[0]}.so") == expected
