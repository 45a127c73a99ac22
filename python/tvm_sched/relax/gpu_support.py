"""`check_for_gpus`: which kernels of a model have none for GPUs or run on one thread there, without a GPU or nvcc."""

from __future__ import annotations

from dataclasses import dataclass, field
from math import prod
from typing import Any

import tvm
from tvm import relax, tirx

from tvm_sched_runtime.errors import TvmSchedError

from .codegen.cuda.gpu_schedule import has_one_thread, schedule_for_gpu, without_offsets
from .codegen.prepare_kernels import prepare_kernels
from .lower.dynamic_tail import refuse_tail
from .lower.kernel_libraries import claimed_functions
from .lower.lower_to_kernels import LowerToKernels
from .lower.split_tail import SplitTail
from .toolchain.failures import explained

REMEDY = "compile for a topology of CPUs, or leave the operator out of the model"
_ARCH = "sm_80"
_FEW = 64
"""Numbers of a kernel's largest tensor up to which one thread is enough."""


@dataclass
class GpuSupport:
    """The kernels of a model that GPUs cannot run, and those that are slow there."""

    refused: dict[str, str] = field(default_factory=dict)
    """Reason, with what to do, by kernel; the kernel is empty if the whole model is refused."""
    one_thread: list[str] = field(default_factory=list)
    """Kernels without a loop schedule for GPUs: one thread of the GPU runs each."""


def check_for_gpus(mod: tvm.IRModule) -> GpuSupport:
    """Lower a model with static shapes as ``backend="cuda"`` does, and look at each kernel.

    The kernel libraries for GPUs count as present, so that the result does not depend on the machine.
    """
    support = GpuSupport()
    try:
        refuse_tail([tvm.transform.Sequential([SplitTail()])(mod)], "the backend 'cuda'")
        lower = LowerToKernels(device_kind="cuda", libraries=("handwritten_cuda", "nvidia"), archs=(_ARCH,))
        with explained("the model"):
            lowered = tvm.transform.Sequential([lower])(mod)
    except TvmSchedError as error:
        support.refused[""] = str(error)
        return support
    claimed = claimed_functions(lowered)
    for name in _host_functions(lowered["main"]):
        if name not in claimed:
            support.refused[name] = (
                f"it is a function of the host, and there is no kernel for GPUs in its place; {REMEDY}"
            )
    for variable, function in prepare_kernels(lowered, schedule=False).functions_items():
        if isinstance(function, tirx.PrimFunc):
            _check(support, str(variable.name_hint), function)
    return support


def _check(support: GpuSupport, name: str, function: tirx.PrimFunc) -> None:
    shapes = [p.ty.shape for p in function.params if isinstance(p.ty, tirx.BufferType)]
    if not all(isinstance(extent, (int, tirx.IntImm)) for shape in shapes for extent in shape):
        support.refused[name] = f"its shapes are not static; give all shapes (--shape), or {REMEDY}"
        return
    target = tvm.target.Target({"kind": "cuda", "arch": _ARCH}, host="llvm")
    named = without_offsets(function).with_attr("global_symbol", name)
    try:
        with explained(f"kernel {name!r}"):
            scheduled = schedule_for_gpu(tvm.IRModule({name: named}), target)[name]
    except TvmSchedError as error:
        support.refused[name] = str(error)
        return
    largest = max((prod(int(extent) for extent in shape) for shape in shapes), default=0)
    if largest > _FEW and has_one_thread(scheduled):
        support.one_thread.append(name)


def _host_functions(main: relax.Function) -> list[str]:
    """Return the functions that `main` calls by name, in its order."""
    names: dict[str, None] = {}

    def visit(expr: Any) -> None:
        if not isinstance(expr, relax.Call):
            return
        callee = expr.args[0] if isinstance(expr.op, tvm.ir.Op) and expr.args else expr.op
        if isinstance(callee, relax.ExternFunc):
            names[str(callee.global_symbol)] = None

    relax.analysis.post_order_visit(main, visit)
    return list(names)
