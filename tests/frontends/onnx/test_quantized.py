"""Quantised operators against exact arithmetic."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import tvm_sched.relax
from tvm_sched.relax.toolchain.compile_target import CompileTarget
from tvm_sched_runtime.errors import InputError

from .single_node import check_close, node_model, run_both

_random = np.random.default_rng(0)


def _u8(*shape: int) -> Any:
    return _random.integers(0, 256, shape).astype("uint8")


def _i8(*shape: int) -> Any:
    return _random.integers(-128, 128, shape).astype("int8")


def _f(*shape: int) -> Any:
    return _random.standard_normal(shape).astype("float32")


def _scale(value: float) -> Any:
    return np.array(value, "float32")


def _point(value: int, dtype: str = "uint8") -> Any:
    return np.array(value, dtype)


@pytest.fixture(autouse=True)
def _same_values_in_any_order() -> None:
    global _random
    _random = np.random.default_rng(0)


# Scales below are such that no sum lies midway between two units, where the last bit of a scale's product decides.
_X, _POSITIVE = _f(2, 6, 5, 5), np.abs(_f(8)) * 0.01 + 0.001


@pytest.mark.parametrize(
    ("values", "attributes"),
    [
        ([_X, _scale(0.05), _point(3, "int8")], {}),
        ([_X, _scale(0.05)], {}),
        ([np.array([0.5, 1.5, 2.5, -0.5, -1.5, 300], "float32"), _scale(1), _point(0, "int8")], {}),
        ([_X, _scale(0.0005), _point(300, "uint16")], {}),
        ([_X, np.abs(_f(6)) + 0.01, _i8(6)], {"axis": 1}),
        ([_X, np.abs(_f(2, 2, 5, 5)) + 0.01, _u8(2, 2, 5, 5)], {"axis": 1, "block_size": 3}),
    ],
)
def test_quantize(values: list[Any], attributes: dict[str, int]) -> None:
    check_close(*run_both("QuantizeLinear", values, [0], **attributes)[:2], 0)


@pytest.mark.parametrize(
    ("values", "attributes"),
    [
        ([_u8(2, 6, 5, 5), _scale(0.05), _point(3)], {}),
        ([_i8(2, 6, 5, 5), _f(6), _i8(6)], {"axis": -3}),
        ([np.array([2**24 + 1, -(2**30) - 1], "int32"), _scale(0.05)], {}),
        ([_i8(2, 6, 5, 5), _f(2, 2, 5, 5), _i8(2, 2, 5, 5)], {"axis": 1, "block_size": 3}),
    ],
)
def test_dequantize(values: list[Any], attributes: dict[str, int]) -> None:
    check_close(*run_both("DequantizeLinear", values, [0], **attributes)[:2], 1e-7)


@pytest.mark.parametrize("x", [_X, _X * 0, np.abs(_X), -np.abs(_X)])
def test_dynamic_quantize(x: Any) -> None:
    check_close(*run_both("DynamicQuantizeLinear", [x], [0], 3)[:2], 1e-7)


@pytest.mark.parametrize(
    ("values", "inputs", "kernel"),
    [
        ([_u8(3, 40), _i8(40, 7), _point(7), _point(2, "int8")], [0], None),
        ([_u8(2, 3, 400), _i8(400, 7), _point(7), _i8(7)], [0], False),
        ([np.full((3, 400), 255, "uint8"), np.full((400, 7), 255, "uint8")], [0, 1], False),
        ([_u8(3, 40), _u8(40, 7)], [0, 1], True),
    ],
)
def test_matmul_integer(values: list[Any], inputs: list[int], kernel: bool | None) -> None:
    """In float32, by the fast kernels, only where every sum is below 2^24; None: there may be kernels for integers."""
    mine, right, compiled = run_both("MatMulInteger", values, inputs)
    check_close(mine, right, 0)
    tensors = {tensor.dtype for tensor in compiled.problem.graph.tensors}
    assert kernel is None or ("float32" in tensors) == kernel


@pytest.mark.parametrize("processor", ["native", "x86-64-v2", "x86-64-v3", "x86-64-v4"])
@pytest.mark.parametrize("constant", [False, True])
@pytest.mark.parametrize("terms", [8, 400])
def test_sums_do_not_saturate(terms: int, constant: bool, processor: str) -> None:
    """Pairs of these products exceed 16 bits, where AVX2's instruction for 8-bit integers saturates."""
    values = [np.full((16, terms), 255, "uint8"), np.repeat(np.array([[127], [-128]], "int8"), terms, 1).T.copy()]
    if not CompileTarget.of(processor).runs_here():
        pytest.skip(f"this processor does not run kernels for {processor}")
    mine, right, _ = run_both("MatMulInteger", values, [0] if constant else [0, 1], processor=processor)
    np.testing.assert_array_equal(right[0], np.tile(np.array([127, -128]) * 255 * terms, (16, 1)))
    check_close(mine, right, 0)


