"""Loop schedules for GPUs by dlight's rules. Kernels that no rule fits keep their loops and run on one thread."""

from __future__ import annotations

from math import prod
from typing import Any

import tvm
from tvm import s_tir, tirx
from tvm.s_tir import dlight
from tvm.s_tir.dlight.analysis import normalize_prim_func

from tvm_frontends.kernels.recurrent import gpu_recurrent_kernel
from tvm_sched_runtime.errors import InputError

from ...ir.statements import intrinsic, map_statement, statements_in

_WITHOUT_TENSOR_CORES = tvm.target.Target({"kind": "cuda", "arch": "sm_60"}, host="llvm")

_FEW_TERMS, _MANY_RESULTS = 64, 2048
_THREADS = 128
"""Of a block, where iterations of a hand-written loop get one each."""
_NOWHERE = 2**63 - 1
_OF_HOST = ("tvm_call_packed", "tvm_call_cpacked", "call_extern", "call_packed")


class _Matmul(dlight.gpu.Matmul):
    """dlight's rule for matrix products, without tensor cores.

    dlight's tensor-core rule crashes in TVM 0.27: `Tensorize` needs an intrinsic that is not registered, and registering it
    takes half a minute. Kernel libraries use tensor cores instead.
    """

    def apply(self, func: tirx.PrimFunc, target: tvm.target.Target, _: bool) -> s_tir.Schedule | None:
        return super().apply(func, _WITHOUT_TENSOR_CORES, _)


class _OrNone:
    """A rule of dlight that leaves kernels to other rules on which TVM 0.27 fails an assertion.

    `GEMV` does so if the product has no spatial loop, `Reduction` on indices that are data (deformable convolution).
    """

    def apply(self, func: tirx.PrimFunc, target: tvm.target.Target, _: bool) -> s_tir.Schedule | None:
        try:
            return super().apply(func, target, _)  # type: ignore[misc]
        except AssertionError:
            return None


class _Gemv(_OrNone, dlight.gpu.GEMV):
    pass


class _Reduction(_OrNone, dlight.gpu.Reduction):
    pass


class _GeneralReduction(_OrNone, dlight.gpu.GeneralReduction):
    pass


class _Windows(dlight.gpu.Fallback):
    """One thread per result for windows (pooling, grouped convolutions) and for many results with few terms each.

    dlight's rules for reductions use one block per result, whose threads would mostly idle. If an operator is fused to a
    grouped convolution, its threads also wrongly read each other's local memory. Threads cannot share the positions of
    extrema as they are computed on CPUs, whose combiner TVM does not know.
    """

    def apply(self, func: tirx.PrimFunc, target: tvm.target.Target, _: bool) -> s_tir.Schedule | None:
        schedule = s_tir.Schedule(func)
        infos = normalize_prim_func(schedule)
        sums = [info for info in infos or () if info.is_reduction()]
        blocks = [schedule.get(info.block_rv) for info in sums]
        if any(_is_window(block) or not _can_be_shared(block) for block in blocks):
            return super().apply(func, target, _)
        if len(sums) != 1 or not all(isinstance(axis.dom, (int, tirx.IntImm)) for axis in sums[0].iters):
            return None
        results, terms = (
            prod(int(a.dom) for a in sums[0].iters if (a.kind == "R") == reduced) for reduced in (False, True)
        )
        few = terms <= _FEW_TERMS and results >= _MANY_RESULTS
        return super().apply(func, target, _) if few else None


def _is_window(block: s_tir.SBlock) -> bool:
    """Whether an index of a tensor that a sum reads depends on both a spatial and a reduction axis."""
    summed = {axis.var for axis in block.iter_vars if axis.iter_type == tirx.IterVar.CommReduce}
    placed = {axis.var for axis in block.iter_vars} - summed
    for read in block.reads:
        for extent in read.region:
            used = set(tirx.analysis.undefined_vars(tirx.Evaluate(extent.min), []))
            if used & summed and used & placed:
                return True
    return False


