"""Recurrent layers of ONNX on an emulated GPU, against ONNX Runtime; `test_emulated_gpu` runs this."""

from __future__ import annotations

from typing import Any

import pytest
from onnx import helper

from frontends.onnx.single_node import EVERYTHING, check_close, node_model, recurrent_values
from tvm_sched.relax import compile

onnxruntime = pytest.importorskip("onnxruntime")
pytestmark = pytest.mark.gpu
CASES: dict[str, tuple[str, tuple[int, int, int, int], tuple[str, ...], dict[str, Any]]] = {
    "LSTM with everything, both ways": ("LSTM", (4, 3, 3, 17), EVERYTHING, {"direction": "bidirectional"}),
    "LSTM of several units a thread": ("LSTM", (2, 1, 3, 1040), ("bias",), {}),
    "LSTM with clipped, coupled gates": ("LSTM", (5, 2, 6, 20), EVERYTHING, {"clip": 0.3, "input_forget": 1}),
    "GRU, reset before the product": ("GRU", (5, 4, 3, 37), ("bias", "lengths", "first_h"), {"direction": "reverse"}),
    "GRU, reset after the product": ("GRU", (5, 2, 6, 20), ("bias", "lengths"), {"linear_before_reset": 1}),
    "RNN": ("RNN", (4, 2, 3, 5), ("bias", "first_h"), {"direction": "bidirectional"}),
    "RNN with an activation of its own": (
        "RNN", (4, 2, 3, 4), ("bias",), {"activations": ["ScaledTanh"], "activation_alpha": [0.7], "activation_beta": [0.3]},
    ),
}  # fmt: skip


@pytest.mark.sampled(3)
@pytest.mark.parametrize("name", CASES)
def test_like_onnx_runtime(name: str) -> None:
    operator, shape, given, attributes = CASES[name]
    directions = 2 if attributes.get("direction") == "bidirectional" else 1
    values, inputs = recurrent_values(operator, shape, directions, given)
    model = node_model(operator, values, inputs, 3 if operator == "LSTM" else 2, hidden_size=shape[3], **attributes)
    feeds = {f"i{k}": values[k] for k in inputs}
    right = onnxruntime.InferenceSession(model.SerializeToString()).run(None, feeds)
    for info, value in zip(model.graph.output, right, strict=True):
        info.CopyFrom(helper.make_tensor_value_info(info.name, 1, value.shape))
    made = compile(model, "v100-server", "single", backend="cuda", cost_model="roofline", variants=False)
    made.module.configure(devices=[0, 0, 0, 0])
    check_close(made.module.run(*feeds.values()), right, 3e-6)
