"""Functions of other code generators are operators: they have measured prices, and run from the artifact that is saved."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tvm
from tvm import relax, te, topi
from tvm.relax.backend import get_patterns_with_prefix
from tvm.relax.backend.contrib import example_npu  # noqa: F401, registers its patterns

from tvm_sched.cost_model.database import CostWarning
from tvm_sched.relax import CompiledModel, compile
from tvm_sched_runtime import runtime

X = np.arange(-6, 6, dtype="float32").reshape(3, 4)


def generate(functions: Any, options: Any, names: Any) -> list[Any]:
    """Compile each function as the one operator that it holds, a relu: what stands for the code generator of an NPU."""
    made = []
    for function in functions:
        x = te.placeholder([int(size) for size in function.params[0].ty.shape], "float32", "x")
        prim = te.create_prim_func([x, topi.nn.relu(x)]).with_attr(
            "global_symbol", str(function.attrs["global_symbol"])
        )
        module = tvm.tirx.build(tvm.IRModule({str(function.attrs["global_symbol"]): prim}), "llvm")
        made.append(getattr(module, "mod", module))
    return made


@pytest.fixture(scope="module")
def compiled() -> CompiledModel:
    """TVM's example of an NPU has the two relus of a model, we have what stands between them."""
    tvm.register_global_func("relax.ext.example_npu", generate, override=True)
    x = relax.Var("x", relax.TensorType((3, 4), "float32"))
    builder = relax.BlockBuilder()
    with builder.function("main", [x]):
        with builder.dataflow():
            small = builder.emit(relax.op.cumsum(builder.emit(relax.op.nn.relu(x)), axis=1))
            result = builder.emit_output(relax.op.nn.relu(relax.op.subtract(small, relax.const(3.0, "float32"))))
        builder.emit_func_output(result)
    patterns = get_patterns_with_prefix("example_npu.relu")
    partitioned = relax.transform.FuseOpsByPattern(patterns, bind_constants=False, annotate_codegen=True)(builder.get())
    with warnings.catch_warnings():
        warnings.simplefilter("error", CostWarning)  # of kernels that could not be measured
        return compile(
            relax.transform.RunCodegen()(partitioned), "cpu1", "single", cost_model="calibrated", cache=False
        )


def test_calls_are_operators_with_a_measured_price(compiled: CompiledModel) -> None:
    graph, costs = compiled.problem.graph, compiled.problem.costs
    prices = [costs.operator_ns[k, 0] for k, o in enumerate(graph.operators) if "example_npu" in o.kind]
    assert len(prices) == 2
    assert min(prices) > 0
    assert any("example_npu" not in operator.kind for operator in graph.operators)


def test_values(compiled: CompiledModel, tmp_path: Path) -> None:
    expected = np.maximum(np.cumsum(np.maximum(X, 0), axis=1) - 3, 0)
    assert expected.max() > 0
    np.testing.assert_array_equal(compiled.run(X), expected)
    compiled.export(tmp_path / "model.so")
    np.testing.assert_array_equal(runtime.load(tmp_path / "model.so").run(X)[0], expected)
