"""LSTM, GRU and RNN against ONNX Runtime; LSTM on 8-bit weights against exact sums."""

from __future__ import annotations

import platform
from typing import Any

import numpy as np
import pytest
import tvm
from onnx import TensorProto, helper
from tvm import tirx
from tvm.script.ir_builder import IRBuilder
from tvm.tirx.script import builder as T  # noqa: N812

import tvm_sched.relax
from tvm_frontends.kernels.recurrent import ByteProducts, make_activation
from tvm_sched.relax.toolchain.compile_target import CompileTarget, features_of
from tvm_sched_runtime.errors import InputError

from .single_node import EVERYTHING, check_close, node_model, recurrent_values, run_both


@pytest.mark.parametrize("operator", ["LSTM", "GRU", "RNN"])
@pytest.mark.parametrize(
    ("shape", "direction", "given", "attributes"),
    [
        ((5, 1, 3, 4), "forward", (), {}),
        ((4, 3, 3, 37), "forward", ("bias", "first_h"), {}),
        ((5, 4, 3, 17), "reverse", EVERYTHING, {}),
        ((3, 4, 6, 16), "bidirectional", EVERYTHING, {}),
        ((5, 2, 6, 16), "bidirectional", ("bias",), {"clip": 0.3}),
    ],
)
@pytest.mark.sampled(6)
def test_like_onnx_runtime(
    operator: str, shape: Any, direction: str, given: tuple[str, ...], attributes: dict[str, Any]
) -> None:
    values, inputs = recurrent_values(operator, shape, 2 if direction == "bidirectional" else 1, given)
    outputs = 3 if operator == "LSTM" else 2
    mine, right, _ = run_both(
        operator, values, inputs, outputs, hidden_size=shape[3], direction=direction, **attributes
    )
    check_close(mine, right, 2e-6)


@pytest.mark.parametrize("given", [(), ("bias", "first_h", "lengths")])
def test_reset_after_the_product(given: tuple[str, ...]) -> None:
    values, inputs = recurrent_values("GRU", (5, 2, 6, 20), 2, given)
    mine, right, _ = run_both(
        "GRU", values, inputs, 2, hidden_size=20, direction="bidirectional", linear_before_reset=1
    )
    check_close(mine, right, 2e-6)


def test_input_and_forget_gate_coupled() -> None:
    values, inputs = recurrent_values("LSTM", (5, 2, 6, 20), 1, EVERYTHING)
    mine, right, _ = run_both("LSTM", values, inputs, 3, hidden_size=20, input_forget=1)
    check_close(mine, right, 2e-6)


@pytest.mark.parametrize(
    ("name", "constants"),
    [
        ("Relu", {}),
        ("Sigmoid", {}),
        ("Affine", {"activation_alpha": [0.7], "activation_beta": [0.3]}),
        ("LeakyRelu", {}),
        ("ThresholdedRelu", {"activation_alpha": [0.2]}),
        ("ScaledTanh", {"activation_alpha": [0.7], "activation_beta": [0.3]}),
        ("HardSigmoid", {}),
        ("Elu", {}),
        ("Softsign", {}),
        ("Softplus", {}),
    ],
)
def test_activations(name: str, constants: dict[str, Any]) -> None:
    values, inputs = recurrent_values("RNN", (4, 2, 3, 4), 1, ("bias", "first_h"))
    mine, right, _ = run_both("RNN", values, inputs, 2, hidden_size=4, activations=[name], **constants)
    check_close(mine, right, 2e-6)


def test_constants_go_to_the_functions_that_take_them() -> None:
    values, inputs = recurrent_values("RNN", (5, 2, 6, 20), 2, ("bias",))
    constants = {"activation_alpha": [0.2, 0.4], "activation_beta": [0.3]}
    mine, right, _ = run_both(
        "RNN", values, inputs, 2, hidden_size=20, direction="bidirectional", activations=["LeakyRelu", "Affine"], **constants
    )  # fmt: skip
    check_close(mine, right, 2e-6)


def _declare(model: Any, *shapes: tuple[int, ...]) -> None:
    """Set the types of the outputs of a model that ONNX Runtime does not run."""
    for info, shape in zip(model.graph.output, shapes, strict=True):
        info.CopyFrom(helper.make_tensor_value_info(info.name, TensorProto.FLOAT, shape))


