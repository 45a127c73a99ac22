"""MatMulNBits and GatherBlockQuantized of com.microsoft, whose weights stay packed, against NumPy in float64."""

from __future__ import annotations

import json
from itertools import product
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import pytest
import tvm
from onnx import helper, numpy_helper
from tvm import relax

import tvm_frontends
import tvm_sched.relax
from tvm_sched.relax.lower.kernel_libraries import claimed_functions
from tvm_sched_runtime.errors import InputError
from tvm_sched_runtime.runtime import load

from .single_node import node_model

_random = np.random.default_rng(0)


def packed(numbers: Any, bits: int) -> Any:
    """Numbers of 2, 4 or 8 bits as bytes along the last axis, the first in the lowest bits."""
    each = 8 // bits
    numbers = np.pad(numbers, [(0, 0)] * (numbers.ndim - 1) + [(0, -numbers.shape[-1] % each)])
    parts = numbers.reshape(*numbers.shape[:-1], -1, each).astype("uint32") << np.arange(0, 8, bits, dtype="uint32")
    return parts.sum(-1).astype("uint8")


def product_case(bits: int, block: int, zeros: str, scale: str, rows: tuple[int, ...], terms: int, columns: int) -> Any:
    """Values of a MatMulNBits node, its attributes, and what A is multiplied by, (terms, columns) in float64."""
    blocks = -(-terms // block)
    numbers = _random.integers(0, 1 << bits, (columns, blocks, block))
    scales = (np.exp(_random.standard_normal((columns, blocks))) / 100).astype(scale)
    points: Any = None
    middles = np.full((columns, blocks), 1 << (bits - 1), "float64")
    if zeros == "packed":
        middles = _random.integers(0, 1 << bits, (columns, blocks)).astype("float64")
        points = packed(middles.astype("int64"), bits)
    elif zeros == "floats":
        points = (middles + _random.standard_normal(middles.shape)).astype("float32")
        middles = points.astype("float64")
    weights = (numbers - middles[..., None]) * scales[..., None].astype("float64")
    a = _random.standard_normal((*rows, terms)).astype("float32")
    values = [a, packed(numbers, bits), scales.reshape(-1), None if points is None else points]
    attributes = {"K": terms, "N": columns, "bits": bits, "block_size": block}
    return values, attributes, weights.reshape(columns, -1)[:, :terms].T


def model_of(cases: list[Any]) -> onnx.ModelProto:
    """One graph of a node for each case; of float16 scales, casts stand before and behind."""
    nodes, inputs, outputs, constants = [], [], [], []
    for number, (values, attributes, _) in enumerate(cases):
        a, *others = values
        names = [f"x{number}", *("" if each is None else f"c{number}.{k}" for k, each in enumerate(others))]
        inputs.append(helper.make_tensor_value_info(names[0], onnx.TensorProto.FLOAT, a.shape))
        shape = (*a.shape[:-1], attributes["N"])
        outputs.append(helper.make_tensor_value_info(f"y{number}", onnx.TensorProto.FLOAT, shape))
        constants += [
            numpy_helper.from_array(each, name)
            for name, each in zip(names[1:], others, strict=True)
            if each is not None
        ]
        nodes.append(helper.make_node("MatMulNBits", names, [f"y{number}"], domain="com.microsoft", **attributes))
    graph = helper.make_graph(nodes, "g", inputs, outputs, constants)
    return helper.make_model(
        graph, opset_imports=[helper.make_opsetid("", 21), helper.make_opsetid("com.microsoft", 1)]
    )


def check(cases: list[Any], results: list[Any]) -> None:
    """Sums of products in float32: within 2e-6 of the sum of the magnitudes."""
    for (values, _, weights), found in zip(cases, results, strict=True):
        a = values[0].astype("float64")
        right, most = a @ weights, np.abs(a) @ np.abs(weights)
        assert found.shape == right.shape
        assert (np.abs(found - right) / most).max() < 2e-6


SIZES = (((1,), 60, 7), ((3,), 129, 33), ((2, 10), 83, 40))
CASES = [
    product_case(bits, block, zeros, scale, *SIZES[number % 3])
    for number, (bits, (block, zeros, scale)) in enumerate(
        product(
            (2, 4, 8),
            (
                (16, "none", "float32"),
                (32, "packed", "float16"),
                (128, "floats", "float32"),
                (256, "packed", "float32"),
            ),
        )
    )
] + [product_case(4, 32, "none", "float16", (rows,), 60, 17) for rows in (2, 4, 5, 13)]


def test_packed_products(tmp_path: Path) -> None:
    compiled = tvm_sched.relax.compile(model_of(CASES), "cpu1", "single")
    check(CASES, list(compiled.run(*(values[0] for values, _, _ in CASES))))
    compiled.export(tmp_path / "packed.so")
    check(CASES, list(load(tmp_path / "packed.so").run(*(values[0] for values, _, _ in CASES))))


@pytest.mark.parametrize("bits", [2, 4, 8])
def test_weights_stay_packed(bits: int) -> None:
    case = product_case(bits, 32, "none", "float16", (1,), 256, 128)
    imported = tvm_frontends.load_model(model_of([case]), {})
    mod = tvm_sched.relax.run_passes(imported, "cpu1", "LowerToKernels")
    assert claimed_functions(mod) == {"language.packed_0"}
    values = [value.numpy() for value in dict(mod.attrs["tvm_frontends.parameters"]).values()]
    assert sum(value.nbytes for value in values) == 256 * 128 * bits // 8 + 2 * 8 * 128


def test_without_the_library_weights_become_floats(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TVM_SCHED_KERNEL_LIBRARIES", "")
    cases = [CASES[1], CASES[6]]
    compiled = tvm_sched.relax.compile(model_of(cases), "cpu1", "single")
    check(cases, list(compiled.run(*(values[0] for values, _, _ in cases))))


def test_plain_tvm_computes_the_kernel() -> None:
    cases = [CASES[1], CASES[5]]
    mod = tvm_frontends.load_model(model_of(cases), {}).with_parameters()
    values = dict(mod.attrs["tvm_frontends.parameters"])
    function = mod["main"]
    bound = {v: values[v.name] for v in function.params if v.name in values}
    mod = relax.transform.BindParams("main", bound)(mod)
    machine = relax.VirtualMachine(relax.build(mod, tvm.target.Target("llvm")), tvm.cpu())
    found = machine["main"](*(tvm.runtime.tensor(case[0][0]) for case in cases))
    check(cases, [each.numpy() for each in found])


def refused(words: str, values: list[Any], attributes: dict[str, Any]) -> None:
    with pytest.raises(InputError, match=rf"operator MatMulNBits.*{words}"):
        tvm_sched.relax.compile(model_of([(values, attributes, None)]), "cpu1", "single")


_NEEDED = "K = 60, N = 7, bits = 4, block_size = 32 need"


@pytest.mark.parametrize(
    ("position", "wrong", "words"),
    [
        (1, np.zeros((7, 1, 16), "uint8"), f"B: found 112 elements of type uint8; {_NEEDED} 224 of type uint8"),
        (1, np.zeros((7, 2, 16), "int32"), "B: found 224 elements of type int32"),
        (2, np.ones(7, "float32"), f"scales: found 7 .*{_NEEDED} 14 of type float32 or float16"),
        (2, np.ones(14, "int8"), "scales: found 14 elements of type int8"),
        (3, np.zeros((7, 1), "float32"), f"zero points in floats: found 7 .*{_NEEDED} 14"),
        (3, np.zeros((7, 0), "uint8"), f"packed zero points: found 0 .*{_NEEDED} 7 of type uint8. Export the model"),
        (3, np.zeros(5, "uint8"), "packed zero points: found 5"),
        (3, np.zeros((7, 1), "int8"), "packed zero points: found 7 elements of type int8"),
        (5, np.zeros(1, "float32"), f"bias: found 1 .*{_NEEDED} 7 of type float32"),
        (5, np.zeros(7, "int32"), "bias: found 7 elements of type int32"),
    ],
)
def test_operands_that_do_not_fit_are_refused(position: int, wrong: Any, words: str) -> None:
    values, attributes, _ = product_case(4, 32, "none", "float32", (3,), 60, 7)
    values += [None] * (6 - len(values))
    values[position] = wrong
    refused(words, values, attributes)


@pytest.mark.parametrize("scale", ["float16", "float32"])
@pytest.mark.parametrize("number", [np.inf, np.nan])
def test_scales_that_are_not_finite_are_refused(scale: str, number: float) -> None:
    values, attributes, _ = product_case(4, 32, "floats", scale, (3,), 60, 7)
    for position, name in ((3, "zero points"), (2, "scales")):
        values[position].reshape(-1)[3] = number
        refused(f"1 of its {name} are infinite or NaN; finite numbers are needed", values, attributes)


@pytest.mark.parametrize("block", [0, -32, 8, 48])
def test_block_sizes_that_are_none_are_refused(block: int) -> None:
    values, attributes, _ = product_case(4, 32, "none", "float32", (3,), 60, 7)
    refused(f"block_size is {block}, K 60, N 7; a power of two from 16", values, attributes | {"block_size": block})


def test_the_kernel_refuses_tensors_of_other_sizes() -> None:
    kernel = {
        "kind": "packed", "bits": 4, "block": 32, "terms": 60, "columns": 7, "matrices": 1, "shared": True,
        "scales": "float16", "zeros": "float32", "bias": True,
    }  # fmt: skip
    text = json.dumps({"version": 3, "kernels": {"product": kernel}})
    product = tvm.get_global_func("tvm_sched.make_language_module")(text)["product"]
    shapes = {
        "rows": ((2, 60), "float32"), "weights": ((1, 8, 16), "uint32"), "scales": ((1, 2, 16), "float16"),
        "zero points": ((1, 2, 16), "float32"), "biases": ((7,), "float32"), "results": ((2, 7), "float32"),
    }  # fmt: skip
    tensors = {name: tvm.runtime.tensor(np.ones(shape, dtype)) for name, (shape, dtype) in shapes.items()}
    product(*tensors.values())
    for name, (shape, dtype) in shapes.items():
        wrong = tvm.runtime.tensor(np.ones((*shape[:-1], shape[-1] - 1), dtype))
        with pytest.raises(ValueError, match=rf"its {name} have \d+ bytes; \d+ are needed"):
            product(*(tensors | {name: wrong}).values())
    with pytest.raises(ValueError, match="it has 5 tensors; 6 are needed"):
        product(*list(tensors.values())[:5])


TABLE = (11, 24)


@pytest.mark.parametrize("kind", ["uint8-2", "uint8-4", "uint8-8", "int4", "uint4"])
@pytest.mark.parametrize("zeros", [False, True])
def test_gather_block_quantized(kind: str, zeros: bool) -> None:
    bits, block = int(kind.partition("-")[2] or 4), 16
    least = -8 if kind == "int4" else 0
    numbers = _random.integers(least, least + (1 << bits), TABLE)
    scales = np.abs(_random.standard_normal((TABLE[0], 2))).astype("float32")
    middles = _random.integers(least, least + (1 << bits), scales.shape)
    indices = np.array([[3, -1, 10], [0, 7, 3]], "int64")
    stored = (
        (lambda each: packed(each, bits))
        if kind.startswith("uint8")
        else (lambda each: each.astype(getattr(ml_dtypes, kind)))
    )
    values = [stored(numbers), indices, scales, *([stored(middles)] if zeros else [])]
    model = node_model("GatherBlockQuantized", values, [1], 1, domain="com.microsoft", bits=bits, block_size=block)
    model.graph.output[0].CopyFrom(
        helper.make_tensor_value_info("o0", onnx.TensorProto.FLOAT, (*indices.shape, TABLE[1]))
    )
    compiled = tvm_sched.relax.compile(model, "cpu1", "single")
    middle = middles if zeros else np.full(scales.shape, 1 << (bits - 1) if kind.startswith("uint8") else 0)
    exact = (numbers - middle.repeat(block, 1)[:, : TABLE[1]]) * scales.repeat(block, 1)[:, : TABLE[1]].astype(
        "float64"
    )
    np.testing.assert_allclose(compiled.run(indices), exact[indices], rtol=2e-7)
    outside = indices.copy()
    outside[0, 1] = TABLE[0]
    assert not compiled.run(outside)[0, 1].any()
