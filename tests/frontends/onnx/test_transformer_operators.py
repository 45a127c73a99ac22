"""Operators that ONNX Runtime's optimiser fuses, against ONNX Runtime, NumPy (no kernel for CPUs) or exact sums (8 bits)."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

import tvm_sched.relax
from tvm_sched_runtime.errors import InputError

from .single_node import check_close, node_model, run_both

_random = np.random.default_rng(0)
MICROSOFT = "com.microsoft"


def _f(*shape: int) -> Any:
    return (_random.standard_normal(shape) / 2).astype("float32")


def _i(*values: Any) -> Any:
    return np.array(values, "int32")


_X, _W, _B = _f(2, 5, 8), _f(8, 24), _f(24)
_QKV = [_f(2, 5, 8), _f(2, 7, 8), _f(2, 7, 12)]
_TOKENS = _random.integers(0, 9, (2, 5)).astype("int32")
_EMBEDDINGS = [_f(9, 8), _f(5, 8), _f(2, 8), _f(8), _f(8)]


@pytest.mark.parametrize(
    ("operator", "values", "inputs", "outputs", "attributes"),
    [
        ("Attention", [_X, _W, _B], [0], 1, {"num_heads": 2}),
        ("Attention", [_X, _W, _B], [0], 1, {"num_heads": 2, "unidirectional": 1, "scale": 0.3}),
        ("Attention", [_X, _W, _B, _i(5, 3)], [0, 3], 1, {"num_heads": 2}),
        ("Attention", [_X, _W, _B, _i(5, 3, 0, 1)], [0, 3], 1, {"num_heads": 2}),
        ("Attention", [_X, _W, _B, _i([1, 1, 1, 1, 1], [0, 1, 1, 1, 0])], [0, 3], 1, {"num_heads": 2, "unidirectional": 1}),
        ("Attention", [_X, _W, _B, _random.integers(0, 2, (2, 5, 5)).astype("int32")], [0, 3], 1,
         {"num_heads": 4, "mask_filter_value": -2.0}),
        ("Attention", [_X, _W, _B, None, _f(2, 2, 2, 3, 4)], [0, 4], 2,
         {"num_heads": 2, "unidirectional": 1}),
        ("Attention", [_X, _f(8, 20), _f(20)], [0], 1, {"num_heads": 2, "qkv_hidden_sizes": [8, 8, 4]}),
        ("MultiHeadAttention", [*_QKV, _f(28)], [0, 1, 2], 1, {"num_heads": 2}),
        ("MultiHeadAttention", [*_QKV, None, _i([1] * 7, [1] * 4 + [0] * 3), _f(1, 2, 5, 7)], [0, 1, 2, 4, 5], 1,
         {"num_heads": 2}),
        ("MultiHeadAttention", [_X, _X, _X, None, None, None, _f(2, 2, 3, 4), _f(2, 2, 3, 4)], [0, 1, 2, 6, 7], 3,
         {"num_heads": 2, "unidirectional": 1}),
        ("SkipLayerNormalization", [_X, _f(2, 5, 8), _f(8), _f(8), _f(8)], [0, 1], 1, {"epsilon": 1e-5}),
        ("SkipLayerNormalization", [_X, _f(2, 5, 8), _f(8)], [0, 1], 1, {}),
        ("SkipSimplifiedLayerNormalization", [_X, _f(2, 5, 8), _f(8), _f(8)], [0, 1], 1, {"epsilon": 1e-5}),
        ("EmbedLayerNormalization", [_TOKENS, _TOKENS % 2, *_EMBEDDINGS], [0, 1], 2, {}),
        ("EmbedLayerNormalization", [_TOKENS, None, *_EMBEDDINGS[:2], None, *_EMBEDDINGS[3:], _i([1] * 5, [1, 1, 0, 0, 0])],
         [0, 7], 2, {"epsilon": 1e-6}),
        ("Gelu", [_X], [0], 1, {}),
        ("BiasGelu", [_X, _f(8)], [0], 1, {}),
        ("FastGelu", [_X, _f(8)], [0], 1, {}),
        ("QuickGelu", [_X], [0], 1, {"alpha": 1.5}),
        ("RotaryEmbedding", [_X, np.array([[0, 1, 2, 3, 4], [3, 4, 5, 6, 7]]), _f(9, 2), _f(9, 2)], [0, 1], 1, {}),
        ("RotaryEmbedding", [_f(2, 3, 5, 8), np.array([2]), _f(9, 2), _f(9, 2)], [0, 1], 1,
         {"interleaved": 1, "rotary_embedding_dim": 4, "num_heads": 3}),
    ],
)  # fmt: skip
@pytest.mark.sampled(6)
def test_like_onnx_runtime(operator: str, values: list[Any], inputs: list[int], outputs: int, attributes: Any) -> None:
    check_close(*run_both(operator, values, inputs, outputs, domain=MICROSOFT, **attributes)[:2], 3e-6)


@pytest.mark.parametrize("mask", [None, _i(5, 4)])
def test_quantized_attention(mask: Any) -> None:
    x, weights = (_random.integers(0, 255, shape).astype("uint8") for shape in ((2, 5, 8), (8, 24)))
    scales = [np.array(scale, "float32") for scale in (0.02, 0.01)]
    values = [x, weights.view("int8"), _B, *scales, mask, np.array(120, "uint8"), np.array(0, "int8")]
    inputs = [0] if mask is None else [0, 5]
    check_close(*run_both("QAttention", values, inputs, domain=MICROSOFT, num_heads=2)[:2], 3e-6)


def _run(operator: str, values: list[Any], shape: tuple[int, ...], **attributes: Any) -> Any:
    model = node_model(operator, values, [0], 1, domain=MICROSOFT, **attributes)
    model.graph.output[0].CopyFrom(helper.make_tensor_value_info("o0", TensorProto.FLOAT, shape))
    return tvm_sched.relax.compile(model, "cpu1", "single").run(values[0])


def test_group_norm() -> None:
    x, scale, shift = _f(1, 3, 4, 6), _f(6), _f(6)
    parts = x.reshape(1, 12, 2, 3)
    mean, deviation = (f(parts, axis=(1, 3), keepdims=True) for f in (np.mean, np.std))
    y = ((parts - mean) / np.sqrt(deviation**2 + 1e-5)).reshape(x.shape) * scale + shift
    found = _run("GroupNorm", [x, scale, shift], x.shape, groups=2, activation=1, epsilon=1e-5)
    check_close([found], [y / (1 + np.exp(-y))], 1e-6)


def test_bias_split_gelu() -> None:
    from scipy.special import ndtr

    x, bias = _f(2, 5, 8), _f(8)
    first, second = np.split(x + bias, 2, axis=-1)
    check_close([_run("BiasSplitGelu", [x, bias], (2, 5, 4))], [first * second * ndtr(second).astype("float32")], 1e-6)


def test_the_sum_of_skip_layer_normalization() -> None:
    """The outputs before it are named, and nobody reads them: optimised files look like that."""
    values = [_X, _f(2, 5, 8), _f(8), _f(8)]
    model = node_model("SkipLayerNormalization", values, [0, 1], 4, domain=MICROSOFT)
    del model.graph.output[1:3]
    for output in model.graph.output:
        output.CopyFrom(helper.make_tensor_value_info(output.name, TensorProto.FLOAT, _X.shape))
    found = tvm_sched.relax.compile(model, "cpu1", "single").run(*values[:2])
    check_close(found[1:], [values[0] + values[1]], 1e-6)


def test_mean_and_deviation_are_refused() -> None:
    model = node_model("SkipLayerNormalization", [_X, _X, _f(8)], [0, 1], 2, domain=MICROSOFT)
    for output in model.graph.output:
        output.CopyFrom(helper.make_tensor_value_info(output.name, TensorProto.FLOAT, _X.shape))
    with pytest.raises(InputError, match=r"SkipLayerNormalization \(node 'node'\).*mean and deviation"):
        tvm_sched.relax.load_model(model)


def test_layouts_of_a_processor_are_refused() -> None:
    model = node_model("Conv", [_f(1, 16, 4, 4), _f(16, 16, 1, 1)], [0], 1, domain="com.microsoft.nchwc")
    model.opset_import.append(onnx.helper.make_opsetid("com.microsoft.nchwc", 1))
    with pytest.raises(InputError, match=r"one kind of processor.*ORT_ENABLE_EXTENDED"):
        tvm_sched.relax.load_model(model)
