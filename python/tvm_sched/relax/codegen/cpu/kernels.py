"""Kernels for the CPU: loops that several threads can run at once, and their compilation."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import tvm
import tvm_ffi
from tvm import tirx
from tvm.tirx.build import codegen_build

from ...ir.flops import FLOPS, count_flops
from ...ir.statements import contains, map_statement
from .cpu_schedule import schedule_for_cpu
from .elementary import replace_calls
from .index_bounds import bound_indices
from .parallel import worth_threads
from .remainders import hide_remainders
from .vectorize_elementwise import vectorise_functions
from .vectorize_reductions import vectorise_reductions


def prepare_kernel(function: tirx.PrimFunc, schedule: bool = True) -> tirx.PrimFunc:
    """Make a kernel fit to run beside others, and note its floating-point operations.

    Parallel loops remain where the work is worth it: the executor runs them on the threads of the kernel's operator.

    Parameters
    ----------
    function : tvm.tirx.PrimFunc
    schedule : bool
        Whether its loops are rearranged for a CPU (`schedule_for_cpu`); without it no loop is parallel.
    """
    function = bound_indices(function.with_attr(FLOPS, tirx.IntImm("int64", count_flops(function))))
    if not schedule or not worth_threads(function):
        function = function.with_body(map_statement(function.body, kinds=_serial))
    return schedule_for_cpu(function) if schedule else function


def compile_kernels(functions: Mapping[str, tirx.PrimFunc], host: tvm.target.Target) -> tvm.runtime.Module:
    """Compile kernels into one module, which can run them and be exported.

    Parameters
    ----------
    functions : mapping of str to PrimFunc
        By the name under which the module will hold them.
    """
    named = {name: function.with_attr("global_symbol", name) for name, function in functions.items()}
    target = host.with_host(host)
    pipeline, _, _ = tirx.get_default_tir_pipeline(target)
    # What finalize_host_passes of TVM does, with the variables of the functions' arithmetic after memory is allocated:
    # they live on the stack. Before that goes what would check arguments: the executor gives each kernel buffers of a plan
    # that was made for it. The checks would be half of the code of a small kernel. A kernel's own assertions stay.
    asserted = any(contains(function.body, (tirx.AssertStmt,)) for function in functions.values())
    finalize = [
        *([] if asserted else [tirx.transform.SkipAssert(), tirx.transform.RemoveNoOp()]),
        tirx.transform.LowerTVMBuiltin(),
        _hide_remainders,
        _vectorise(host),
        tirx.transform.VectorizeLoop(),
        _replace_calls,
        tirx.transform.LowerIntrin(),
        _keep_not_a_number,
    ]
    chain = tvm.transform.Sequential([tirx.transform.BindTarget(target), pipeline, *finalize])
    with tvm.transform.PassContext(config={"tirx.disable_cse_tir": True}):  # LLVM does that, and better
        return codegen_build(chain(tvm.IRModule(named)), host)


def _vectorise(host: tvm.target.Target) -> tvm.transform.Pass:
    has = tvm.target.codegen.target_has_features
    bits = 512 if has("avx512f", host) else 256 if has("avx", host) else 128

    @tirx.transform.prim_func_pass(opt_level=0, name="tvm_sched.Vectorise")
    def run(function: tirx.PrimFunc, mod: tvm.IRModule, ctx: tvm.transform.PassContext) -> tirx.PrimFunc:
        return vectorise_functions(vectorise_reductions(function, bits), bits)

    return run


@tirx.transform.prim_func_pass(opt_level=0, name="tvm_sched.ReplaceCalls")
def _replace_calls(function: tirx.PrimFunc, mod: tvm.IRModule, ctx: tvm.transform.PassContext) -> tirx.PrimFunc:
    return replace_calls(function)


@tirx.transform.prim_func_pass(opt_level=0, name="tvm_sched.HideRemainders")
def _hide_remainders(function: tirx.PrimFunc, mod: tvm.IRModule, ctx: tvm.transform.PassContext) -> tirx.PrimFunc:
    return hide_remainders(function)


@tirx.transform.prim_func_pass(opt_level=0, name="tvm_sched.KeepNotANumber")
def _keep_not_a_number(function: tirx.PrimFunc, mod: tvm.IRModule, ctx: tvm.transform.PassContext) -> tirx.PrimFunc:
    """Let ``max(x, c)`` and ``min(x, c)`` of a floating-point constant be NaN where x is, as in NumPy, ONNX and PyTorch.

    TVM's code for ``max(a, b)`` is ``a > b ? a : b``, which is ``b`` where either is NaN: the constant goes first. This is
    the last step before code is generated, since a simplification moves constants back.
    """
    body = tvm_ffi.structural_map(function.body, ((tirx.Max, tirx.Min), _constant_first))
    return function if body.same_as(function.body) else function.with_body(body)


def _constant_first(expr: Any) -> Any:
    return type(expr)(expr.b, expr.a) if _is_constant(expr.b) and not _is_constant(expr.a) else expr


def _is_constant(expr: Any) -> bool:
    return isinstance(expr.value if isinstance(expr, tirx.Broadcast) else expr, tirx.FloatImm)


def _serial(loop: tirx.For) -> tirx.ForKind:
    """Small parallel loops become serial: waking a thread takes longer."""
    return tirx.ForKind.SERIAL if loop.kind == tirx.ForKind.PARALLEL else tirx.ForKind(loop.kind)
