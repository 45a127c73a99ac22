"""GroupQueryAttention, against float64 as its description reads."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper

import tvm_sched.relax
from tvm_sched_runtime.errors import InputError

B, H, K, D = 2, 4, 2, 16
PROMPT = {"tokens": 5, "past": 0, "ends": [5, 3]}
CASES: dict[str, dict[str, Any]] = {
    "a prompt": PROMPT,
    "a prompt into a buffer, turned": {**PROMPT, "past": 9, "rotary": True},
    "one more token": {"tokens": 1, "past": 6, "ends": [7, 7]},
    "one more token into a buffer, packed, turned": {
        "tokens": 1, "past": 9, "ends": [7, 4], "total": 7, "rotary": True, "packed": True,
    },
    "several more, interleaved, a window": {
        "tokens": 3, "past": 6, "ends": [9, 9], "rotary": True, "rotary_interleaved": 1, "local_window_size": 4,
    },
    "a soft limit and a scale": {**PROMPT, "softcap": 1.5, "scale": 0.7},
    "a bias into a buffer and sinks": {
        "tokens": 1, "past": 9, "ends": [7, 4], "total": 7, "bias": True, "sink": True, "softcap": 1.5,
    },
    "a smooth softmax": {**PROMPT, "smooth_softmax": 1},
}  # fmt: skip


def model(
    inputs: dict[str, Any], past: int, present: int, attributes: dict[str, Any], constants: dict[str, Any]
) -> Any:
    slots = ("query", "key", "value", "past_key", "past_value", "last", "total", "cosine", "sine", "", "bias", "sink")
    names = [name if name in {**inputs, **constants} else "" for name in slots]
    outputs = ["y", "keys", "values"]
    node = helper.make_node("GroupQueryAttention", names, outputs, domain="com.microsoft", **attributes)
    kinds = {name: helper.np_dtype_to_tensor_dtype(value.dtype) for name, value in inputs.items()}
    tokens = inputs["query"].shape[1]
    float32 = onnx.TensorProto.FLOAT
    graph = helper.make_graph(
        [node],
        "g",
        [helper.make_tensor_value_info(name, kinds[name], value.shape) for name, value in inputs.items()],
        [
            helper.make_tensor_value_info("y", float32, (B, tokens, H * D)),
            *(helper.make_tensor_value_info(name, float32, (B, K, present, D)) for name in ("keys", "values")),
        ],
        [onnx.numpy_helper.from_array(value, name) for name, value in constants.items()],
    )
    opsets = [helper.make_opsetid("", 18), helper.make_opsetid("com.microsoft", 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=8)


def turned(x: Any, positions: Any, tables: Any, interleaved: bool) -> Any:
    """Pairs of numbers of (tokens, heads, size), turned by the angles of their positions."""
    cosine, sine = (table[positions][:, None].astype("float64") for table in tables)
    first, second = (x[..., ::2], x[..., 1::2]) if interleaved else np.split(x, 2, -1)
    real, imaginary = first * cosine - second * sine, first * sine + second * cosine
    return np.stack([real, imaginary], -1).reshape(x.shape) if interleaved else np.concatenate([real, imaginary], -1)


def expected(
    query: Any, key: Any, value: Any, pasts: Any, case: dict[str, Any], tables: Any, present: int, bias: Any, sink: Any
) -> Any:
    tokens, total = case["tokens"], case.get("total", case["tokens"] + case["past"])
    prompt = case["ends"] == PROMPT["ends"]
    results, kept = np.zeros((B, tokens, H * D)), [np.zeros((B, K, present, D)) for _ in range(2)]
    for b in range(B):
        start = 0 if prompt else case["ends"][b] - tokens
        positions = start + np.arange(tokens)
        q, k, v = (x[b].reshape(tokens, -1, D).astype("float64") for x in (query, key, value))
        if case.get("rotary"):
            q, k = (turned(x, positions, tables, bool(case.get("rotary_interleaved"))) for x in (q, k))
        for all_, past, new in zip(kept, pasts, (k, v), strict=True):
            if past is not None:
                all_[b, :, : past.shape[2]] = past[b]
            all_[b, :, start : start + tokens] = new.transpose(1, 0, 2)
        for h in range(H):
            for i, position in enumerate(positions):
                low = max(0, position + 1 - case.get("local_window_size", present + total))
                keys, values = (all_[b, h // (H // K), low : position + 1] for all_ in kept)
                scores = keys @ q[i, h] * case.get("scale", D**-0.5)
                if cap := case.get("softcap"):
                    scores = cap * np.tanh(scores / cap)
                scores = scores + bias[b, 0, i, low : position + 1].astype("float64")
                weights = np.exp(scores)
                results[b, i, h * D : (h + 1) * D] = weights @ values / (weights.sum() + np.exp(sink[h]))
    return [results, *kept]


def given(case: dict[str, Any]) -> tuple[Any, list[Any], list[Any]]:
    """A model, its inputs, and what it should give."""
    rng = np.random.default_rng(0)
    tokens, past = case["tokens"], case["past"]
    prompt = case["ends"] == PROMPT["ends"]
    total = tokens if prompt else case.get("total", tokens + past)
    present = max(past, total)
    query, key, value = (rng.standard_normal((B, tokens, n * D)).astype("float32") for n in (H, K, K))
    pasts = [rng.standard_normal((B, K, past, D)).astype("float32") if past else None for _ in range(2)]
    angles = rng.uniform(0, 6, (16, D // 2))
    tables = [np.cos(angles).astype("float32"), np.sin(angles).astype("float32")]
    inputs = {"query": np.concatenate([query, key, value], -1)} if case.get("packed") else {}
    inputs = inputs or {"query": query, "key": key, "value": value}
    inputs |= {name: x for name, x in zip(("past_key", "past_value"), pasts, strict=True) if x is not None}
    inputs["last"] = np.array(case["ends"], "int32") - 1
    constants = {"total": np.array([total], "int32")}
    if case.get("rotary"):
        constants |= {"cosine": tables[0], "sine": tables[1]}
    bias, sink = rng.standard_normal((B, 1, tokens, total)).astype("float32"), rng.standard_normal(H).astype("float32")
    if case.get("bias"):
        inputs["bias"] = bias
    if case.get("sink"):
        constants["sink"] = sink
    optional = ("rotary_interleaved", "local_window_size", "softcap", "scale", "smooth_softmax")
    attributes = {name: case[name] for name in optional if name in case}
    attributes |= {"num_heads": H, "kv_num_heads": K, "do_rotary": int("rotary" in case)}
    made = model(inputs, past, present, attributes, constants)
    lost = sink if case.get("sink") else np.full(H, 0.0 if case.get("smooth_softmax") else -np.inf)
    bias = bias if case.get("bias") else np.zeros_like(bias)
    return made, list(inputs.values()), expected(query, key, value, pasts, case, tables, present, bias, lost)


@pytest.mark.sampled(4)
@pytest.mark.parametrize("name", CASES)
def test_as_described(name):
    made, inputs, right = given(CASES[name])
    for mine, each in zip(tvm_sched.relax.compile(made, "cpu1", "single").run(*inputs), right, strict=True):
        np.testing.assert_allclose(mine, each, rtol=1e-4, atol=1e-5)


@pytest.mark.filterwarnings("ignore:.*it has open dimensions")
def test_one_artifact_takes_prompts_and_caches_of_any_length():
    """The total length is that of a mask, as exporters write it."""
    cases = [CASES["one more token"], {"tokens": 3, "past": 4, "ends": [7, 6]}, {**PROMPT, "past": 9, "total": 5}]
    made, _, _ = given(cases[0])
    graph = made.graph
    graph.initializer.pop()
    for item in (*graph.input, *graph.output):
        sizes = item.type.tensor_type.shape.dim
        axis = {"past_key": 2, "past_value": 2, "keys": 2, "values": 2, "last": None}.get(item.name, 1)
        if axis:
            sizes[axis].dim_param = "tokens" if axis == 1 else item.name[:4]
    graph.input.append(helper.make_tensor_value_info("mask", onnx.TensorProto.INT64, [B, "all"]))
    graph.initializer.append(onnx.numpy_helper.from_array(np.array(1), "one"))
    made.graph.node.insert(0, helper.make_node("Shape", ["mask"], ["shape"]))
    made.graph.node.insert(1, helper.make_node("Gather", ["shape", "one"], ["length"]))
    made.graph.node.insert(2, helper.make_node("Cast", ["length"], ["total"], to=onnx.TensorProto.INT32))
    compiled = tvm_sched.relax.compile(made, "cpu1", "single", cost_model="roofline")
    for case in cases:
        _, inputs, right = given(case)
        mask = np.ones((B, case.get("total", case["tokens"] + case["past"])), "int64")
        for mine, each in zip(compiled.run(*inputs, mask), right, strict=True):
            np.testing.assert_allclose(mine, each, rtol=1e-4, atol=1e-5)


def test_what_is_not_computed_is_told():
    made, _, _ = given(CASES["a prompt"])
    made.graph.node[0].attribute.append(helper.make_attribute("qk_output", 1))
    with pytest.raises(InputError, match=r"GroupQueryAttention .*qk_output is set"):
        tvm_sched.relax.compile(made, "cpu1", "single")
