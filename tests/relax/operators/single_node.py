"""Models of one ONNX node, run here and by ONNX Runtime."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper

import tvm_sched.relax


def node_model(operator: str, values: list[Any], inputs: list[int], outputs: int, **attributes: Any) -> Any:
    """A model of one node; ``inputs`` are the positions of the values that are inputs, the others are constants."""
    names = ["" if value is None else f"i{k}" for k, value in enumerate(values)]
    results = [f"o{k}" for k in range(outputs)]
    node = helper.make_node(operator, names, results, name="node", **attributes)
    infos = [
        helper.make_tensor_value_info(names[k], helper.np_dtype_to_tensor_dtype(values[k].dtype), values[k].shape)
        for k in inputs
    ]
    constants = [
        numpy_helper.from_array(value, names[k])
        for k, value in enumerate(values)
        if value is not None and k not in inputs
    ]
    graph = helper.make_graph([node], "g", infos, [helper.make_empty_tensor_value_info(n) for n in results], constants)
    opsets = [helper.make_opsetid("", 21), helper.make_opsetid("com.microsoft", 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=10)


def run_both(
    operator: str, values: list[Any], inputs: list[int], outputs: int = 1, **attributes: Any
) -> tuple[list[Any], list[Any], Any]:
    """Our results, ONNX Runtime's, and the compiled model."""
    import onnxruntime

    model = node_model(operator, values, inputs, outputs, **attributes)
    feeds = {f"i{k}": values[k] for k in inputs}
    right = onnxruntime.InferenceSession(model.SerializeToString()).run(None, feeds)
    for info, value in zip(model.graph.output, right, strict=True):
        info.CopyFrom(
            helper.make_tensor_value_info(info.name, helper.np_dtype_to_tensor_dtype(value.dtype), value.shape)
        )
    onnx.checker.check_model(model)
    compiled = tvm_sched.relax.compile(model, "cpu1", "single")
    result = compiled.run(*feeds.values())
    return (result if isinstance(result, list) else [result]), right, compiled


def check_close(mine: list[Any], right: list[Any], tolerance: float) -> None:
    """Floats within a tolerance relative to the largest magnitude, integers within a number of units."""
    for a, b in zip(mine, right, strict=True):
        assert (a.dtype, a.shape) == (b.dtype, b.shape)
        scale = np.abs(b).max(initial=0) if b.dtype.kind == "f" else 1
        np.testing.assert_allclose(a.astype("float64"), b.astype("float64"), rtol=0, atol=tolerance * scale)
