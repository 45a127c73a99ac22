"""Wrong things where models are read and compiled, by Python: refused in the form that `test_user_errors` describes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from onnx_text import onnx_model
from tvm_sched.relax import CompileOptions, compile, load_model, target
from user_errors_cases import ODD, check, damaged

onnx = pytest.importorskip("onnx")
helper = onnx.helper

SETTINGS = (
    "backend", "cache", "cost_model", "graph", "instances", "launch_order", "objective", "options", "parameters",
    "precision", "processor", "resident", "row_parts", "scheduler", "states", "streams", "threads", "unknown", "variants",
)  # fmt: skip


def small() -> Any:
    text = """(float[4, 4] x) => (float[4, 8] y) {
        p = MatMul(x, a)  q = Softmax<axis = 1>(p)  r = Concat<axis = 0>(q, b)  y = Reshape(r, s) }"""
    return onnx_model(text, {**dict.fromkeys("ab", np.ones((4, 4), "float32")), "s": np.array([4, 8])})


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