def test_conv_integer() -> None:
    values = [_u8(1, 3, 9, 9), _u8(4, 3, 3, 3), _point(7), _point(9)]
    check_close(*run_both("ConvInteger", values, [0], pads=[1, 1, 1, 1])[:2], 0)
    values = [_u8(1, 40, 9, 9), _u8(4, 40, 3, 3), _point(7)]  # sums too large for float32
    check_close(*run_both("ConvInteger", values, [0], pads=[1, 1, 1, 1], strides=[2, 2])[:2], 0)


@pytest.mark.parametrize(
    ("weight_scale", "attributes"),
    [
        (_scale(0.003173), {}),
        (_POSITIVE, {"pads": [1, 1, 1, 1], "strides": [2, 2]}),
        (_POSITIVE, {"group": 2, "auto_pad": "SAME_UPPER"}),
    ],
)
def test_qlinear_conv(weight_scale: Any, attributes: dict[str, Any]) -> None:
    weights = _i8(8, 16 // attributes.get("group", 1), 3, 3)
    zero = np.zeros(weight_scale.shape, "int8")
    bias = _random.integers(-5000, 5000, 8).astype("int32")
    values = [_u8(1, 16, 9, 9), _scale(0.02), _point(120), weights, weight_scale, zero, _scale(0.1), _point(100), bias]
    check_close(*run_both("QLinearConv", values, [0], **attributes)[:2], 0)


@pytest.mark.parametrize("columns", [False, True])
def test_qlinear_matmul(columns: bool) -> None:
    right = [_POSITIVE[:7], np.zeros(7, "int8")] if columns else [_scale(0.012347), _point(3, "int8")]
    values = [_u8(2, 3, 40), _scale(0.02), _point(120), _i8(40, 7), *right, _scale(0.05), _point(100)]
    check_close(*run_both("QLinearMatMul", values, [0])[:2], 0)


_TEN = [_u8(3, 40), _scale(0.02), _point(120)]


@pytest.mark.parametrize(
    ("operator", "values", "inputs", "tolerance", "attributes"),
    [
        ("DynamicQuantizeMatMul", [_f(3, 40), _i8(40, 7), np.abs(_f(7)), np.zeros(7, "int8"), _f(7)], [0], 1e-6, {}),
        ("MatMulIntegerToFloat", [_u8(3, 40), _i8(40, 7), _scale(0.1), _scale(0.2), _point(7), None, _f(7)], [0], 1e-6, {}),
        ("QLinearAdd", [*_TEN, _u8(40), _scale(0.03), _point(7), _scale(0.1), _point(99)], [0], 1, {}),
        ("QLinearMul", [*_TEN, _u8(40), _scale(0.03), _point(7), _scale(0.1), _point(99)], [0], 1, {}),
        ("QLinearSigmoid", [*_TEN, _scale(0.004), _point(0)], [0], 1, {}),
        ("QLinearLeakyRelu", [*_TEN, _scale(0.004), _point(9)], [0], 1, {"alpha": 0.1}),
        ("QLinearConcat", [_scale(0.03), _point(3), *_TEN, _u8(3, 4), _scale(0.04), _point(9)], [2, 5], 1, {"axis": 1}),
        ("QLinearGlobalAveragePool", [_u8(1, 3, 8, 8), _scale(0.02), _point(1), _scale(0.01), _point(9)], [0], 1, {}),
        ("QGemm", [*_TEN, _i8(7, 40), _scale(0.01), _point(0, "int8"), np.arange(7, dtype="int32"), _scale(0.1), _point(9)],
         [0], 0, {"transB": 1}),
        ("FusedMatMul", [_f(2, 5, 3), _f(2, 4, 5)], [0, 1], 1e-6, {"transA": 1, "transB": 1, "alpha": 0.5}),
        ("FusedConv", [_f(1, 3, 8, 8), _f(4, 3, 3, 3), _f(4)], [0], 1e-6,
         {"activation": "LeakyRelu", "activation_params": [0.2]}),
        ("MatMulNBits", [_f(3, 60), _u8(7, 2, 16), _f(14), _u8(7)], [0], 1e-5,
         {"K": 60, "N": 7, "bits": 4, "block_size": 32}),
        ("MatMulNBits", [_f(3, 60), _u8(7, 2, 8), _f(14), _u8(7)], [0], 1e-5,
         {"K": 60, "N": 7, "bits": 2, "block_size": 32}),
        ("MatMulNBits", [_f(3, 60), _u8(7, 2, 16), _f(14), _u8(7), np.arange(60, dtype="int32") * 7 % 2], [0], 1e-5,
         {"K": 60, "N": 7, "bits": 4, "block_size": 32}),
    ],
)  # fmt: skip
def test_contributed(operator: str, values: list[Any], inputs: list[int], tolerance: float, attributes: Any) -> None:
    """Results of float arithmetic in between may round to the next integer."""
    check_close(*run_both(operator, values, inputs, domain="com.microsoft", **attributes)[:2], tolerance)


def test_groups_of_packed_weights_out_of_range_are_refused() -> None:
    import onnx

    values = [_f(3, 60), _u8(7, 2, 16), _f(14), _u8(7), np.full(60, 2, "int32")]
    model = node_model("MatMulNBits", values, [0], 1, domain="com.microsoft", K=60, N=7, bits=4, block_size=32)
    model.graph.output[0].CopyFrom(onnx.helper.make_tensor_value_info("o0", onnx.TensorProto.FLOAT, [3, 7]))
    with pytest.raises(
        InputError, match=r"MatMulNBits.*g_idx does not name one of 2 groups for each of K = 60 weights"
    ):
        tvm_sched.relax.compile(model, "cpu1", "single")


def test_reverse_sequence() -> None:
    lengths = np.array([1, 5, 3], "int64")
    for values, attributes in (([_f(5, 3, 2), lengths], {}), ([_f(3, 5), lengths], {"batch_axis": 0, "time_axis": 1})):
        check_close(*run_both("ReverseSequence", values, [0, 1], **attributes)[:2], 0)


def test_scales_of_another_length_are_refused() -> None:
    import onnx

    model = node_model("QuantizeLinear", [_X, np.full(_X.shape[1] + 1, 0.05, "float32")], [0], 1, axis=1)
    model.graph.output[0].CopyFrom(onnx.helper.make_tensor_value_info("o0", onnx.TensorProto.UINT8, _X.shape))
    with pytest.raises(InputError, match=rf"QuantizeLinear \(node 'node'\).*axis 1 of x has {_X.shape[1]}"):
        tvm_sched.relax.compile(model, "cpu1", "single")


def test_four_bits_are_held_in_a_byte() -> None:
    """The range is that of the smaller type."""
    import onnx

    model = node_model("QuantizeLinear", [_X, _scale(0.05)], [0], 1, output_dtype=onnx.TensorProto.INT4)
    model.graph.output[0].CopyFrom(onnx.helper.make_tensor_value_info("o0", onnx.TensorProto.INT4, _X.shape))
    found = tvm_sched.relax.compile(model, "cpu1", "single").run(_X)
    assert found.dtype == np.int8
    assert (found.min(), found.max()) == (-8, 7)
    np.testing.assert_array_equal(found, np.clip(np.rint(_X / np.float32(0.05)), -8, 7))
