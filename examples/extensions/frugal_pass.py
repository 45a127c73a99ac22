"""A pass in place of `Place`: several devices only if that saves a tenth of the latency on one.

``python examples/extensions/frugal_pass.py`` compiles a model with it and runs it.
"""

import tvm

from tvm_sched.relax.ir.attributes import SCHEDULE, get_problem, get_schedule, leave
from tvm_sched.schedulers import solve


@tvm.transform.module_pass(opt_level=0, name="FrugalPlace")
class FrugalPlace:
    """HEFT's schedule if it takes at most 90 % of the time on one device, else one device."""

    def transform_module(self, mod, ctx):
        one, several = (solve(get_problem(mod), method=name) for name in ("single", "heft"))
        saves = several.certificate.latency_ns <= 0.9 * one.certificate.latency_ns
        return leave(mod, SCHEDULE, several if saves else one)


if __name__ == "__main__":
    import numpy as np

    from tvm_sched.relax.passes import EmitExecutor, EstimateLatencies, LowerToKernels, PrepareKernels
    from tvm_sched_runtime.problem import load_topology

    builder = tvm.relax.BlockBuilder()
    x = tvm.relax.Var("x", tvm.relax.TensorType((64, 64), "float32"))
    with builder.function("main", [x]):
        with builder.dataflow():
            result = builder.emit_output(tvm.relax.op.add(tvm.relax.op.matmul(x, x), tvm.relax.op.exp(x)))
        builder.emit_func_output(result)

    placed = tvm.transform.Sequential(
        [LowerToKernels(), PrepareKernels(), EstimateLatencies(load_topology("cpu2"), "roofline"), FrugalPlace()]
    )(builder.get())
    print(get_schedule(placed).scheduler)
    steps = tvm.transform.Sequential([EmitExecutor(), tvm.relax.get_pipeline("default_build")])
    machine = tvm.relax.VirtualMachine(tvm.compile(placed, "llvm", relax_pipeline=steps), tvm.cpu())
    value = np.eye(64, dtype="float32")
    found = machine["main"](tvm.runtime.tensor(value)).numpy()
    np.testing.assert_allclose(found, value @ value + np.exp(value), rtol=1e-5)
