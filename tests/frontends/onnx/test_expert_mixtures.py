"""MoE and QMoE of com.microsoft, against ONNX Runtime."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import tvm_sched.relax
from tvm_sched_runtime.errors import InputError

from .single_node import check_close, node_model, run_both

TOKENS, HIDDEN, INNER, EXPERTS = 5, 32, 64, 4
SWIGLU = {"activation_type": "swiglu", "swiglu_fusion": 1, "activation_alpha": 1.702, "activation_beta": 1.0}
_random = np.random.default_rng(0)


def floats(*shape: int) -> Any:
    return (_random.standard_normal(shape) / 2).astype("float32")


def whole(bits: int, *shape: int) -> Any:
    """Random numbers, packed along the last axis."""
    return _random.integers(0, 256, (*shape[:-1], shape[-1] * bits // 8)).astype("uint8")


def router() -> list[Any]:
    return [floats(TOKENS, HIDDEN), floats(TOKENS, EXPERTS) * 3]


@pytest.mark.parametrize(
    "attributes",
    [
        {"k": 1, "activation_type": "relu"},
        {"k": 2, "activation_type": "gelu", "normalize_routing_weights": 1},
        {"k": 4, "activation_type": "silu"},
        {"k": 3, **SWIGLU, "swiglu_limit": 0.5},
    ],
    ids=lambda attributes: attributes["activation_type"],
)
@pytest.mark.sampled(6)
def test_mixture_of_experts(attributes: dict[str, Any]) -> None:
    wide = 2 * INNER if "swiglu_fusion" in attributes else INNER
    values = [
        floats(EXPERTS, wide, HIDDEN), floats(EXPERTS, wide), floats(EXPERTS, HIDDEN, INNER), floats(EXPERTS, HIDDEN),
    ]  # fmt: skip
    check_close(*run_both("MoE", [*router(), *values], [0, 1], domain="com.microsoft", **attributes)[:2], 3e-6)


@pytest.mark.parametrize(("bits", "block", "zeros"), [(2, 16, False), (4, 0, False), (4, 16, True), (8, 0, True)])
@pytest.mark.sampled(6)
def test_packed_weights(bits: int, block: int, zeros: bool) -> None:
    layers = ((INNER, HIDDEN), (HIDDEN, INNER))

    def per_block(rows: int, columns: int) -> Any:
        shape = (EXPERTS, rows, columns // block) if block else (EXPERTS, rows)
        return np.abs(floats(*shape)) / 8, whole(bits, *shape) if zeros else None

    (first, first_zeros), (second, second_zeros) = (per_block(*layer) for layer in layers)
    weights, biases = [whole(bits, EXPERTS, *layer) for layer in layers], [floats(EXPERTS, rows) for rows, _ in layers]
    values = [*router(), weights[0], first, biases[0], weights[1], second, biases[1], None, None, None]
    values += [first_zeros, second_zeros]
    attributes = {"k": 2, "activation_type": "silu", "expert_weight_bits": bits}
    attributes |= {"block_size": block} if block else {}
    check_close(*run_both("QMoE", values, [0, 1], domain="com.microsoft", **attributes)[:2], 3e-6)


@pytest.mark.parametrize(
    ("attributes", "words"),
    [
        ({"expert_weight_bits": 3}, "3 bits; 2, 4 and 8 are allowed"),
        ({"quant_type": "fp8"}, "of type 'fp8'"),
        ({"activation_type": "geglu"}, "'geglu'; relu, gelu, silu, identity and swiglu"),
        ({"activation_type": "swiglu"}, "swiglu_fusion is not 1"),
    ],
)
def test_what_is_refused(attributes: dict[str, Any], words: str) -> None:
    values = [*router(), whole(4, EXPERTS, INNER, HIDDEN), floats(EXPERTS, INNER), None, whole(4, EXPERTS, HIDDEN, INNER),
              floats(EXPERTS, HIDDEN)]  # fmt: skip
    model = node_model("QMoE", values, [0, 1], 1, domain="com.microsoft", k=2, **attributes)
    model.graph.output[0].CopyFrom(model.graph.input[0])
    model.graph.output[0].name = "o0"
    with pytest.raises(InputError, match=words):
        tvm_sched.relax.compile(model, "cpu1", "single")


@pytest.mark.parametrize(
    ("position", "wrong", "words"),
    [
        (2, np.zeros((EXPERTS, INNER, HIDDEN // 2), "int32"), "weights of fc1 have the type int32"),
        (2, np.zeros((EXPERTS, INNER, HIDDEN), "uint8"), "weights of fc1 have 64 inputs; 32 are needed"),
        (3, np.ones((EXPERTS, INNER + 1), "float32"), "scales of fc1: found 260 .* need 256"),
        (3, np.full((EXPERTS, INNER), np.inf, "float16"), "256 of its scales are infinite or NaN"),
        (3, np.ones((EXPERTS, INNER, 3), "float32"), "scales of fc1: 32 inputs are no 3 blocks of whole bytes"),
        (4, np.zeros((EXPERTS, 1), "float32"), "bias of fc1: found 4 .* need 256"),
        (7, np.zeros((EXPERTS, 1), "float32"), "bias of fc2: found 4 .* need 128"),
        (11, np.zeros((EXPERTS, INNER), "int8"), "zero points of fc1: found 256 elements of type int8; .* need 128"),
    ],
)
def test_operands_that_do_not_fit_are_refused(position: int, wrong: Any, words: str) -> None:
    values = [
        *router(), whole(4, EXPERTS, INNER, HIDDEN), np.ones((EXPERTS, INNER), "float32"), None,
        whole(4, EXPERTS, HIDDEN, INNER), np.ones((EXPERTS, HIDDEN), "float32"), *[None] * 6,
    ]  # fmt: skip
    values[position] = wrong
    model = node_model("QMoE", values, [0, 1], 1, domain="com.microsoft", k=2)
    model.graph.output[0].CopyFrom(model.graph.input[0])
    model.graph.output[0].name = "o0"
    with pytest.raises(InputError, match=rf"QMoE.*{words}"):
        tvm_sched.relax.compile(model, "cpu1", "single")
