"""Demands of operators on a GPU, from kernel launches, compiled code, and a model of NVIDIA's libraries."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from math import prod
from typing import Any, Protocol

import msgspec
import tvm

from tvm_sched_runtime.problem import Demand, Device, KernelResources, Operator, OpGraph, Topology
from tvm_sched_runtime.problem.demand import DemandSource

from ...cost_model.cubin import CompiledKernel
from ...execution_plan import KernelCall
from ..ir.attributes import LAUNCHES
from ..ir.kernel_table import KernelTable, kernel_names
from ..lower.kernel_libraries import claimed_functions, kernel_document
from ..lower.kernel_libraries.handwritten_cuda.library import compile_sources
from ..lower.kernel_libraries.nvidia.launches import library_launch
from ..lower.kernel_libraries.nvidia.library import LIBRARY as NVIDIA
from .operator_graph import Extraction

REGISTERS = {False: 32, True: 64}
"""Registers assumed for a kernel that is not compiled; True: a product, of which TVM's schedules keep parts in registers."""
_PRODUCT = re.compile(r"conv|matmul|dense|gemm|attention|einsum|linear")
Launches = tuple[KernelResources, ...]


class CompiledImage(Protocol):
    """Compiled kernels: the part of `tvm_sched.relax.codegen.cuda.compile.CudaImage` that demands need."""

    @property
    def functions(self) -> Mapping[str, Mapping[str, Any]]:
        """The kernel launches of each function."""

    @property
    def kernels(self) -> Mapping[str, CompiledKernel]:
        """The resources of each kernel, by symbol."""


ImageCompiler = Callable[[Mapping[str, tvm.tirx.PrimFunc], Sequence[str]], CompiledImage]
"""Compiles kernels for GPU architectures."""


def with_demands(
    mod: tvm.IRModule, calls: Extraction, topology: Topology, compile_image: ImageCompiler | None = None
) -> Extraction:
    """Add the demands of operators (`Operator.demand`) on the topology's GPUs to an extraction.

    Parameters
    ----------
    mod : tvm.IRModule
        The model, lowered to kernels.
    calls : Extraction
        The operators of the graph and of all alternatives.
    compile_image : callable, optional
        Compiles the kernels to find their registers and static shared memory
        (`tvm_sched.relax.codegen.cuda.compile_image`, which keeps the code for the artifact). Default: the launches of the
        attribute `LAUNCHES`, with `REGISTERS`.

    Returns
    -------
    Extraction
        Unchanged if the topology has no GPU, or if an operator's launches are unknown.

    Raises
    ------
    InputError
        A kernel cannot be compiled for GPUs.
    """
    devices = [device for device in topology.devices if device.kind == "cuda"]
    every = [*calls.calls, *calls.alternative_calls]
    claimed = claimed_functions(mod)
    if not devices or any(call.packed or (call.external and call.function not in claimed) for call in every):
        return calls
    compiled = compile_image is not None
    if compile_image is not None:
        launches = _compiled_launches(mod, every, [d.arch for d in devices], compile_image)
    else:
        launches = _lowered_launches(mod)
    used = {call.function for call in every}
    launches |= _library_launches(mod, used & claimed, compiled)
    if not used <= launches.keys():
        return calls
    graph = calls.with_all_alternatives().graph
    demands: dict[str, Demand] = {}
    for call, operator in zip(every, graph.operators, strict=True):
        modelled = call.function in claimed and kernel_document(mod, call.function)[0] == NVIDIA.name
        source: DemandSource = "library" if modelled else "cubin" if compiled else "launch"
        demands[call.operator] = Demand(launches[call.function], _memory_bound(graph, operator, devices[0]), source)

    def all_of(operators: Sequence[Operator]) -> tuple[Operator, ...]:
        return tuple(msgspec.structs.replace(each, demand=demands[each.name]) for each in operators)

    groups = tuple(
        msgspec.structs.replace(
            group,
            alternatives=tuple(msgspec.structs.replace(a, operators=all_of(a.operators)) for a in group.alternatives),
        )
        for group in calls.groups
    )
    return replace(
        calls, graph=msgspec.structs.replace(calls.graph, operators=all_of(calls.graph.operators)), groups=groups
    )


def _compiled_launches(
    mod: tvm.IRModule, calls: Sequence[KernelCall], archs: Sequence[str], compile_image: ImageCompiler
) -> dict[str, Launches]:
    """Return the launches of each function that TVM compiles, with the resources that nvcc reports."""
    table, claimed = KernelTable(), claimed_functions(mod)
    names = table.add(mod, kernel_names(calls, claimed), claimed)
    if not table.kernels:
        return {}
    image = compile_image(table.kernels, archs)
    of_kernel = {
        name: _described(name, function["launches"], image.kernels) for name, function in image.functions.items()
    }
    return {name: of_kernel[kernel] for name, kernel in names.items() if name not in claimed}


def _library_launches(mod: tvm.IRModule, functions: set[str], compiled: bool) -> dict[str, Launches]:
    """Return the launches of library functions: our kernels, compiled, and a model of NVIDIA's libraries."""
    launches: dict[str, Launches] = {}
    ours: dict[str, dict[str, Any]] = {}
    for name in sorted(functions):
        library, document = kernel_document(mod, name)
        if library == NVIDIA.name:
            launches[name] = (library_launch(document),)
        else:
            ours[name] = document
    if compiled and ours:
        described, _, kernels = compile_sources(ours)
        launches |= {name: _described(name, function["launches"], kernels) for name, function in described.items()}
    return launches


def _lowered_launches(mod: tvm.IRModule) -> dict[str, Launches]:
    """Return the launches of each function in the attribute `LAUNCHES`, with assumed registers."""
    launches = mod.attrs[LAUNCHES] if mod.attrs and LAUNCHES in mod.attrs else {}
    return {str(name): _described(str(name), json.loads(str(text)), {}) for name, text in launches.items()}


def _described(name: str, launches: Sequence[Mapping[str, Any]], kernels: Mapping[str, CompiledKernel]) -> Launches:
    """Return the resources of launches; a kernel that is not compiled has assumed registers."""
    assumed = CompiledKernel(REGISTERS[bool(_PRODUCT.search(name))], 0, 0)
    resources = []
    for launch in launches:
        kernel, dynamic = kernels.get(launch["symbol"], assumed), launch["shared_bytes"]
        blocks, threads = prod(launch["grid"]), prod(launch["block"])
        resources.append(KernelResources(blocks, threads, kernel.registers, kernel.shared_memory + dynamic, dynamic))
    return tuple(resources)


def _memory_bound(graph: OpGraph, operator: Operator, device: Device) -> bool:
    """Whether an operator is bound by memory.

    As in Opara's table, products and convolutions are not, with or without an epilogue. Any other operator is if computing
    takes no longer than its reads and writes.
    """
    if _PRODUCT.search(operator.kind):
        return False
    size = graph.index.size
    names = graph.index.tensor_id
    moved = sum(size[names[tensor]] for tensor in (*operator.inputs, *operator.outputs))
    return operator.flops / device.peak_flops["float32"] <= moved / device.memory_bandwidth
