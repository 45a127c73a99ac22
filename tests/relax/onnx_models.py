"""A small ONNX model."""

import numpy as np
from onnx import TensorProto, helper, numpy_helper


def small_model(batch="batch", operator="Relu", ir_version=8, w=None, b=None):
    """relu(x @ w + b) with a symbolic batch."""
    w = numpy_helper.from_array(np.ones((4, 3), "float32") if w is None else w, "dense/w")
    b = numpy_helper.from_array(np.ones((3,), "float32") if b is None else b, "dense.b")
    nodes = [
        helper.make_node("MatMul", ["x", "dense/w"], ["m"]),
        helper.make_node("Add", ["m", "dense.b"], ["a"]),
        helper.make_node(operator, ["a"], ["y"], name="last"),
    ]
    inputs = [helper.make_tensor_value_info("x", TensorProto.FLOAT, [batch, 4])]
    if ir_version < 4:
        inputs += [helper.make_tensor_value_info(t.name, TensorProto.FLOAT, t.dims) for t in (w, b)]
    outputs = [helper.make_tensor_value_info("y", TensorProto.FLOAT, [batch, 3])]
    graph = helper.make_graph(nodes, "small", inputs, outputs, [w, b])
    return helper.make_model(graph, ir_version=ir_version, opset_imports=[helper.make_opsetid("", 13)])