def _can_be_shared(block: s_tir.SBlock) -> bool:
    """Whether it is no position of an extremum as computed on CPUs: that starts at the greatest int64, TVM's at -1."""
    if len(block.writes) == 1 or not isinstance(block.init, tirx.SeqStmt):
        return True
    values = [part.value for part in block.init.seq if isinstance(part, tirx.BufferStore)]
    return not any(isinstance(value, tirx.IntImm) and int(value) == _NOWHERE for value in values[:1])


def schedule_for_gpu(module: tvm.IRModule, target: tvm.target.Target) -> tvm.IRModule:
    """Bind the loops of each kernel to blocks and threads."""
    rules: tuple[Any, ...] = (
        _Matmul(),
        _Windows(),
        _Gemv(),
        _Reduction(),
        _GeneralReduction(),
        dlight.gpu.Fallback(),
    )
    module = tvm.IRModule({name: _for_gpu(function) for name, function in module.functions_items()})
    for name, function in module.functions_items():
        _refuse_calls(name.name_hint, function)
    blocks = {name: function for name, function in module.functions_items() if _is_block(function)}
    with target:
        scheduled = dict(dlight.ApplyDefaultSchedule(*rules)(tvm.IRModule(blocks)).functions_items())
    functions = {name: scheduled.get(name, function) for name, function in module.functions_items()}
    return tvm.IRModule({name: _on_one_thread(function) for name, function in functions.items()})


def _for_gpu(function: tirx.PrimFunc) -> tirx.PrimFunc:
    """Replace the kernel of a recurrent layer by one with a thread for each hidden unit; return other kernels."""
    kernel = gpu_recurrent_kernel(function)
    if kernel is None or len(kernel.params) != len(function.params):
        return function
    return kernel.with_attrs(dict(function.attrs.items()))


def _is_block(function: tirx.PrimFunc) -> bool:
    """Whether a kernel is a block, as TVM generates it from an operator; other kernels are hand-written loops."""
    return isinstance(function.body, s_tir.SBlockRealize)


def _refuse_calls(name: str, function: tirx.PrimFunc) -> None:
    """Refuse a kernel that calls functions of the host."""
    for statement in statements_in(function.body):
        call = statement.value if isinstance(statement, tirx.Evaluate) else None
        if isinstance(call, tvm.ir.Call) and intrinsic(call) in _OF_HOST:
            raise InputError(
                f"the kernel {name!r} calls {call.args[0]}, a function of the host, and there is no kernel for GPUs in its "
                "place; compile for a topology of CPUs, or leave the operator out of the model"
            )


def _on_one_thread(function: tirx.PrimFunc) -> tirx.PrimFunc:
    """Bind a kernel to one thread, with its own loop order; unchanged if its loops are already bound.

    If a kernel is one parallel loop, each iteration gets a thread.
    """
    if any(map(_is_bound, statements_in(function.body))):
        return function
    if not _is_block(function):
        parts = list(function.body.seq) if isinstance(function.body, tirx.SeqStmt) else [function.body]
        memory = [part for part in parts if isinstance(part, tirx.AllocBuffer) and part.buffer.scope() == "global"]
        others = [part for part in parts if not any(part.same_as(each) for each in memory)]
        rest = _sequence(others)
        bound = _one_thread_each(rest) if _is_parallel(rest) else _bound_once(rest)
        return function.with_body(_sequence([*memory, bound]))
    realize = function.body
    root = realize.block
    block = s_tir.SBlock(
        root.iter_vars, root.reads, root.writes, root.name_hint, _bound_once(root.body), root.init, root.alloc_buffers,
        root.match_buffers, root.annotations, root.span,
    )  # fmt: skip
    return function.with_body(s_tir.SBlockRealize(realize.iter_values, realize.predicate, block, realize.span))


