"""Types below a byte go in and come out as wider ones that hold their values."""

import ml_dtypes
import numpy as np
import pytest

onnx = pytest.importorskip("onnx")
from onnx import TensorProto, helper, numpy_helper  # noqa: E402

from tvm_sched.relax import compile  # noqa: E402

VALUES = np.array([-9.0, -8, -2.5, -0.5, 0, 0.3, 1.5, 2.5, 3, 5.2, 7, 40], "float32")


def _quantized(kind, zero):
    """A tensor that is quantised with scale 1 and dequantised: both results."""
    fixed = [numpy_helper.from_array(np.float32(1), "s"), numpy_helper.from_array(zero, "z")]
    nodes = [
        helper.make_node("QuantizeLinear", ["x", "s", "z"], ["q"]),
        helper.make_node("DequantizeLinear", ["q", "s", "z"], ["y"]),
    ]
    outputs = [helper.make_tensor_value_info("q", kind, [12]), helper.make_tensor_value_info("y", 1, [12])]
    graph = helper.make_graph(nodes, "g", [helper.make_tensor_value_info("x", 1, [12])], outputs, fixed)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 25)], ir_version=13)


@pytest.mark.parametrize(
    ("name", "point", "least", "greatest"), [("INT4", 1, -8, 7), ("UINT4", 3, 0, 15), ("INT2", 0, -2, 1)]
)
def test_quantized_to_few_bits(name, point, least, greatest):
    zero = np.array(point, getattr(ml_dtypes, name.lower()))
    q, y = compile(_quantized(getattr(TensorProto, name), zero), "cpu1", "single").run(VALUES)
    wanted = np.clip(np.round(VALUES) + point, least, greatest)
    assert q.dtype == ("uint8" if name.startswith("U") else "int8")
    assert np.array_equal(q, wanted)
    assert np.array_equal(y, wanted - point)


def test_casts_to_four_bit_floating_point():
    node = helper.make_node("Cast", ["x"], ["y"], to=TensorProto.FLOAT4E2M1)
    info = helper.make_tensor_value_info
    graph = helper.make_graph([node], "g", [info("x", 1, [12])], [info("y", TensorProto.FLOAT4E2M1, [12])])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 25)], ir_version=13)
    found = compile(model, "cpu1", "single").run(VALUES)
    assert found.dtype == "float32"
    assert np.array_equal(found, VALUES.astype(ml_dtypes.float4_e2m1fn).astype("float32"))


def test_input_of_four_bits():
    node = helper.make_node("Cast", ["x"], ["y"], to=TensorProto.FLOAT)
    info = helper.make_tensor_value_info
    graph = helper.make_graph([node], "g", [info("x", TensorProto.INT4, [4])], [info("y", 1, [4])])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 25)], ir_version=13)
    given = np.array([-8, -1, 0, 7], "int8")
    assert np.array_equal(compile(model, "cpu1", "single").run(given), given)