@pytest.mark.parametrize("operator", ["LSTM", "GRU", "RNN"])
def test_batch_first_is_the_same_transposed(operator: str) -> None:
    """ONNX Runtime refuses ``layout`` 1, so the other layout is what it is compared with."""
    values, inputs = recurrent_values(operator, (5, 2, 6, 8), 1, ("bias", "first_h", "first_c"))
    swapped = [v if v is None or k in (1, 2, 3) else v.transpose(1, 0, 2) for k, v in enumerate(values)]
    outputs = 3 if operator == "LSTM" else 2
    results = []
    for layout, given in ((0, values), (1, swapped)):
        model = node_model(operator, [None if v is None else np.ascontiguousarray(v) for v in given], inputs, outputs,
                           hidden_size=8, layout=layout)  # fmt: skip
        y, last = ((5, 1, 2, 8), (1, 2, 8)) if layout == 0 else ((2, 5, 1, 8), (2, 1, 8))
        _declare(model, y, *[last] * (outputs - 1))
        results.append(tvm_sched.relax.compile(model, "cpu1", "single").run(*(given[k] for k in inputs)))
    (y_first, *last_first), (y_swapped, *last_swapped) = results
    np.testing.assert_allclose(y_swapped, y_first.transpose(2, 0, 1, 3), atol=1e-6)
    for a, b in zip(last_swapped, last_first, strict=True):
        np.testing.assert_allclose(a, b.transpose(1, 0, 2), atol=1e-6)


def test_two_operators_for_a_hundred_steps() -> None:
    """Weights are packed when the model is compiled; the operations that are counted are those of the products."""
    values, inputs = recurrent_values("LSTM", (100, 1, 16, 32), 1, ("bias",))
    mine, right, compiled = run_both("LSTM", values, inputs, 3, hidden_size=32)
    check_close(mine, right, 2e-6)
    kernel = next(o for o in compiled.problem.graph.operators if o.kind == "lstm_layer")
    products = 2 * 100 * 4 * 32 * 32
    assert products <= kernel.flops <= 1.1 * products
    assert len(compiled.problem.graph.operators) <= 3


def test_activation_without_default_is_refused() -> None:
    values, inputs = recurrent_values("RNN", (4, 2, 3, 4), 1, ())
    model = node_model("RNN", values, inputs, 1, hidden_size=4, activations=["Affine"])
    _declare(model, (4, 1, 2, 4))
    with pytest.raises(InputError, match=r"RNN \(node 'node'\).*'Affine' needs alpha and beta"):
        tvm_sched.relax.compile(model, "cpu1", "single")


def test_unknown_activation_is_refused() -> None:
    with pytest.raises(ValueError, match="'Swish' is unknown; allowed are relu, tanh"):
        make_activation("Swish")


def _dynamically_quantized(batch: int, direction: str, hidden: int = 16) -> tuple[list[Any], dict[str, Any]]:
    random = np.random.default_rng(1)
    directions = 2 if direction == "bidirectional" else 1
    steps, size = 6, 10
    x = np.repeat(random.standard_normal((steps, 1, size)).astype("float32"), batch, 1)
    weights = [random.integers(-127, 128, (directions, k, 4 * hidden)).astype("int8") for k in (size, hidden)]
    bias = (0.1 * random.standard_normal((directions, 8 * hidden))).astype("float32")
    state = np.repeat((0.5 * random.standard_normal((2, directions, 1, hidden))).astype("float32"), batch, 2)
    scales = []
    for _ in range(2):
        scales += [random.uniform(0.001, 0.003, (directions, 4 * hidden)).astype("float32")]
        scales += [np.zeros((directions, 4 * hidden), "int8")]
    attributes = {"domain": "com.microsoft", "direction": direction, "hidden_size": hidden}
    return [x, *weights, bias, None, *state, None, *scales], attributes


