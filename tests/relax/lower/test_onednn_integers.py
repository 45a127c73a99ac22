"""Products of 8-bit tensors: ONNX's quantised operators and its QDQ form have the right values on any processor.

On those with instructions for sums of 8-bit products they reach oneDNN's exact kernels.
"""

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from tvm import relax

from frontends.onnx import exact
from tvm_sched.relax import compile, load_model
from tvm_sched.relax.lower.kernel_libraries import get_library
from tvm_sched.relax.lower.kernel_libraries.onednn import integer_products as integers
from tvm_sched.relax.lower.kernel_libraries.onednn.byte_functions import WithoutRoundTrips
from tvm_sched.relax.lower.kernel_libraries.onednn.describe import dense
from tvm_sched.relax.lower.kernel_libraries.onednn.products import implementation
from tvm_sched.relax.toolchain.compile_target import CompileTarget

IMAGE = (2, 6, 13, 11)
UNSIGNED = np.uint8(121)


class Graph:
    """An ONNX graph being written, with constants by name."""

    def __init__(self):
        self.rng, self.nodes, self.constants = np.random.default_rng(4), [], []

    def constant(self, value):
        name = f"c{len(self.constants)}"
        self.constants.append(numpy_helper.from_array(np.asarray(value), name))
        return name

    def node(self, kind, *inputs, count=1, **attributes):
        outputs = [f"v{len(self.nodes)}_{k}" for k in range(count)]
        self.nodes.append(helper.make_node(kind, list(inputs), outputs, **attributes))
        return outputs[0] if count == 1 else outputs

    def bytes(self, *shape, low=-127, high=128, dtype="int8"):
        return self.constant(self.rng.integers(low, high, shape).astype(dtype))

    def scale(self, *shape):
        return self.constant(self.rng.uniform(0.01, 0.1, shape).astype("float32"))

    def model(self, result, shape, dtype=TensorProto.FLOAT):
        given, made = (
            helper.make_tensor_value_info(n, t, s)
            for n, t, s in (("x", TensorProto.FLOAT, shape), (result, dtype, None))
        )
        graph = helper.make_graph(self.nodes, "g", [given], [made], self.constants)
        return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def through_bytes(g, x, zero):
    """A tensor quantised and dequantised again: the pair around every operator of the QDQ form."""
    scale, zero = g.constant(np.float32(0.04)), g.constant(zero)
    return g.node("DequantizeLinear", g.node("QuantizeLinear", x, scale, zero), scale, zero)


