"""A small model in three stages on three CPU devices, with a tensor that skips a stage and an output of an early one."""

import numpy as np
import pytest

SIZE = 8


def layers_model(seed=0):
    """``p = relu(x a)``, ``q = relu(p b)``, ``y = relu(q c) + p``; returns ``y`` and ``p``."""
    onnx = pytest.importorskip("onnx")
    from onnx import TensorProto, helper, numpy_helper

    rng = np.random.default_rng(seed)
    weights = [numpy_helper.from_array(rng.standard_normal((SIZE, SIZE)).astype(np.float32), name) for name in "abc"]
    nodes = []
    for source, weight, result in (("x", "a", "p"), ("p", "b", "q"), ("q", "c", "r")):
        nodes.append(helper.make_node("MatMul", [source, weight], [f"{result}_"]))
        nodes.append(helper.make_node("Relu", [f"{result}_"], [result]))
    nodes.append(helper.make_node("Add", ["r", "p"], ["y"]))
    x, y, p = (helper.make_tensor_value_info(name, TensorProto.FLOAT, [2, SIZE]) for name in "xyp")
    graph = helper.make_graph(nodes, "layers", [x], [y, p], weights)
    return onnx.helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])


def batches(count, seed=1):
    rng = np.random.default_rng(seed)
    return [rng.standard_normal((2, SIZE)).astype(np.float32) for _ in range(count)]


def compile_layers(topology="cpu3", **options):
    """The model compiled in stages; on three CPU devices a layer each."""
    pytest.importorskip("tvm", exc_type=ImportError)
    from tvm_sched.relax import compile_pipeline

    options.setdefault("cost_model", "roofline")  # measured latencies of so small layers may join two in a stage
    return compile_pipeline(layers_model(), topology, 3, "equal-split", **options)