def _sequence(parts: list[Any]) -> Any:
    """Return statements as one; TVM has no sequence of a single one."""
    return parts[0] if len(parts) == 1 else tirx.SeqStmt(parts)


def _is_parallel(statement: Any) -> bool:
    """Whether a statement is a loop whose iterations are independent and all known, and take no memory of their own."""
    return (
        isinstance(statement, tirx.For)
        and statement.kind == tirx.ForKind.PARALLEL
        and isinstance(statement.min, tirx.IntImm)
        and isinstance(statement.extent, tirx.IntImm)
        and int(statement.min) == 0 < int(statement.extent)
        and not any(map(_takes_memory, statements_in(statement.body)))
    )


def _takes_memory(statement: Any) -> bool:
    if isinstance(statement, s_tir.SBlockRealize):
        return bool(statement.block.alloc_buffers)
    return isinstance(statement, tirx.AllocBuffer)


def _one_thread_each(loop: tirx.For) -> Any:
    """Give each iteration of a parallel loop a thread."""
    extent = int(loop.extent)
    threads = min(extent, _THREADS)
    blocks = -(-extent // threads)
    thread, block = (tirx.Var(axis.replace(".", "_"), "int32") for axis in ("threadIdx.x", "blockIdx.x"))
    place = block.astype(loop.loop_var.ty.dtype) * threads + thread.astype(loop.loop_var.ty.dtype)
    body = tirx.SeqStmt([tirx.Bind(loop.loop_var, place), map_statement(loop.body, kinds=_serial)])
    body = body if blocks * threads == extent else tirx.IfThenElse(place < extent, body, None)
    for axis, variable, count in (("threadIdx.x", thread, threads), ("blockIdx.x", block, blocks)):
        bound = tirx.IterVar((0, count), variable, tirx.IterVar.ThreadIndex, axis)
        body = tirx.For(variable, 0, count, tirx.ForKind.THREAD_BINDING, body, bound)
    return body


def _bound_once(body: Any) -> Any:
    for axis in ("threadIdx.x", "blockIdx.x"):
        variable = tirx.Var(axis.replace(".", "_"), "int32")
        thread = tirx.IterVar((0, 1), variable, tirx.IterVar.ThreadIndex, axis)
        body = tirx.For(variable, 0, 1, tirx.ForKind.THREAD_BINDING, map_statement(body, kinds=_serial), thread)
    return body


def _serial(loop: tirx.For) -> tirx.ForKind:
    return loop.kind if loop.kind == tirx.ForKind.THREAD_BINDING else tirx.ForKind.SERIAL


def _is_bound(statement: Any) -> bool:
    if isinstance(statement, tirx.For):
        return bool(statement.kind == tirx.ForKind.THREAD_BINDING)
    return isinstance(statement, tirx.AttrStmt) and statement.attr_key == "thread_extent"


def has_one_thread(function: tirx.PrimFunc) -> bool:
    """Whether a scheduled kernel runs on one thread of one block."""
    return not any(_is_bound(part) and _extent(part) != 1 for part in statements_in(function.body))


def _extent(statement: Any) -> int:
    extent = statement.extent if isinstance(statement, tirx.For) else statement.value
    return int(extent) if isinstance(extent, (int, tirx.IntImm)) else 0


def without_offsets(function: tirx.PrimFunc) -> tirx.PrimFunc:
    """Set the element offsets of a kernel's tensors to 0, as the executor passes pointers to the first element.

    TVM's hand-written kernels (scatters, searches) take the offset from the caller.
    """
    without = {
        buffer: tirx.decl_buffer(buffer.ty.shape, buffer.ty.dtype, buffer.name, elem_offset=0)
        for buffer in function.params
        if isinstance(buffer.ty, tirx.BufferType) and isinstance(buffer.ty.elem_offset, tirx.Var)
    }
    return function.specialize(without) if without else function
