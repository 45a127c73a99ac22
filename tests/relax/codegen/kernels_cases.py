"""Cases of `test_kernels.py` that other tests use, too."""

import tvm
from tvm import relax

from tvm_sched.relax import passes
from tvm_sched.relax.codegen.cpu.kernels import compile_kernels
from tvm_sched.relax.toolchain.compile_target import CompileTarget


def single_kernel(emit, *shapes, dtype="float32"):
    """The PrimFunc that an operator becomes, before its loops are rearranged."""
    builder = relax.BlockBuilder()
    variables = [relax.Var(f"x{k}", relax.TensorType(shape, dtype)) for k, shape in enumerate(shapes)]
    with builder.function("main", variables):
        with builder.dataflow():
            result = builder.emit_output(emit(*variables))
        builder.emit_func_output(result)
    mod = passes.PrepareKernels(schedule=False)(passes.LowerToKernels(libraries=())(builder.get()))
    functions = [function for function in mod.functions.values() if isinstance(function, tvm.tirx.PrimFunc)]
    assert len(functions) == 1
    ty = mod["main"].ret_ty
    return functions[0], tuple(int(d) for d in ty.shape.values), str(ty.dtype.dtype)


def call(function, inputs, shape, dtype, host=None):
    result = tvm.runtime.empty(shape, dtype)
    compiled = compile_kernels({"kernel": function}, host or CompileTarget().host)
    compiled["kernel"](*(tvm.runtime.tensor(x) for x in inputs), result)
    return result.numpy()
