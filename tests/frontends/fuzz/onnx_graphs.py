"""Random ONNX graphs as a hypothesis strategy, and their comparison with ONNX Runtime."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from hypothesis import strategies as st

from .onnx_builder import GraphBuilder, Value
from .onnx_steps import STEPS

TOLERANCE = 2e-5
"""Largest difference of float32 values, relative to the largest magnitude in the whole graph.

A sum of a few hundred products in another order differs by some 10 units in the last place (1e-6). The few nodes of a graph
multiply that by less than 10.
"""
_SIZES = st.sampled_from([2, 3, 1, 4, 5, 8, 0])


@dataclass(frozen=True)
class RandomGraph:
    """A model, values for its inputs, and the same model with all tensors as outputs."""

    model: Any
    feeds: dict[str, npt.NDArray[np.generic]]
    inner: Any

    def __repr__(self) -> str:
        import onnx

        text = "\n".join(f"{v.name}: {v.dtype}{list(v.shape)}" for v in self.feeds.values() if hasattr(v, "name"))
        return f"{text}\n{onnx.printer.to_text(self.model)}"


@st.composite
def onnx_graphs(draw: Any, nodes: int = 6) -> RandomGraph:
    """Random graphs of up to ``nodes`` nodes: several inputs, unused ones too, several outputs, shared initializers.

    Shapes have up to four dimensions, and may be empty.
    """
    builder = GraphBuilder(draw(st.integers(0, 999)))
    for _ in range(draw(st.integers(1, 3))):
        dtype = draw(st.sampled_from(["float32", "float32", "float32", "int64", "bool", "uint8"]))
        builder.add_input(dtype, draw(st.lists(_SIZES, min_size=0, max_size=4)))
    for _ in range(draw(st.integers(1, nodes))):
        draw(st.sampled_from(STEPS))(builder, draw)
    while not any(value not in builder.inputs for value in builder.values):
        builder.add("Identity", [builder.values[0]], exact=True)
    inner = [value for value in builder.values if value not in builder.inputs]
    picked = [value for value in inner if draw(st.booleans())]
    outputs = [inner[-1], *(value for value in picked if value != inner[-1])]
    return RandomGraph(builder.model(outputs), builder.feeds(), builder.model(inner))


def reference(graph: RandomGraph) -> tuple[list[npt.NDArray[Any]], float]:
    """Return the outputs by ONNX Runtime without its optimisations, and the largest magnitude of all tensors.

    ONNX Runtime multiplies 8-bit integers as int32 here: on some processors its sums of 8-bit products saturate in 16
    bits.
    """
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.intra_op_num_threads = 1
    options.log_severity_level = 4
    session = onnxruntime.InferenceSession(_in_int32(graph.inner).SerializeToString(), options)
    values = dict(zip([o.name for o in session.get_outputs()], session.run(None, graph.feeds), strict=True))
    scale = 1.0
    for value in (*values.values(), *graph.feeds.values()):
        if value.dtype.kind == "f" and value.size:
            scale = max(scale, float(np.abs(value[np.isfinite(value)]).max(initial=0)))
    return [values[o.name] for o in graph.model.graph.output], scale


def _in_int32(model: Any) -> Any:
    """Return the model with each MatMulInteger replaced by a MatMul of int32 tensors minus their zero points."""
    from onnx import ModelProto, TensorProto, helper

    widened = ModelProto()
    widened.CopyFrom(model)
    del widened.graph.node[:]
    for node in model.graph.node:
        if node.op_type != "MatMulInteger":
            widened.graph.node.append(node)
            continue
        result, factors = node.output[0], []
        for k in range(2):
            parts = [name for name in (node.input[k], *node.input[k + 2 : k + 3]) if name]
            wide = [f"{result}_{k}_{j}" for j in range(len(parts))]
            for name, part in zip(wide, parts, strict=True):
                widened.graph.node.append(helper.make_node("Cast", [part], [name], to=TensorProto.INT32))
            factors.append(f"{result}_{k}")
            widened.graph.node.append(helper.make_node("Sub" if len(wide) == 2 else "Identity", wide, [factors[-1]]))
        widened.graph.node.append(helper.make_node("MatMul", factors, [result]))
    return widened


def difference(graph: RandomGraph, run: Callable[[Any, dict[str, Any]], list[npt.NDArray[Any]]]) -> str:
    """Return the first error in the outputs that ``run`` computes for the model; empty if there is none."""
    wanted, scale = reference(graph)
    for info, value, right in zip(graph.model.graph.output, run(graph.model, graph.feeds), wanted, strict=True):
        if value.dtype != right.dtype or value.shape != right.shape:
            return f"{info.name} is {value.dtype}{list(value.shape)}, not {right.dtype}{list(right.shape)}"
        if right.dtype.kind != "f":
            if not np.array_equal(value, right):
                return f"{info.name} differs in {int((value != right).sum())} of {right.size} elements"
        elif not np.allclose(value, right, rtol=0, atol=TOLERANCE * scale, equal_nan=True):
            with np.errstate(invalid="ignore"):
                return f"{info.name} differs by {float(np.nanmax(np.abs(value - right))):.3g} at a scale of {scale:.3g}"
    return ""


__all__ = ["TOLERANCE", "GraphBuilder", "RandomGraph", "Value", "difference", "onnx_graphs", "reference"]
