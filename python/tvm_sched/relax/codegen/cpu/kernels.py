"""Prepare and compile CPU kernels whose loops several threads can run."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import tvm
import tvm_ffi
from tvm import tirx
from tvm.tirx.build import codegen_build

from tvm_frontends.kernels.recurrent import ByteProducts, byte_recurrent_kernel

from ...ir.flops import FLOPS, count_flops
from ...ir.loops import is_scheduled
from ...ir.statements import contains, map_statement, with_body
from ..decreasing_indices import hide_decreasing
from .block_sums import block_sums
from .cpu_loop_schedule import schedule_for_cpu
from .elementary import replace_calls
from .index_bounds import bound_indices
from .open_loops import cut_open_loops
from .parallel import worth_threads
from .remainders import hide_remainders
from .vectorize_elementwise import vectorise_functions
from .vectorize_reductions import vectorise_reductions


def prepare_kernel(function: tirx.PrimFunc, schedule: bool = True) -> tirx.PrimFunc:
    """Bound a kernel's indices, count its operations (attribute `FLOPS`), and schedule its loops.

    Parallel loops remain only in large kernels; the executor runs them on the threads of the kernel's operator.
    ``schedule``: whether to rearrange the loops (`schedule_for_cpu`); if not, no loop is parallel. The loops of a kernel
    that has a schedule (`is_scheduled`) stay as they are.
    """
    function = bound_indices(function.with_attr(FLOPS, tirx.IntImm("int64", count_flops(function))))
    if is_scheduled(function):
        return function
    if not schedule or not worth_threads(function):
        function = function.with_body(map_statement(function.body, kinds=_serial))
    return schedule_for_cpu(function) if schedule else function


def compile_kernels(functions: Mapping[str, tirx.PrimFunc], host: tvm.target.Target) -> tvm.runtime.Module:
    """Compile kernels, by their names in the result, to one module that can run and be exported."""
    return codegen_build(lower_kernels(functions, host), host)


def lower_kernels(functions: Mapping[str, tirx.PrimFunc], host: tvm.target.Target) -> tvm.IRModule:
    """Lower kernels for TVM's code generator, under their names in the result.

    Many kernels at once take a fraction of the time of one by one. The code of each is the same as if it were lowered alone,
    as long as either none or all of them have assertions (`has_assertions`).
    """
    named = {name: _with_byte_products(f, host).with_attr("global_symbol", name) for name, f in functions.items()}
    target = host.with_host(host)
    pipeline, _, _ = tirx.get_default_tir_pipeline(target)
    # Like TVM's finalize_host_passes. The variables of `replace_calls` come after memory is allocated, so that they live on
    # the stack. Checks of arguments, half of the code of a small kernel, are removed: the executor passes buffers from a
    # plan for the kernel. A kernel's own assertions stay.
    asserted = any(map(has_assertions, functions.values()))
    finalize = [
        *([] if asserted else [tirx.transform.SkipAssert(), tirx.transform.RemoveNoOp()]),
        tirx.transform.LowerTVMBuiltin(),
        _hide_remainders,
        _vectorise(host),
        tirx.transform.VectorizeLoop(),
        _replace_calls,
        tirx.transform.LowerIntrin(),
        _keep_not_a_number,
        _drop_pragmas,
    ]
    chain = tvm.transform.Sequential([tirx.transform.BindTarget(target), hide_decreasing, pipeline, *finalize])
    # LLVM eliminates common subexpressions better.
    with tvm.transform.PassContext(config={"tirx.disable_cse_tir": True}):
        return chain(tvm.IRModule(named))


def has_assertions(function: tirx.PrimFunc) -> bool:
    """Return whether a kernel has assertions of its own."""
    return contains(function.body, (tirx.AssertStmt,))


def _with_byte_products(function: tirx.PrimFunc, host: tvm.target.Target) -> tirx.PrimFunc:
    """Use the processor's products of bytes in a recurrent layer of 8 bits."""
    if host.kind.name != "llvm" or not tvm.target.codegen.target_has_features("sse4.1", host):
        return function
    has = tvm.target.codegen.target_has_features
    lanes = 16 if has("avx512bw", host) else 8 if has("avx2", host) else 4
    short = has("avx512vnni", host) if lanes == 16 else has("avxvnni", host)
    return byte_recurrent_kernel(function, ByteProducts("vpdpbusd" if short else "pmaddwd", lanes)) or function


def _vectorise(host: tvm.target.Target) -> tvm.transform.Pass:
    has = tvm.target.codegen.target_has_features
    bits = 512 if has("avx512f", host) else 256 if has("avx", host) else 128

    @tirx.transform.prim_func_pass(opt_level=0, name="tvm_sched.Vectorise")
    def run(function: tirx.PrimFunc, mod: tvm.IRModule, ctx: tvm.transform.PassContext) -> tirx.PrimFunc:
        if is_scheduled(function):
            return function
        return vectorise_functions(vectorise_reductions(block_sums(cut_open_loops(function), bits), bits), bits)

    return run


@tirx.transform.prim_func_pass(opt_level=0, name="tvm_sched.ReplaceCalls")
def _replace_calls(function: tirx.PrimFunc, mod: tvm.IRModule, ctx: tvm.transform.PassContext) -> tirx.PrimFunc:
    return replace_calls(function)


@tirx.transform.prim_func_pass(opt_level=0, name="tvm_sched.HideRemainders")
def _hide_remainders(function: tirx.PrimFunc, mod: tvm.IRModule, ctx: tvm.transform.PassContext) -> tirx.PrimFunc:
    return hide_remainders(function)


@tirx.transform.prim_func_pass(opt_level=0, name="tvm_sched.KeepNotANumber")
def _keep_not_a_number(function: tirx.PrimFunc, mod: tvm.IRModule, ctx: tvm.transform.PassContext) -> tirx.PrimFunc:
    """Make ``max(x, c)`` and ``min(x, c)`` with a floating-point constant propagate NaN, as in NumPy, ONNX and PyTorch.

    TVM compiles ``max(a, b)`` to ``a > b ? a : b``, which is ``b`` if either is NaN, so the constant must come first. This
    is the last step before code generation, since simplifications move constants back.
    """
    return with_body(function, tvm_ffi.structural_map(function.body, ((tirx.Max, tirx.Min), _constant_first)))


@tirx.transform.prim_func_pass(opt_level=0, name="tvm_sched.DropPragmas")
def _drop_pragmas(function: tirx.PrimFunc, mod: tvm.IRModule, ctx: tvm.transform.PassContext) -> tirx.PrimFunc:
    """Drop the pragma ``pragma_scope`` of TVM's scatters, which the code generator does not know and warns of."""
    return with_body(function, tvm_ffi.structural_map(function.body, (tirx.AttrStmt, _without_pragma)))


def _without_pragma(statement: tirx.AttrStmt) -> Any:
    return statement.body if statement.attr_key == "pragma_scope" else statement


def _constant_first(expr: Any) -> Any:
    return type(expr)(expr.b, expr.a) if _is_constant(expr.b) and not _is_constant(expr.a) else expr


def _is_constant(expr: Any) -> bool:
    return isinstance(expr.value if isinstance(expr, tirx.Broadcast) else expr, tirx.FloatImm)


def _serial(loop: tirx.For) -> tirx.ForKind:
    """Make parallel loops serial: in small kernels, waking a thread takes longer than the work."""
    return tirx.ForKind.SERIAL if loop.kind == tirx.ForKind.PARALLEL else tirx.ForKind(loop.kind)
