"""Prices of kernels for GPUs: half precision at the tensor cores' rate only where a library computes it."""

import pytest
from tvm import relax

from tvm_sched.relax import passes
from tvm_sched.relax.attributes import get_problem

ROWS = 2048


def nanoseconds(libraries, dtype, cost_model):
    x, y = (relax.Var(name, relax.TensorType((ROWS, ROWS), dtype)) for name in "xy")
    builder = relax.BlockBuilder()
    with builder.function("main", [x, y]):
        with builder.dataflow():
            result = builder.emit_output(relax.op.matmul(x, y, out_dtype="float32"))
        builder.emit_func_output(result)
    lowered = passes.LowerToKernels(libraries=libraries, device_kind="cuda")(builder.get())
    problem = get_problem(passes.EstimateLatencies("h200x8", cost_model)(lowered))
    return problem.costs.operator_ns[-1][0]


@pytest.mark.parametrize("cost_model", ["roofline", "occupancy"])
def test_the_kernel_chosen_is_priced(cost_model):
    full, half, library = (
        nanoseconds((), "float32", cost_model),
        nanoseconds((), "float16", cost_model),
        nanoseconds(("nvidia",), "float16", cost_model),
    )
    assert half == pytest.approx(full, rel=0.05), "TVM's kernel multiplies in float32"
    assert library < full / 5, "cuBLASLt's on tensor cores"
