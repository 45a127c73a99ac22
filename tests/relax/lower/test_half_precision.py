"""Sums of half precision: many terms, whose sum in 16 bits would stand still or be infinite."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tvm
from tvm import relax

from tvm_sched.relax.passes import LowerToKernels, PrepareKernels

ROWS = relax.TensorType((2, 5000), "float16")
PICTURE = relax.TensorType((1, 3, 70, 70), "float16")
CASES: dict[str, tuple[Any, Callable[..., relax.Expr], Any]] = {
    "matmul": (ROWS, lambda x: relax.op.matmul(x, relax.op.permute_dims(x)), np.full((2, 2), 5000)),
    "sum": (ROWS, lambda x: relax.op.sum(x, [1]), [5000, 5000]),
    "mean": (ROWS, lambda x: relax.op.mean(relax.op.multiply(x, relax.const(100, "float16")), [1]), [100, 100]),
    "avg_pool2d": (PICTURE, lambda x: relax.op.nn.avg_pool2d(x, (70, 70)), np.ones((1, 3, 1, 1))),
    "conv2d": (PICTURE, lambda x: relax.op.nn.conv2d(x, x), np.full((1, 1, 1, 1), 14704)),
    "std": (ROWS, lambda x: relax.op.std(x, [1]), [0, 0]),
}


@pytest.mark.parametrize("name", ["max", "argmax", "acosh", "round", "isnan"])
def test_functions_that_gpus_lack_in_half_precision_are_computed_in_float32(name: str) -> None:
    builder, x = relax.BlockBuilder(), relax.Var("x", relax.TensorType((4, 9), "bfloat16"))
    with builder.function("main", [x]):
        with builder.dataflow():
            result = builder.emit_output(builder.normalize(getattr(relax.op, name)(x)))
        builder.emit_func_output(result)
    lowered = LowerToKernels()(builder.get())
    kernels = [str(function) for _, function in lowered.functions_items() if isinstance(function, tvm.tirx.PrimFunc)]
    assert any("float32" in kernel for kernel in kernels)


@pytest.mark.parametrize("name", CASES)
def test_sums_of_half_precision(name: str) -> None:
    ty, compute, right = CASES[name]
    builder, x = relax.BlockBuilder(), relax.Var("x", ty)
    with builder.function("main", [x]):
        with builder.dataflow():
            result = builder.emit_output(builder.normalize(compute(x)))
        builder.emit_func_output(result)
    lowered = PrepareKernels(schedule=False)(LowerToKernels(libraries=())(builder.get()))
    executable = relax.build(lowered, tvm.target.Target("llvm"))
    given = tvm.runtime.tensor(np.ones([int(size) for size in ty.shape], np.float16))
    found = relax.VirtualMachine(executable, tvm.cpu())["main"](given).numpy()
    assert found.dtype == np.float16
    np.testing.assert_array_equal(found, np.asarray(right, np.float16))
