"""A kernel library that computes tanh by exponentials, without overflow.

``python examples/extensions/tanh_library.py`` compiles a model with it, saves it, loads it and runs it.
"""

import tvm

from tvm_sched.relax.ir.tensor_types import known_shape
from tvm_sched.relax.lower.kernel_libraries import KernelLibrary, register
from tvm_sched.relax.lower.kernel_libraries.rewrite import Rewriter, is_float32, operation


class ClaimTanh(Rewriter):
    """Replace each tanh of float32 by a call of the kernel."""

    def __init__(self, mod, kernels):
        super().__init__(mod)
        self.kernels = kernels

    def visit(self, variable, value):
        if operation(value) != "tanh" or not is_float32(value):
            return super().visit(variable, value)
        shape = list(known_shape(value))
        argument = self.value(value.args[0])
        return self.emit(self.kernels.call("tanh", {"shape": shape}, [argument], value.ty, 0))


def tanh(name, shape):
    """Return the kernel: (1 - e) / (1 + e) with e = exp(-2 |x|), and the sign of x."""
    x = tvm.te.placeholder(shape, name="x")

    def element(*at):
        e = tvm.tirx.exp(-2 * tvm.te.abs(x(*at)))
        return tvm.tirx.Select(x(*at) < 0, (e - 1) / (1 + e), (1 - e) / (1 + e))

    return tvm.te.create_prim_func([x, tvm.te.compute(shape, element, name="y")]).with_attr("global_symbol", name)


def make_module(kernels, cores, threads):
    """Build the kernels."""
    functions = {name: tanh(name, kernel["shape"]) for name, kernel in kernels.items()}
    return tvm.tirx.build(tvm.IRModule(functions), target="llvm")


register(KernelLibrary("exponentials", "cpu", lambda: None, lambda mod, k, names: ClaimTanh(mod, k).run(), make_module))

if __name__ == "__main__":
    import tempfile
    from pathlib import Path

    import numpy as np

    from tvm_sched.relax import compile
    from tvm_sched_runtime.runtime import load

    builder = tvm.relax.BlockBuilder()
    x = tvm.relax.Var("x", tvm.relax.TensorType((2, 3), "float32"))
    with builder.function("main", [x]):
        with builder.dataflow():
            result = builder.emit_output(tvm.relax.op.tanh(x))
        builder.emit_func_output(result)
    compiled = compile(builder.get(), "cpu1", "single", cost_model="roofline")
    print([operator.kind for operator in compiled.problem.graph.operators])
    value = np.linspace(-200, 200, 6, dtype="float32").reshape(2, 3)
    with tempfile.TemporaryDirectory() as folder:
        path = str(Path(folder, "model.so"))
        compiled.export(path)
        (found,) = load(path).run(value)
    np.testing.assert_allclose(found, np.tanh(value), rtol=1e-5)
