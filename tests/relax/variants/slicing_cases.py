"""Cases of `test_slicing.py` that other tests use, too."""

import numpy as np
import tvm
from tvm import relax


def kernel(shapes, compute):
    """The one kernel that TVM makes of a computation, fused."""
    builder = relax.BlockBuilder()
    arguments = [relax.Var(f"a{k}", relax.TensorType(shape, "float32")) for k, shape in enumerate(shapes)]
    with builder.function("main", arguments):
        with builder.dataflow():
            result = builder.emit_output(compute(builder, *arguments))
        builder.emit_func_output(result)
    transform = relax.transform
    passes = [transform.LegalizeOps(), transform.AnnotateTIROpPattern(), transform.FuseOps(), transform.FuseTIR()]
    made = tvm.transform.Sequential(passes)(builder.get())
    (function,) = (f for _, f in made.functions_items() if isinstance(f, tvm.tirx.PrimFunc))
    return function


def run(function, arguments):
    result = function.params[-1]
    out = tvm.runtime.tensor(np.zeros([int(n) for n in result.shape], "float32"))
    module = tvm.compile(tvm.IRModule({"main": function.with_attr("global_symbol", "main")}), target="llvm")
    module["main"](*(tvm.runtime.tensor(np.ascontiguousarray(a)) for a in arguments), out)
    return out.numpy()
