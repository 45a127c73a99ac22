"""Prices of kernels for GPUs: half precision at the tensor cores' rate only where a library computes it."""

import pytest
from tvm import relax

from tvm_sched.cost_model.device_properties import rate_of
from tvm_sched.relax import passes
from tvm_sched.relax.ir.attributes import get_problem
from tvm_sched.relax.toolchain.compile_target import CompileTarget

ROWS = 2048


def nanoseconds(libraries, dtype, cost_model, precision="float32"):
    x, y = (relax.Var(name, relax.TensorType((ROWS, ROWS), dtype)) for name in "xy")
    builder = relax.BlockBuilder()
    with builder.function("main", [x, y]):
        with builder.dataflow():
            result = builder.emit_output(relax.op.matmul(x, y, out_dtype="float32"))
        builder.emit_func_output(result)
    mod = passes.SetCompileTarget(CompileTarget.of(precision=precision))(builder.get())
    lowered = passes.LowerToKernels(libraries=libraries, device_kind="cuda")(mod)
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


@pytest.mark.parametrize("cost_model", ["roofline", "occupancy", "learned"])
def test_tf32_is_priced_where_it_is_asked_for(cost_model):
    full = nanoseconds(("nvidia",), "float32", cost_model)
    rounded = nanoseconds(("nvidia",), "float32", cost_model, "tf32")
    assert rounded < full / 2


def test_the_rate_of_tf32_is_half_of_bfloat16s_where_no_other_is_given():
    assert rate_of({"float32": 1.0, "bfloat16": 16.0}, "tf32") == 8
    assert rate_of({"float32": 1.0, "bfloat16": 16.0, "tf32": 7.0}, "tf32") == 7
    assert rate_of({"float32": 1.0, "float16": 8.0}, "tf32") == 1, "Volta has none"
