"""Loops for GPUs: dlight's rules, and what remains in its own order, on few threads."""

from __future__ import annotations

from typing import Any

import tvm
from tvm import s_tir, tirx
from tvm.s_tir import dlight

_WITHOUT_TENSOR_CORES = tvm.target.Target({"kind": "cuda", "arch": "sm_60"}, host="llvm")


class _Matmul(dlight.gpu.Matmul):  # type: ignore[misc]
    """dlight's loops for products without those for tensor cores.

    In TVM 0.27 these crash: `Tensorize` takes an intrinsic that nothing has registered, and registering it takes half a
    minute. What tensor cores compute, the kernel libraries do.
    """

    def apply(self, func: tirx.PrimFunc, target: tvm.target.Target, _: bool) -> s_tir.Schedule | None:
        return super().apply(func, _WITHOUT_TENSOR_CORES, _)


def schedule_for_gpu(module: tvm.IRModule, target: tvm.target.Target) -> tvm.IRModule:
    """Bind the loops of each kernel to blocks and threads."""
    rules: tuple[Any, ...] = (
        _Matmul(),
        dlight.gpu.GEMV(),
        dlight.gpu.Reduction(),
        dlight.gpu.GeneralReduction(),
        dlight.gpu.Fallback(),
    )
    with target:
        return dlight.ApplyDefaultSchedule(*rules)(module)


def without_offsets(function: tirx.PrimFunc) -> tirx.PrimFunc:
    """A kernel whose tensors begin where their pointers point, as those of the executor do.

    TVM's kernels that are written as loops (scatters, searches) leave the offset to the caller.
    """
    begun = {
        buffer: tirx.decl_buffer(buffer.ty.shape, buffer.ty.dtype, buffer.name, elem_offset=0)
        for buffer in function.params
        if isinstance(buffer.ty, tirx.BufferType) and isinstance(buffer.ty.elem_offset, tirx.Var)
    }
    return function.specialize(begun) if begun else function
