"""The examples in docstrings and in the distribution's README."""

import doctest
import importlib
from pathlib import Path

import pytest

pytest.importorskip("onnx", reason="an example imports an ONNX file (extra onnx)")
pytest.importorskip("torch", reason="an example imports a program of PyTorch (extra torch)")
pytest.importorskip("transformers", reason="an example imports a folder of Hugging Face (extra transformers)")
README = Path(__file__).parents[2] / "distributions" / "frontends" / "README.md"
MODULES = ("", ".load", ".onnx.import_model", ".torch.import_program", ".hugging_face")


@pytest.fixture(autouse=True)
def models(tmp_path, monkeypatch):
    """The models that examples name, in the current folder."""
    import onnx
    from transformers import BertConfig, BertModel

    model = onnx.parser.parse_model(
        '<ir_version: 8, opset_import: ["": 17]> '
        "g (float[N, 3] x) => (float[N, 2] y) <float[3, 2] w = {1, 2, 3, 4, 5, 6}> { y = MatMul(x, w) }"
    )
    onnx.save(model, tmp_path / "model.onnx")
    sizes = {"hidden_size": 8, "num_attention_heads": 2, "num_hidden_layers": 1, "intermediate_size": 8}
    BertModel(BertConfig(vocab_size=16, **sizes)).save_pretrained(tmp_path / "tiny-bert")
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize("module", MODULES)
def test_examples_of_docstrings(module):
    found = doctest.testmod(importlib.import_module(f"tvm_frontends{module}"))
    assert found.attempted
    assert not found.failed


def test_examples_of_the_readme():
    found = doctest.testfile(str(README), module_relative=False)
    assert found.attempted
    assert not found.failed
