"""Many tensors are concatenated and split in groups: TVM's kernels grow with them, and our passes walk them by recursion."""

from __future__ import annotations

import numpy as np
import pytest
import tvm
from tvm import relax

from tvm_sched.relax import compile
from tvm_sched.relax.lower.operators_without_kernel import simplify


def concatenation(count: int, axis: int) -> tvm.IRModule:
    """Concatenate two inputs in turns."""
    inputs = [relax.Var(name, relax.TensorType((2, 3), "float32")) for name in "xy"]
    builder = relax.BlockBuilder()
    with builder.function("main", inputs):
        with builder.dataflow():
            result = builder.emit_output(relax.op.concat([inputs[k % 2] for k in range(count)], axis))
        builder.emit_func_output(result)
    return builder.get()


@pytest.mark.parametrize(("count", "kernels"), [(32, 1), (33, 2), (1025, 34)])
def test_a_kernel_has_at_most_32_tensors(count: int, kernels: int) -> None:
    calls = [b.value for block in simplify(concatenation(count, 0))["main"].body.blocks for b in block.bindings]
    widths = [len(call.args[0].fields) for call in calls if isinstance(call, relax.Call)]
    assert max(widths) <= 32
    assert len(widths) == kernels


@pytest.mark.parametrize("axis", [0, -1])
def test_values(axis: int) -> None:
    x = np.arange(6, dtype="float32").reshape(2, 3)
    found = compile(concatenation(70, axis), "cpu1", "single").run(x, -x)
    np.testing.assert_array_equal(found, np.concatenate([x, -x] * 35, axis))


def division(sizes: list[int], axis: int) -> tvm.IRModule:
    """Split a matrix along an axis, and return all parts."""
    shape = [3, 3]
    shape[axis] = sum(sizes)
    x = relax.Var("x", relax.TensorType(tuple(shape), "float32"))
    builder = relax.BlockBuilder()
    with builder.function("main", [x]):
        with builder.dataflow():
            result = builder.emit_output(relax.op.split(x, np.cumsum(sizes)[:-1].tolist(), axis))
        builder.emit_func_output(result)
    return builder.get()


@pytest.mark.parametrize(("count", "kernels"), [(32, 1), (33, 2), (64, 3), (1025, 34)])
def test_a_kernel_makes_at_most_32_parts(count: int, kernels: int) -> None:
    calls = [b.value for block in simplify(division([1] * count, 0))["main"].body.blocks for b in block.bindings]
    widths = [len(call.attrs.indices_or_sections) + 1 for call in calls if isinstance(call, relax.Call)]
    assert max(widths) <= 32
    assert len(widths) == kernels


@pytest.mark.parametrize("axis", [0, -1])
def test_values_of_parts(axis: int) -> None:
    sizes = [1 + k % 3 for k in range(70)]
    x = np.arange(3 * sum(sizes), dtype="float32").reshape((-1, 3) if axis == 0 else (3, -1))
    found = compile(division(sizes, axis), "cpu1", "single").run(x)
    for part, expected in zip(found, np.split(x, np.cumsum(sizes)[:-1], axis), strict=True):
        np.testing.assert_array_equal(part, expected)
