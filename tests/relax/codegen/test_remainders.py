"""Kernels that read at remainders of their loops' positions, which LLVM reads past the period where it sees them."""

from __future__ import annotations

import numpy as np
import pytest
import tvm
from tvm import te

from tvm_sched.relax.codegen.cpu.kernels import compile_kernels, prepare_kernel
from tvm_sched.relax.toolchain.compile_target import CompileTarget


def _run(kernel: te.Tensor, given: te.Tensor, value: np.ndarray) -> np.ndarray:
    function = prepare_kernel(te.create_prim_func([given, kernel]))
    module = compile_kernels({"kernel": function}, CompileTarget().host)
    made = tvm.runtime.tensor(np.full([int(size) for size in kernel.shape], np.nan, "float32"))
    module["kernel"](tvm.runtime.tensor(value), made)
    return made.numpy()


@pytest.mark.parametrize("period", [2, 4, 8])
@pytest.mark.parametrize(("rows", "step", "length"), [(6, 1, 5), (5, 16, 3), (7, 3, 3)])
def test_rows_repeat(period: int, rows: int, step: int, length: int) -> None:
    value = np.random.default_rng(0).random((rows, period, length), "float32")
    given = te.placeholder(value.shape, "float32", "x")
    kernel = te.compute((6, 5, 32, length), lambda i, j, k, m: given[(i * 5 + j) % rows, (j * step + k) % period, m])
    i, j, k = np.ogrid[:6, :5, :32]
    assert np.array_equal(_run(kernel, given, value), value[(i * 5 + j) % rows, (j * step + k) % period])


def test_positions_below_zero() -> None:
    value = np.random.default_rng(1).random((3, 4, 5), "float32")
    given = te.placeholder(value.shape, "float32", "x")
    kernel = te.compute((6, 16, 5), lambda i, j, k: given[i % 3, tvm.tirx.floormod(j - 7, 4), k])
    i, j = np.ogrid[:6, :16]
    assert np.array_equal(_run(kernel, given, value), value[i % 3, (j - 7) % 4])


def test_writes_repeat() -> None:
    from tvm.script import tirx as T  # noqa: N812

    @T.prim_func(s_tir=True)
    def last_of_four(x: T.Buffer((3, 32), "float32"), y: T.Buffer((3, 4), "float32")):
        for i, j in T.grid(3, 32):
            y[i, j % 4] = x[i, j]

    value = np.random.default_rng(2).random((3, 32), "float32")
    module = compile_kernels({"kernel": last_of_four}, CompileTarget().host)
    made = tvm.runtime.tensor(np.zeros((3, 4), "float32"))
    module["kernel"](tvm.runtime.tensor(value), made)
    assert np.array_equal(made.numpy(), value[:, -4:])


def test_remainders_that_truncate_stay() -> None:
    given = te.placeholder((16,), "float32", "x")
    kernel = te.compute((16,), lambda i: given[tvm.tirx.truncmod(i - 8, 4) + 3])
    value = np.random.default_rng(3).random(16, "float32")
    assert np.array_equal(_run(kernel, given, value), value[np.fmod(np.arange(-8, 8), 4) + 3])
