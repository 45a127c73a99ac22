"""Long chains of elementwise operators are fused in parts, since compile time grows faster than a kernel's length."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import tvm
from tvm import relax

from tvm_sched.relax.lower.lower_to_kernels import MOST_FUSED
from tvm_sched.relax.passes import LowerToKernels

STEPS: dict[str, list[Callable[..., relax.Expr]]] = {
    "chain": [lambda x, _: relax.op.sin(x), lambda x, _: relax.op.negative(x)],
    "used twice": [lambda x, _: relax.op.tanh(x), lambda x, before: relax.op.add(x, before)],
}


def kernels(operators: int, kind: str) -> list[int]:
    """Return the number of operators in each kernel that a sequence of operators becomes."""
    x = relax.Var("x", relax.TensorType((4, 6), "float32"))
    builder, results, fused = relax.BlockBuilder(), [x, x], []
    with builder.function("main", [x]):
        with builder.dataflow():
            for step in range(operators):
                results.append(builder.emit(STEPS[kind][step % 2](*results[:-3:-1])))
            result = builder.emit_output(results[-1])
        builder.emit_func_output(result)

    @tvm.transform.module_pass(opt_level=0, name="tests.Count")
    def count(mod: tvm.IRModule, ctx: tvm.transform.PassContext) -> tvm.IRModule:
        called = [binding.value.op for block in mod["main"].body.blocks for binding in block.bindings]
        for function in (mod[variable] for variable in called if isinstance(variable, tvm.ir.GlobalVar)):
            fused.append(sum(len(block.bindings) for block in function.body.blocks))
        return mod

    LowerToKernels(libraries=(), after_fusion=[count])(builder.get())
    return fused


@pytest.mark.parametrize("kind", STEPS)
@pytest.mark.parametrize("operators", [20, 300])
def test_largest_kernel(operators: int, kind: str) -> None:
    sizes = kernels(operators, kind)
    assert sum(sizes) == operators
    assert max(sizes) <= MOST_FUSED
    assert len(sizes) <= 2 * operators // MOST_FUSED + 1  # and what is shorter stays whole
