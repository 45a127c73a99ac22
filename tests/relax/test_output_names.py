"""Outputs of an artifact have the model's names."""

import numpy as np
import pytest

from onnx_text import onnx_model
from tvm_sched.relax import compile
from tvm_sched_runtime.runtime import load


def names(compiled, path):
    compiled.export(path)
    return [output["name"] for output in load(path).outputs()]


def test_onnx(tmp_path):
    model = onnx_model("(float[2, 2] x) => (float[2, 2] b, float[2, 2] a) { b = MatMul(x, x)  a = Relu(b) }")
    path = tmp_path / "two.so"
    assert names(compile(model, "cpu1"), path) == ["b", "a"]
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
