"""Kernels that are far from their roofline are named with the reason, and others are not."""

import numpy as np
import pytest
import tvm
from tvm import relax, te, tirx

from relax.codegen.kernels_cases import single_kernel
from tvm_sched.relax import compile, passes
from tvm_sched.relax.codegen.cpu.kernels import prepare_kernel
from tvm_sched.relax.ir.attributes import get_problem
from tvm_sched.relax.profiling.slow_kernels import slow_kernels, why_slow

op = relax.op
LARGE = (64, 4096)
FAST = {
    "activation": (op.nn.silu, LARGE),
    "broadcast": (op.add, LARGE, (4096,)),
    "softmax": (lambda x: op.nn.softmax(x, -1), LARGE),
    "first axis": (lambda x: op.sum(x, 0), LARGE),
    "transpose": (lambda x: op.permute_dims(x, (1, 0)), LARGE),
    "move of heads": (lambda x: op.permute_dims(x, (0, 2, 1, 3)), (1, 128, 32, 64)),
}


def reason(emit, *shapes, dtype="float32"):
    return why_slow(prepare_kernel(single_kernel(emit, *shapes, dtype=dtype)[0]))[1]


@pytest.mark.parametrize("name", FAST)
def test_fast(name):
    emit, *shapes = FAST[name]
    assert reason(emit, *shapes) == ""


def test_reasons():
    assert "exp of the C library" in reason(op.exp, LARGE, dtype="float64")
    x = te.placeholder(LARGE, "float32")
    rest = te.compute(
        LARGE, lambda i, j: tirx.call_pure_extern("float32", "fmodf", x[i, j], tirx.FloatImm("float32", 3))
    )
    assert "fmodf of the C library" in why_slow(prepare_kernel(te.create_prim_func([x, rest])))[1]
    assert "along memory" in reason(lambda x: op.strided_slice(x, [1], [0], [4096], [3]), LARGE)


def model(shape):
    x = relax.Var("x", relax.TensorType(shape, "float64"))
    builder = relax.BlockBuilder()
    with builder.function("main", [x]):
        with builder.dataflow():
            result = builder.emit_output(op.exp(x))
        builder.emit_func_output(result)
    return builder.get()


def test_compiled_model_lists_large_ones():
    (slow,) = compile(model(LARGE), "cpu1", "single").slow_kernels
    assert (slow.name, slow.microseconds) == ("tir_exp", None)
    assert compile(model((2, 3)), "cpu1", "single").slow_kernels == ()


@pytest.mark.parametrize(("source", "nanoseconds", "count"), [("measured", 10**7, 1), ("measured", 90_000, 0)])
def test_measured_times_decide_where_there_are_any(source, nanoseconds, count):
    estimate = passes.EstimateLatencies("cpu1", _costs(source, nanoseconds))
    chain = [passes.LowerToKernels(libraries=()), passes.PrepareKernels(), estimate]
    mod = tvm.transform.Sequential(chain)(model(LARGE))
    assert get_problem(mod).costs.source == source
    found = slow_kernels(mod)
    assert [kernel.microseconds for kernel in found] == [nanoseconds / 1e3] * count


def _costs(source, nanoseconds):
    from tvm_sched_runtime.problem import Costs

    return lambda graph, topology: Costs(
        np.full((len(graph.operators), len(topology.devices)), nanoseconds), source=source
    )
