"""Cases of `test_trees.py` that other tests use, too."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper
from onnx.reference import ReferenceEvaluator

from tvm_sched.relax import compile as compile_model


def make(operator: str, x: Any, outputs: list[int], version: int = 3, **attributes: Any) -> Any:
    """A model of one node of ai.onnx.ml; ``outputs`` are types, whole numbers are vectors."""
    names = [f"y{k}" for k in range(len(outputs))]
    node = helper.make_node(operator, ["x"], names, name="n", domain="ai.onnx.ml", **attributes)
    shapes = [["rows"] if kind == TensorProto.INT64 else ["rows", "results"] for kind in outputs]
    given = [helper.make_tensor_value_info("x", helper.np_dtype_to_tensor_dtype(x.dtype), x.shape)]
    results = [helper.make_tensor_value_info(*item) for item in zip(names, outputs, shapes, strict=True)]
    opsets = [helper.make_opsetid("", 21), helper.make_opsetid("ai.onnx.ml", version)]
    return helper.make_model(helper.make_graph([node], "g", given, results), opset_imports=opsets, ir_version=10)


def check(model: Any, x: Any, reference: bool = False) -> None:
    if reference:
        expected = ReferenceEvaluator(model).run(None, {"x": x})
    else:
        runtime = pytest.importorskip("onnxruntime")
        options = runtime.SessionOptions()
        options.log_severity_level = 4
        expected = runtime.InferenceSession(model.SerializeToString(), options).run(None, {"x": x})
    found = compile_model(model, "cpu1", "single").run(x)
    for mine, right in zip(found if isinstance(found, list) else [found], expected, strict=True):
        assert (mine.shape, mine.dtype) == (right.shape, right.dtype)
        np.testing.assert_allclose(mine, right, rtol=1e-4, atol=1e-5)
