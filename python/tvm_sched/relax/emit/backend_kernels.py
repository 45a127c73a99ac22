"""Compile the kernels of an artifact for its backend, and state the processors and GPUs that they need."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import tvm

from tvm_sched_runtime.errors import InputError
from tvm_sched_runtime.problem import Topology
from tvm_sched_runtime.runtime.machine import describe

from ..codegen.cpu.kernels import compile_kernels
from ..codegen.cuda import compile_cuda_kernels, needed_architectures
from ..ir.flops import FLOPS
from ..toolchain.compile_target import needs_of

Compiler = Callable[[Mapping[str, tvm.tirx.PrimFunc], tvm.target.Target], tvm.runtime.Module]


def compile_for(
    backend: str,
    kernels: dict[str, tvm.tirx.PrimFunc],
    topology: Topology,
    targets: Mapping[str, tvm.target.Target],
    compiler: Compiler = compile_kernels,
) -> list[tvm.runtime.Module]:
    """Compile kernels for a backend, by the names under which the executor looks them up.

    ``targets`` are those of the host's kernels, by the suffix of the kernels' names (`CompileTarget.hosts`). ``compiler``
    compiles for the host. The default makes code that runs and can be exported; the compilers of
    `tvm_sched.relax.codegen.cpu.kernel_objects` make code for one of the two.
    """
    if not kernels:
        return []
    for name, kernel in kernels.items():
        if FLOPS not in (kernel.attrs or {}):
            raise InputError(
                f"kernel {name!r} is not prepared for the executor; run PrepareKernels after LowerToKernels"
            )
    if backend == "cuda":
        return [compile_cuda_kernels(kernels, [device.arch for device in topology.devices])]
    return [
        compiler({f"{name}{suffix}": kernel for name, kernel in kernels.items()}, target)
        for suffix, target in targets.items()
    ]


def description(
    backend: str, devices: Any, targets: Mapping[str, tvm.target.Target], topology: Topology
) -> dict[str, Any]:
    """Describe what an artifact was compiled with and for, and the processors and GPUs that it needs."""
    needs = needs_of(targets)
    if backend == "cuda":
        needs["cuda"] = needed_architectures(device.arch for device in topology.devices)
    return describe(backend, devices, "; ".join(map(str, targets.values())), needs)
