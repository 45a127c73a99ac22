"""ONNX's Clip: bounds as attributes and as inputs, left out, and NaN for none."""

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from tvm_sched.relax import compile

X = np.array([-5.0, -0.5, 0.25, 7.0, np.inf], "float32")


@pytest.mark.parametrize(
    ("low", "high", "expected"),
    [
        (-1.0, 6.0, np.clip(X, -1, 6)),
        (None, 6.0, np.minimum(X, 6)),
        (0.0, None, np.maximum(X, 0)),
        (np.nan, 1.0, np.minimum(X, 1)),
    ],
)
def test_clip(low, high, expected):
    bounds = {"low": low, "high": high}
    given = [helper.make_tensor(n, TensorProto.FLOAT, [], [v]) for n, v in bounds.items() if v is not None]
    node = helper.make_node("Clip", ["x", *(n if v is not None else "" for n, v in bounds.items())], ["y"])
    x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, [5]) for name in "xy")
    model = helper.make_model(
        helper.make_graph([node], "clip", [x], [y], given), opset_imports=[helper.make_opsetid("", 13)], ir_version=8
    )
    onnx.checker.check_model(model)
    np.testing.assert_array_equal(compile(model, "cpu1", "single").run(X), expected)
