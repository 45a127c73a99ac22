"""Random chains of operators that meet NaN and infinities: each element is that of exact arithmetic, on all topologies."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import hypothesis
import numpy as np
import onnx
import pytest
from hypothesis import strategies as st
from onnx import helper, numpy_helper

import tvm_sched.relax
from thorough import repeated_here

CHANNELS, SIZE = 8, 7
SHAPE = (1, CHANNELS, SIZE, SIZE)


def windows(x: Any, fill: float) -> Any:
    """The 3x3 windows of each place, in float64; places beyond the image hold ``fill``."""
    padded = np.pad(x.astype("float64"), ((0, 0), (0, 0), (1, 1), (1, 1)), constant_values=fill)
    return np.lib.stride_tricks.sliding_window_view(padded, (3, 3), (2, 3))


def signs(rng: np.random.Generator, *shape: int) -> Any:
    """Weights that are not 0, and whose sums are exact."""
    return rng.choice([-0.5, 0.25, 0.5], shape).astype("float32")


def per_channel(values: Any) -> Any:
    return values.reshape(1, -1, 1, 1)


def sigmoid(x: Any) -> Any:
    return 1 / (1 + np.exp(-x))


def hard_sigmoid(x: Any) -> Any:
    return np.clip(x * 0.2 + 0.5, 0, 1)


Step = tuple[str, dict[str, Any], list[Any], Callable[..., Any]]
"""An operator, its attributes, further constant inputs, and its function of one tensor (or of two: also of the first)."""


def step(name: str, rng: np.random.Generator) -> Step:
    bias = rng.integers(-2, 3, CHANNELS).astype("float32")
    limits = [np.array(value, "float32") for value in (-1, 6)]
    steps: dict[str, Callable[[], Step]] = {
        "Conv": lambda: (
            "Conv",
            {"pads": [1, 1, 1, 1]},
            [w := signs(rng, CHANNELS, CHANNELS, 3, 3), bias],
            lambda x: np.einsum("nchwij,ocij->nohw", windows(x, 0), w) + per_channel(bias),
        ),
        "pointwise": lambda: (
            "Conv",
            {},
            [w := signs(rng, CHANNELS, CHANNELS, 1, 1), bias],
            lambda x: np.einsum("nchw,oc->nohw", x, w[:, :, 0, 0]) + per_channel(bias),
        ),
        "depthwise": lambda: (
            "Conv",
            {"pads": [1, 1, 1, 1], "group": CHANNELS},
            [w := signs(rng, CHANNELS, 1, 3, 3), bias],
            lambda x: np.einsum("nchwij,cij->nchw", windows(x, 0), w[:, 0]) + per_channel(bias),
        ),
        "MatMul": lambda: ("MatMul", {}, [w := signs(rng, SIZE, SIZE)], lambda x: x @ w.astype("float64")),
        "Mul": lambda: ("Mul", {}, [per_channel(w := signs(rng, CHANNELS))], lambda x: x * per_channel(w)),
        "Add": lambda: ("Add", {}, [per_channel(bias)], lambda x: x + per_channel(bias)),
        "Relu": lambda: ("Relu", {}, [], lambda x: np.where(x < 0, 0, x)),
        "Clip": lambda: ("Clip", {}, limits, lambda x: np.clip(x, -1, 6)),
        "LeakyRelu": lambda: ("LeakyRelu", {"alpha": 0.5}, [], lambda x: np.where(x < 0, x / 2, x)),
        "HardSigmoid": lambda: ("HardSigmoid", {"alpha": 0.2, "beta": 0.5}, [], hard_sigmoid),
        "Sigmoid": lambda: ("Sigmoid", {}, [], sigmoid),
        "Tanh": lambda: ("Tanh", {}, [], np.tanh),
        "Max": lambda: ("Max", {}, limits[:1], lambda x: np.maximum(x, -1)),
        "Min": lambda: ("Min", {}, limits[1:], lambda x: np.minimum(x, 6)),
        "Max of both": lambda: ("Max", {}, [], np.maximum),
        "Sum of both": lambda: ("Add", {}, [], np.add),
        "MaxPool": lambda: (
            "MaxPool",
            {"kernel_shape": [3, 3], "pads": [1, 1, 1, 1]},
            [],
            lambda x: windows(x, -np.inf).max((4, 5)),
        ),
    }
    return steps[name]()


NAMES = (
    "Conv", "pointwise", "depthwise", "MatMul", "Mul", "Add", "Relu", "Clip", "LeakyRelu", "HardSigmoid", "Sigmoid", "Tanh",
    "Max", "Min", "Max of both", "Sum of both", "MaxPool",
)  # fmt: skip


def chain(names: list[str], rng: np.random.Generator) -> tuple[onnx.ModelProto, Callable[[Any], Any]]:
    """A model of these operators in a row, and its function in float64."""
    nodes, constants, functions = [], [], []
    for k, name in enumerate(names):
        operator, attributes, further, function = step(name, rng)
        inputs = [f"t{k}", *(["t0"] if name.endswith("of both") else []), *(f"c{k}_{j}" for j in range(len(further)))]
        nodes.append(helper.make_node(operator, inputs, [f"t{k + 1}"], **attributes))
        constants += [numpy_helper.from_array(value, f"c{k}_{j}") for j, value in enumerate(further)]
        functions.append((function, name.endswith("of both")))

    def exact(x: Any) -> Any:
        value = x.astype("float64")
        for function, both in functions:
            value = function(value, x) if both else function(value)
        return value

    given, made = (helper.make_tensor_value_info(f"t{k}", onnx.TensorProto.FLOAT, SHAPE) for k in (0, len(names)))
    graph = helper.make_graph(nodes, "chain", [given], [made], constants)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=8)
    onnx.checker.check_model(model)
    return model, exact


@pytest.mark.slow
@hypothesis.settings(
    max_examples=60 if repeated_here() else 4,
    deadline=None,
    derandomize=True,
    suppress_health_check=list(hypothesis.HealthCheck),
)
@hypothesis.given(
    st.lists(st.sampled_from(NAMES), min_size=2, max_size=6),
    st.sampled_from(("cpu1", "cpu", "cpu3", "a40x2")),
    st.sampled_from(("native", "x86-64-v2")),
    st.integers(0, 2**16),
)
def test_chains_keep_nan_and_infinities(names, topology, processor, seed):
    rng = np.random.default_rng(seed)
    model, exact = chain(names, rng)
    processor = "native" if topology == "a40x2" else processor
    executable = tvm_sched.relax.compile(model, topology, "heft", processor=processor)
    for special in ([], [np.nan], [np.inf, -np.inf], [np.nan, np.inf, -np.inf]):
        x = rng.integers(-4, 5, SHAPE).astype("float32")
        for value in special:
            x[tuple(rng.integers(0, size) for size in SHAPE)] = value
        with np.errstate(invalid="ignore", over="ignore"):
            right = exact(x)
        np.testing.assert_allclose(executable.run(x), right, rtol=1e-5, atol=1e-5)
