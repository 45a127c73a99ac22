"""Resolve the functions that a module's kernel calls name: from kernel libraries, or compiled into the artifact."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import tvm

from ...execution_plan import KernelCall
from ...problem import Topology
from ..codegen.cpu.kernels import compile_kernels
from ..codegen.cuda import compile_cuda_kernels, needed_architectures
from ..toolchain.processor import needs_of

Compiler = Callable[[Mapping[str, tvm.tirx.PrimFunc], tvm.target.Target], tvm.runtime.Module]


def compile_for(
    backend: str,
    kernels: dict[str, tvm.tirx.PrimFunc],
    topology: Topology,
    targets: Mapping[str, tvm.target.Target],
    compiler: Compiler = compile_kernels,
) -> list[tvm.runtime.Module]:
    """Compile kernels for a backend, by the names under which they are looked up.

    ``targets``: of the host's kernels, by what is added to their names (`kernel_targets`). ``compiler`` makes these: by
    default code that runs and can be exported; `tvm_sched.relax.codegen.cpu.kernel_objects` has others, for one of the two.
    """
    if not kernels:
        return []
    if backend == "cuda":
        return [compile_cuda_kernels(kernels, [device.arch for device in topology.devices])]
    return [
        compiler({f"{name}{suffix}": kernel for name, kernel in kernels.items()}, target)
        for suffix, target in targets.items()
    ]


def needs_for(backend: str, targets: Mapping[str, tvm.target.Target], topology: Topology) -> dict[str, Any]:
    """The processors and GPUs that an artifact needs, for the same arguments as `compile_for`."""
    needs = needs_of(targets)
    if backend == "cuda":
        needs["cuda"] = needed_architectures(device.arch for device in topology.devices)
    return needs


def function_cores(calls: Sequence[KernelCall], shares: Mapping[str, tuple[int, int]]) -> dict[str, tuple[int, int]]:
    """The share of the machine's cores of each function that is called, from those of operators."""
    return {call.function: shares[call.operator] for call in calls}
