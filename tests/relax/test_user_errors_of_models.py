"""Wrong things where models are read and compiled, by Python: refused in the form that `test_user_errors` describes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tvm_sched.relax import CompileOptions, compile, load_model, target
from user_errors_cases import ODD, check, damaged

onnx = pytest.importorskip("onnx")
helper = onnx.helper

SETTINGS = (
    "backend", "cache", "cost_model", "graph", "instances", "launch_order", "objective", "options", "parameters",
    "precision", "processor", "resident", "row_parts", "scheduler", "states", "streams", "threads", "unknown", "variants",
)  # fmt: skip


def small() -> Any:
    weights = [onnx.numpy_helper.from_array(np.ones((4, 4), "float32"), name) for name in "ab"]
    nodes = [
        helper.make_node("MatMul", ["x", "a"], ["p"]),
        helper.make_node("Softmax", ["p"], ["q"], axis=1),
        helper.make_node("Concat", ["q", "b"], ["r"], axis=0),
        helper.make_node("Reshape", ["r", "s"], ["y"]),
    ]
    weights.append(onnx.numpy_helper.from_array(np.array([4, 8]), "s"))
    x, y = (helper.make_tensor_value_info(name, 1, shape) for name, shape in (("x", [4, 4]), ("y", [4, 8])))
    graph = helper.make_graph(nodes, "small", [x], [y], weights)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)


def test_damaged_onnx_files(tmp_path: Path) -> None:
    file = tmp_path / "m.onnx"
    for content in damaged(small().SerializeToString(), 1):
        file.write_bytes(content)
        check(content, lambda: load_model(file))


@pytest.mark.parametrize("extension", [".pt2", ".json", ".py", ".onnx", ".txt", ""])
def test_files_that_are_something_else(tmp_path: Path, extension: str) -> None:
    file = tmp_path / f"m{extension}"
    for content in (
        b"",
        b"{}",
        b"[]",
        b"x = 1",
        b"PK\x03\x04",
        bytes(100),
        b"raise SystemExit(3)",
        b"import nothing_of_that_name",
    ):
        file.write_bytes(content)
        check(content, lambda: load_model(file))


def options_of(**settings: Any) -> None:
    CompileOptions.of("cpu2", **settings)


@pytest.mark.parametrize("odd", ODD, ids=map(str, range(len(ODD))))
def test_arguments(odd: Any) -> None:
    model = small()
    check(odd, lambda: load_model(odd))
    check(odd, lambda: load_model(model, odd))
    check(odd, lambda: load_model(model, {"x": odd}))
    check(odd, lambda: load_model(model, constants=odd))
    check(odd, lambda: load_model(model, constants={"x": odd}))
    check(odd, lambda: load_model(model, name=odd))
    check(odd, lambda: CompileOptions.of(odd))
    check(odd, lambda: target(odd))
    for name in SETTINGS:
        check((name, odd), options_of, **{name: odd})
        check((name, odd), target, "cpu2", **{name: odd})
    if odd is not None:
        check(odd, lambda: compile(model, "cpu1", "single", schedule=odd))
    if odd is not None and not callable(odd):
        check(odd, lambda: compile(model, "cpu1", "single", progress=odd))
