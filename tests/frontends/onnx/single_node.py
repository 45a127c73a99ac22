"""Models of one ONNX node: our results, and the right ones, by exact arithmetic or by ONNX Runtime."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper

import tvm_sched.relax

from . import exact

_QUANTISING = ("QuantizeLinear", "DequantizeLinear", "DynamicQuantizeLinear")


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


GATES = {"LSTM": 4, "GRU": 3, "RNN": 1}
EVERYTHING = ("bias", "lengths", "first_h", "first_c", "peepholes")


def recurrent_values(
    operator: str, shape: tuple[int, int, int, int], directions: int, given: tuple[str, ...], batch_first: bool = False
) -> tuple[list[Any], list[int]]:
    """Inputs of a recurrent node, and which are inputs of the model; steps, batch, input size, hidden units."""
    random = np.random.default_rng(0)
    steps, batch, size, hidden = shape
    gates = GATES[operator]

    def numbers(*dims: int) -> Any:
        return (random.standard_normal(dims) / np.sqrt(dims[-1])).astype("float32")

    state = (batch, directions, hidden) if batch_first else (directions, batch, hidden)
    optional = {
        "bias": numbers(directions, 2 * gates * hidden),
        "lengths": random.integers(1, steps + 1, batch).astype("int32"),
        "first_h": numbers(*state),
        "first_c": numbers(*state),
        "peepholes": numbers(directions, 3 * hidden),
    }
    names = ["bias", "lengths", "first_h", *(["first_c", "peepholes"] if operator == "LSTM" else [])]
    x = numbers(batch, steps, size) if batch_first else numbers(steps, batch, size)
    values = [x, numbers(directions, gates * hidden, size), numbers(directions, gates * hidden, hidden)]
    values += [optional[name] if name in given else None for name in names]
    while values[-1] is None:
        values.pop()
    return values, [k for k in (0, 4, 5, 6) if k < len(values) and values[k] is not None]


def run_both(
    operator: str, values: list[Any], inputs: list[int], outputs: int = 1, processor: str = "native", **attributes: Any
) -> tuple[list[Any], list[Any], Any]:
    """Our results, the right ones, and the compiled model.

    The right ones are exact for operators on 8-bit integers, where ONNX Runtime's depend on the processor.
    """
    model = node_model(operator, values, inputs, outputs, **attributes)
    feeds = {f"i{k}": values[k] for k in inputs}
    if operator in _QUANTISING or any(value is not None and value.dtype.itemsize == 1 for value in values):
        right = exact.results(operator, values, attributes, outputs)
    else:
        import onnxruntime

        right = onnxruntime.InferenceSession(model.SerializeToString()).run(None, feeds)
    for info, value in zip(model.graph.output, right, strict=True):
        info.CopyFrom(
            helper.make_tensor_value_info(info.name, helper.np_dtype_to_tensor_dtype(value.dtype), value.shape)
        )
    onnx.checker.check_model(model)
    compiled = tvm_sched.relax.compile(model, "cpu1", "single", processor=processor)
    result = compiled.run(*feeds.values())
    return (result if isinstance(result, list) else [result]), right, compiled


def check_close(mine: list[Any], right: list[Any], tolerance: float) -> None:
    """Floats within a tolerance relative to the largest magnitude, integers within a number of units."""
    for a, b in zip(mine, right, strict=True):
        assert (a.dtype, a.shape) == (b.dtype, b.shape)
        scale = np.abs(b).max(initial=0) if b.dtype.kind == "f" else 1
        np.testing.assert_allclose(a.astype("float64"), b.astype("float64"), rtol=0, atol=tolerance * scale)