def qdq_convolution(g, each=True, zero=UNSIGNED, **attributes):
    groups = attributes.get("group", 1)
    scale = g.scale(8) if each else g.scale()
    zeros = g.constant(np.zeros(8 if each else (), "int8"))
    weights = g.node("DequantizeLinear", g.bytes(8, 6 // groups, 3, 3), scale, zeros, axis=0)
    bias = g.node("DequantizeLinear", g.bytes(8, low=-900, high=900, dtype="int32"), g.constant(np.float32(0.002)))
    made = g.node("Conv", through_bytes(g, "x", zero), weights, bias, **attributes)
    return through_bytes(g, g.node("Relu", made), zero)


def qlinear_convolution(g):
    data = g.node("QuantizeLinear", "x", g.constant(np.float32(0.04)), g.constant(np.uint8(130)))
    inputs = [g.constant(np.float32(0.04)), g.constant(np.uint8(130)), g.bytes(8, 6, 3, 3), g.scale(8)]
    zeros = [g.constant(np.zeros(8, "int8")), g.constant(np.float32(0.5)), g.constant(np.uint8(7))]
    made = g.node(
        "QLinearConv", data, *inputs, *zeros, g.bytes(8, low=-900, high=900, dtype="int32"), pads=[1, 0, 2, 1]
    )
    return g.node("DequantizeLinear", made, g.constant(np.float32(0.5)), g.constant(np.uint8(7)))


def qdq_product(g):
    weights = g.node("DequantizeLinear", g.bytes(11, 20), g.scale(20), g.constant(np.zeros(20, "int8")), axis=1)
    return through_bytes(g, g.node("MatMul", through_bytes(g, "x", np.int8(-9)), weights), np.int8(3))


def dynamic_product(g):
    data, scale, zero = g.node("DynamicQuantizeLinear", "x", count=3)
    made = g.node("MatMulInteger", data, g.bytes(11, 20), zero)
    return g.node("Mul", g.node("Cast", made, to=TensorProto.FLOAT), scale)


def signed_convolution(g):
    data = g.node("QuantizeLinear", "x", g.constant(np.float32(0.02)), g.constant(np.int8(0)))
    made = g.node("ConvInteger", data, g.bytes(8, 6, 1, 1), strides=[2, 2])
    return g.node("Cast", made, to=TensorProto.FLOAT)


def dynamic_dequantised(g):
    """Rows that are dequantised with a scale of their own, reshaped and multiplied by uint8 weights of a zero point."""
    data = g.node("DequantizeLinear", *g.node("DynamicQuantizeLinear", "x", count=3))
    data = g.node("Reshape", data, g.constant(np.array([-1, 11])))
    weights = g.bytes(11, 20, low=0, high=256, dtype="uint8")
    return g.node("MatMul", data, g.node("DequantizeLinear", weights, g.scale(), g.constant(np.uint8(117))))


def depthwise(g):
    data = g.node("QuantizeLinear", "x", g.constant(np.float32(0.04)), g.constant(UNSIGNED))
    made = g.node("ConvInteger", data, g.bytes(6, 1, 3, 3), g.constant(UNSIGNED), group=6, pads=[1, 1, 1, 1])
    return g.node("Cast", made, to=TensorProto.FLOAT)


def bias_at_run_time(g):
    """A bias that is divided by the scale of the data and rounded down, as some converters write it."""
    data, scale, zero = g.node("DynamicQuantizeLinear", "x", count=3)
    made = g.node("ConvInteger", data, g.bytes(8, 6, 3, 3), zero)
    bias = g.node("Floor", g.node("Div", g.constant(g.rng.uniform(-9, 9, (1, 8, 1, 1)).astype("float32")), scale))
    made = g.node("Add", made, g.node("Cast", bias, to=TensorProto.INT32))
    made = g.node("Mul", g.node("Cast", made, to=TensorProto.FLOAT), scale)
    return g.node("Mul", made, g.node("Sigmoid", made))


def qdq_activations(g, zero=UNSIGNED, read_again=False):
    """A convolution, then x * sigmoid(x + 0.5), with quantised operands; ``read_again`` also adds x at the end."""
    convolved = qdq_convolution(g, zero=zero)
    shifted = through_bytes(g, g.node("Add", convolved, g.constant(np.float32(0.5))), zero)
    share = through_bytes(g, g.node("Sigmoid", shifted), zero)
    made = through_bytes(g, g.node("Mul", convolved, share), zero)
    return g.node("Add", made, convolved) if read_again else made


CASES = {
    "QDQ, activation": qdq_activations,
    "QDQ, signed activation": lambda g: qdq_activations(g, zero=np.int8(-5)),
    "QDQ, activation and another reader": lambda g: qdq_activations(g, read_again=True),
    "QDQ, a scale for each output": lambda g: qdq_convolution(g, pads=[1, 1, 1, 1]),
    "QDQ, one scale, signed": lambda g: qdq_convolution(g, each=False, zero=np.int8(-5), strides=[2, 1]),
    "QDQ, groups": lambda g: qdq_convolution(g, group=2, pads=[2, 1, 0, 1], dilations=[2, 1]),
    "QLinearConv": qlinear_convolution,
    "QDQ product": qdq_product,
    "dynamic product": dynamic_product,
    "ConvInteger of int8": signed_convolution,
    "depthwise": depthwise,
    "bias at run time": bias_at_run_time,
    "rows dequantised at run time": dynamic_dequantised,
}


def has_exact_kernels():
    """Whether oneDNN has exact kernels here: its own limit (ONEDNN_MAX_CPU_ISA) may hide instructions."""
    if get_library("onednn").why_not() is not None or not integers.has_instructions(CompileTarget()):
        return False
    operands = [dense((16, 64)), dense((64, 64), parameter=True), dense((16, 64))]
    typed = [{**each, "type": dtype} for each, dtype in zip(operands, ("uint8", "int8", "int32"), strict=True)]
    return integers.is_exact(implementation({"primitive": "matmul", "operands": typed}))


@pytest.mark.sampled(4)
@pytest.mark.parametrize(
    ("make", "processor"),
    [
        pytest.param(make, processor, id=f"{name}, {processor}", marks=[] if chosen else [pytest.mark.thorough])
        for n, (name, make) in enumerate(CASES.items())
        for processor, chosen in (("native", True), ("x86-64-v2", n % 2), ("x86-64-v3", not n % 2))
    ],
)
def test_values(make, processor, tmp_path):
    if not CompileTarget.of(processor).runs_here():
        pytest.skip(f"this processor does not run kernels for {processor}")
    g = Graph()
    model = g.model(make(g), IMAGE)
    x = np.random.default_rng(1).standard_normal(IMAGE).astype("float32") * 2
    x[0, 0, 0, :3] = np.inf, -np.inf, 1e9
    if make in (dynamic_product, dynamic_dequantised, bias_at_run_time):
        x = np.clip(x, -5, 5)
    # Numbers above 1e6 saturate as 1e6 does; onnx.reference takes them through int32, which does not hold all of them.
    wanted = exact.evaluate(model, {"x": np.clip(x, -1e6, 1e6)})[0]
    onnx.save(model, tmp_path / "m.onnx")
    compiled = compile(tmp_path / "m.onnx", "cpu1", "single", processor=processor)
    np.testing.assert_allclose(compiled.run(x), wanted, rtol=1e-5, atol=0.041)  # a unit
    compiled.export(tmp_path / "m.so")
    kernels = {name for name in (b"onednn.integer_", b"onednn.exact_") if name in (tmp_path / "m.so").read_bytes()}
    # With instructions for 8 bits, oneDNN computes what it has a fast kernel for.
    assert len(kernels) == 1
    assert kernels == {b"onednn.exact_"} or (processor == "native" and has_exact_kernels())


@pytest.mark.parametrize("processor", ["x86-64-v2", "x86-64-v3"])
@pytest.mark.parametrize("read_again", [False, True])
def test_activation_as_a_table(read_again, processor, tmp_path):
    """What lies between two 8-bit values is a table of the kernel, unless something else reads the first."""
    g = Graph()
    onnx.save(g.model(qdq_activations(g, read_again=read_again), IMAGE), tmp_path / "m.onnx")
    compile(tmp_path / "m.onnx", "cpu1", "single", processor=processor).export(tmp_path / "m.so")
    assert (b"quantize_table" in (tmp_path / "m.so").read_bytes()) != read_again


@pytest.mark.sampled(3)
@pytest.mark.parametrize("dtype", ["uint8", "int8"])
@pytest.mark.parametrize(("divisor", "point", "rounds"), [(6.0, 7, 0), (5.9, 7, 1), (6.0, 8, 1)])
def test_round_trips_are_left_out(divisor, point, rounds, dtype, tmp_path):
    """A tensor that is dequantised, divided by 6 and quantised with a sixth of the scale is the one before."""
    g = Graph()
    scale, zero = np.float32(0.0413), np.dtype(dtype).type(7)
    data = g.node("DequantizeLinear", "x", g.constant(scale), g.constant(zero))
    divided = g.node("Div", data, g.constant(np.float32(divisor)))
    constants = g.constant(scale / np.float32(6)), g.constant(np.dtype(dtype).type(point))
    again = g.node("DequantizeLinear", g.node("QuantizeLinear", divided, *constants), *constants)
    mean = g.node("ReduceMean", divided, axes=[2, 3], keepdims=1)
    model = g.model(g.node("Mul", again, mean), (1, 16, 4, 4))
    model.graph.input[0].type.tensor_type.elem_type = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    onnx.save(model, tmp_path / "m.onnx")
    lowered = WithoutRoundTrips(relax.transform.FoldConstant()(load_model(tmp_path / "m.onnx").mod)).run()
    assert str(lowered).count("R.round") == rounds
    x = np.arange(256).astype(dtype).reshape(1, 16, 4, 4)
    wanted = exact.evaluate(model, {"x": x})[0]
    np.testing.assert_allclose(compile(tmp_path / "m.onnx", "cpu1", "single").run(x), wanted, rtol=1e-5)


def test_factored():
    rng = np.random.default_rng(2)
    whole = rng.integers(-127, 128, (5, 3, 3)).astype("int8")
    whole[3] = 0
    scales = rng.uniform(1e-4, 3, 5).astype("float32")
    weights = whole.astype("float32") * scales[:, None, None]
    found, factors = integers.factored(weights, 0)
    np.testing.assert_array_equal(found.astype("float32") * factors[:, None, None], weights)
    found, factors = integers.factored(np.moveaxis(weights, 0, 1), 1)
    np.testing.assert_array_equal(np.moveaxis(found, 1, 0).astype("float32") * factors[:, None, None], weights)


@pytest.mark.parametrize("odd", [0.30001, np.nan, np.inf, 300.0])
def test_weights_that_are_no_bytes(odd):
    weights = np.ones((2, 4), np.float32)
    weights[0, 1], weights[0, 2] = odd, 2.0
    assert integers.factored(weights, 0) is None


def test_fractions_are_no_zero_point(tmp_path):
    """(x - 0.5) * scale: pictures are normalised so, and no integer stands for 0.5."""
    g = Graph()
    data = g.node("Cast", g.node("QuantizeLinear", "x", g.constant(np.float32(1)), g.constant(np.uint8(0))), to=1)
    data = g.node("Mul", g.node("Sub", data, g.constant(np.float32(0.5))), g.constant(np.float32(0.25)))
    model = g.model(g.node("MatMul", data, g.constant(np.eye(11, 5, dtype="float32"))), IMAGE)
    onnx.save(model, tmp_path / "m.onnx")
    x = np.full(IMAGE, 3, np.float32)
    np.testing.assert_allclose(compile(tmp_path / "m.onnx", "cpu1", "single").run(x), np.full((*IMAGE[:3], 5), 0.625))


def product(source):
    """``main`` of a uint8 matrix: the product of what is made of it with whole numbers."""
    builder, x = relax.BlockBuilder(), relax.Var("x", relax.TensorType((16, 32), "uint8"))
    with builder.function("main", [x]):
        with builder.dataflow():
            result = builder.emit_output(relax.op.matmul(builder.normalize(source(x)), relax.const(WHOLE)))
        builder.emit_func_output(result)
    return builder.get()


WHOLE = np.random.default_rng(5).integers(100, 128, (32, 16)).astype("float32")
FAR = np.float32(2**20)


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        (lambda x: relax.op.astype(relax.op.astype(x, "int8"), "float32"), lambda x: x.astype("int8")),
        (lambda x: relax.op.astype(x * relax.const(np.uint8(3)), "float32"), lambda x: x * np.uint8(3)),
        (
            lambda x: (relax.op.astype(x, "float32") - relax.const(FAR)) * relax.const(np.float32(2)),
            lambda x: (x.astype("float64") - FAR) * 2,
        ),
    ],
    ids=["wraps as int8", "wraps as it is multiplied", "a zero point that 8 bits do not hold"],
)
def test_what_is_no_8_bit_tensor_less_its_zero_point(source, expected):
    x = np.arange(512).astype("uint8").reshape(16, 32)
    found = compile(product(source), "cpu1", "single").run(x)
    np.testing.assert_allclose(found, expected(x).astype("float64") @ WHOLE, rtol=1e-5, atol=1e-2)
