"""Small models whose artifacts need what the runtime's wheel brings.

``tvm-sched compile example_models.py`` compiles the first, ``python example_models.py FOLDER`` the others.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import tvm
from tvm import relax


def convolutions() -> tvm.IRModule:
    """Two branches of convolutions: oneDNN where it is."""
    rng = np.random.default_rng(0)
    builder = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType((1, 8, 16, 16), "float32"))
    weights = [relax.const(rng.standard_normal((8, 8, 3, 3)).astype("float32")) for _ in range(4)]
    with builder.function("main", [x]):
        values = []
        for first, second in (weights[:2], weights[2:]):
            value = builder.emit(relax.op.nn.relu(relax.op.nn.conv2d(x, first, padding=1)))
            values.append(builder.emit(relax.op.nn.conv2d(value, second, padding=1)))
        builder.emit_func_output(builder.emit(relax.op.concat(values, axis=1)))
    return builder.get()


def one_operator(shape: tuple[int, ...], of: Callable[[relax.Var], relax.Expr]) -> tvm.IRModule:
    """A function of one input."""
    builder = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType(shape, "float32"))
    with builder.function("main", [x]):
        builder.emit_func_output(builder.emit(of(x)))
    return builder.get()


def generated() -> tvm.IRModule:
    """Kernels that TVM generates, with loops for several threads."""
    return one_operator((64, 1024), lambda x: relax.op.cumsum(relax.op.exp(relax.op.permute_dims(x)), axis=0))


def sorted_rows() -> tvm.IRModule:
    """What calls TVM's runtime library."""
    return one_operator((4, 50), lambda x: relax.op.topk(x, 5, ret_type="values"))


def tail() -> onnx.ModelProto:
    """Sizes that depend on data: TVM's virtual machine runs the end."""
    values = [
        onnx.helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, (3, 4)),
        onnx.helper.make_tensor_value_info("y", onnx.TensorProto.INT64, (2, None)),
    ]
    node = onnx.helper.make_node("NonZero", ["x"], ["y"])
    graph = onnx.helper.make_graph([node], "nonzero", values[:1], values[1:])
    return onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 18)], ir_version=9)


module = convolutions()

if __name__ == "__main__":
    import tvm_sched

    for make in (generated, sorted_rows, tail):
        tvm_sched.compile(make(), "cpu2", "heft").export(Path(sys.argv[1]) / f"{make.__name__}.so")