@pytest.mark.sampled(2)
@pytest.mark.parametrize("direction", ["forward", "bidirectional"])
def test_dynamically_quantized(direction: str) -> None:
    """The state is rounded to 8 bits before each step; equal sequences of a batch give what one alone gives."""
    values, attributes = _dynamically_quantized(1, direction)
    mine, right, _ = run_both("DynamicQuantizeLSTM", values, [0, 5, 6], 3, **attributes)
    check_close(mine, right, 1e-5)
    values, attributes = _dynamically_quantized(2, direction)
    both, _, _ = run_both("DynamicQuantizeLSTM", values, [0, 5, 6], 3, **attributes)
    for one, two in zip(mine, both, strict=True):
        check_close([np.repeat(one, 2, one.ndim - 2)], [two], 1e-6)


@pytest.mark.sampled(4)
@pytest.mark.parametrize(
    ("processor", "hidden", "batch"),
    [("x86-64-v2", 10, 1), ("x86-64-v3", 37, 2), ("x86-64-v4", 37, 1), ("native", 66, 1)],
)
def test_dynamically_quantized_with_bytes(processor: str, hidden: int, batch: int) -> None:
    """Steps multiply bytes by the instructions of each processor; hidden units need not fill vectors."""
    if processor != "native" and (platform.machine() != "x86_64" or not CompileTarget.of(processor).runs_here()):
        pytest.skip(f"this processor is not an {processor}")
    values, attributes = _dynamically_quantized(batch, "forward", hidden)
    mine, right, _ = run_both("DynamicQuantizeLSTM", values, [0, 5, 6], 3, processor, **attributes)
    check_close(mine, right, 1e-5)


@pytest.mark.parametrize("lanes", [4, 8, 16])
@pytest.mark.parametrize(
    ("instruction", "features"),
    [
        ("pmaddwd", {4: "sse4.1", 8: "avx2", 16: "avx512bw"}),
        ("vpdpbusd", {4: "avx512vnni", 8: "avxvnni", 16: "avx512vnni"}),
    ],
)
def test_products_of_bytes(instruction: Any, features: dict[int, str], lanes: int) -> None:
    """Sums of the greatest products are exact with each instruction."""
    host = CompileTarget.of().host
    if features[lanes] not in features_of(host):
        pytest.skip(f"this processor has no {features[lanes]}")
    with IRBuilder() as builder, T.prim_func(s_tir=True):
        T.func_name("dot")
        numbers, weights = (T.arg(n, T.buffer((s,), d)) for n, s, d in (("a", 4, "uint8"), ("b", 4 * lanes, "int8")))
        sums = T.arg("c", T.buffer((lanes,), "int32"))
        every = tirx.Ramp(0, 1, lanes)
        four = tirx.reinterpret("int32", numbers[tirx.Ramp(0, 1, 4)])
        columns = weights[tirx.Ramp(0, 1, 4 * lanes)]
        T.buffer_store(sums, ByteProducts(instruction, lanes).add(sums[every], four, columns, lanes), [every])
    dot = tvm.compile(tvm.IRModule({"dot": builder.get()}), target=host)["dot"]
    random = np.random.default_rng(2)
    for _ in range(20):
        a = random.choice([0, 1, 127, 128, 255], 4).astype("uint8")
        b = random.choice([-128, -127, -1, 0, 1, 127], (lanes, 4)).astype("int8")
        c = random.integers(-(1 << 30), 1 << 30, lanes).astype("int32")
        result = tvm.runtime.tensor(c)
        dot(tvm.runtime.tensor(a), tvm.runtime.tensor(b.ravel()), result)
        np.testing.assert_array_equal(result.numpy(), c + b.astype(int) @ a.astype(int))


def test_only_the_last_cell_is_read() -> None:
    values, inputs = recurrent_values("LSTM", (3, 2, 4, 5), 1, ())
    model = node_model("LSTM", values, inputs, 3, hidden_size=5)
    given = [values[k] for k in inputs]
    whole = tvm_sched.relax.compile(model, "cpu1", "single").run(*given)
    model.graph.node[0].output[:] = ["", "", "o2"]
    del model.graph.output[:2]
    model.graph.output[0].CopyFrom(helper.make_tensor_value_info("o2", TensorProto.FLOAT, (1, 2, 5)))
    np.testing.assert_allclose(
        tvm_sched.relax.compile(model, "cpu1", "single").run(*given), whole[2], rtol=1e-5, atol=1e-6
    )
