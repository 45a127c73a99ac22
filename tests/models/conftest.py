"""Models and their right answers, made once a session."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from tvm_sched_bench.testing import models

TOLERANCE = 1e-4


@dataclass(frozen=True)
class Case:
    """A model, an input, and what the peer (ONNX Runtime, torch) answers."""

    model: Any
    x: np.ndarray
    expected: np.ndarray


def relative_difference(result: Any, expected: np.ndarray) -> float:
    """Largest difference over the largest magnitude."""
    values = result[0] if isinstance(result, list) else result
    assert values.shape == expected.shape
    return float(np.abs(values - expected).max() / np.abs(expected).max())


def onnx_case(name: str) -> Case:
    ort = pytest.importorskip("onnxruntime", reason="ONNX Runtime is the peer of this test (extra dev)")
    model = models.onnx_model(name, seed=1)
    input_name, shape = models.input_shape(model)
    x = np.random.default_rng(2).standard_normal(shape).astype("float32")
    session = ort.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    expected = session.run(None, {input_name: x})[0]
    assert expected.std() > 0, "constant outputs would prove nothing"
    return Case(model, x, expected)


def torch_case(name: str) -> Case:
    torch = pytest.importorskip("torch", reason="PyTorch is the peer of this test (make test installs it)")
    pytest.importorskip("transformers", reason="the model comes from transformers (extra dev)")
    model = getattr(models, name)()
    x = models.token_ids(model)
    with torch.no_grad():
        expected = model.module()(torch.from_numpy(x)).numpy()
    return Case(model, x, expected)


@pytest.fixture(scope="session")
def case(request: pytest.FixtureRequest) -> Case:
    return (onnx_case if request.param in models.ONNX_MODELS else torch_case)(request.param)
