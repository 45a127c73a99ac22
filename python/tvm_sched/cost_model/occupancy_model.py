"""How operators that run together share a device: occupancy, arithmetic and bandwidth (``docs/model.md``)."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec
import numpy as np
import numpy.typing as npt

from ..errors import CostsError
from ..problem import FORBIDDEN, Concurrency, Costs, Device, OpGraph, Topology
from .roofline_model import roofline

_LEAST = 1e-6
"""Least part of a resource that an operator is said to use."""


class KernelResources(msgspec.Struct, frozen=True):
    """What a kernel takes of a GPU.

    Parameters
    ----------
    blocks : int
        Of its launch.
    threads : int
        Of a block.
    registers : int
        Of a thread.
    shared_memory : int
        Bytes of a block, static and dynamic.

    Raises
    ------
    CostsError
        A number below what a kernel can have.
    """

    blocks: int
    threads: int
    registers: int = 32
    shared_memory: int = 0

    def __post_init__(self) -> None:
        for name, least in (("blocks", 1), ("threads", 1), ("registers", 0), ("shared_memory", 0)):
            if getattr(self, name) < least:
                raise CostsError(f"a kernel has {name} {getattr(self, name)}; {least} or more is allowed")


class Multiprocessor(msgspec.Struct, frozen=True):
    """What the blocks on one multiprocessor share."""

    threads: int
    registers: int
    shared_memory: int
    blocks: int

    def resident(self, kernel: KernelResources) -> int:
        """Blocks of a kernel that fit at once; 0 where none does. Registers are given to threads in eights."""
        registers = max(8, -(-kernel.registers // 8) * 8) * kernel.threads
        fits = [self.blocks, self.threads // kernel.threads, self.registers // registers]
        if kernel.shared_memory:
            fits.append(self.shared_memory // kernel.shared_memory)
        return min(fits)


MULTIPROCESSORS = {
    "sm_70": Multiprocessor(2048, 65536, 96 * 1024, 32),
    "sm_80": Multiprocessor(2048, 65536, 164 * 1024, 32),
    "sm_86": Multiprocessor(1536, 65536, 100 * 1024, 16),
    "sm_89": Multiprocessor(1536, 65536, 100 * 1024, 24),
    "sm_90": Multiprocessor(2048, 65536, 228 * 1024, 32),
}
"""By compute capability: the CUDA C++ Programming Guide's table of technical specifications."""

_COUNTS = {"V100": 80, "A100": 108, "A40": 84, "A6000": 84, "H100": 132, "H200": 132}
"""Multiprocessors of products, by a part of their names (NVIDIA's data sheets)."""


def occupancy_share(device: Device, kernel: KernelResources) -> float:
    """Part of the device's places for blocks that a kernel takes, from 0 to 1; 1 where the device is not known.

    Raises
    ------
    CostsError
        A block of the kernel fits on no multiprocessor of the device.
    """
    count = next((n for name, n in _COUNTS.items() if name in device.model), 0)
    processor = MULTIPROCESSORS.get(device.arch)
    if processor is None or not count:
        return 1.0
    resident = processor.resident(kernel)
    if resident == 0:
        raise CostsError(f"a block of {kernel} does not fit on a multiprocessor of {device.name!r}: {processor}")
    return min(1.0, kernel.blocks / (resident * count))


def estimated_resources(graph: OpGraph) -> dict[str, KernelResources]:
    """A guess for kernels that nobody has compiled: a thread for each output element of four bytes, 256 in a block."""
    index = graph.index
    found = {}
    for o, operator in enumerate(graph.operators):
        elements = sum(index.size[t] for t in index.outputs[o]) // 4
        found[operator.name] = KernelResources(max(1, -(-elements // 256)), 256)
    return found


def occupancy(graph: OpGraph, topology: Topology, kernels: Mapping[str, KernelResources] | None = None) -> Costs:
    """The roofline's latencies, and how long operators take together, from what each uses of three resources.

    An operator that takes ``t`` alone uses of a device

    - *occupancy*: the part of the places for blocks that it takes (`occupancy_share`), all of it on a CPU;
    - *arithmetic*: ``flops / peak_flops / t``;
    - *bandwidth*: ``bytes / memory_bandwidth / t``.

    Together they take the longest of them, or as long as one of the resources takes for all (`Concurrency` with
    ``serial_share=0``); so launch overheads and small kernels overlap, and what fills the device does not. This is the
    analytic model that Opara leaves for future work.

    Parameters
    ----------
    graph, topology
    kernels : mapping of str to KernelResources, optional
        By operator, from cubins (`tvm_sched.cost_model.cubin`) and launches; default: `estimated_resources`.

    Returns
    -------
    Costs
        With ``source="occupancy"``.
    """
    base = roofline(graph, topology)
    kernels = estimated_resources(graph) if kernels is None else kernels
    missing = [operator.name for operator in graph.operators if operator.name not in kernels]
    if missing:
        raise CostsError(f"kernels has no {missing[0]!r}; it has one for each operator")
    taken = np.ones(base.operator_ns.shape)
    for d, device in enumerate(topology.devices):
        if device.kind == "cuda":
            taken[:, d] = [occupancy_share(device, kernels[operator.name]) for operator in graph.operators]
    used = utilisation(graph, topology, base.operator_ns, taken)
    return Costs(base.operator_ns, base.direct_ns, "occupancy", Concurrency(used))


def utilisation(
    graph: OpGraph, topology: Topology, operator_ns: npt.NDArray[np.int64], occupancy: npt.NDArray[np.float64]
) -> npt.NDArray[np.float64]:
    """What operators use of their devices while they run alone for ``operator_ns``.

    Parameters
    ----------
    graph, topology
    operator_ns : array of int64, shape (operators, devices)
    occupancy : array of float, shape (operators, devices)
        Parts of the places for blocks, or of the threads.

    Returns
    -------
    array of float, shape (operators, devices, 3)
        Occupancy, arithmetic and bandwidth, above 0 and at most 1.
    """
    size = np.array(graph.index.size, dtype=np.float64)
    moved = np.array([size[[*a, *b]].sum() for a, b in zip(graph.index.inputs, graph.index.outputs, strict=True)])
    flops = np.array([operator.flops for operator in graph.operators], dtype=np.float64)
    used = np.ones((len(flops), len(topology.devices), 3))
    used[:, :, 0] = occupancy
    for d, device in enumerate(topology.devices):
        seconds = np.where(operator_ns[:, d] == FORBIDDEN, np.inf, operator_ns[:, d]) / 1e9
        used[:, d, 1] = flops / device.peak_flops["float32"] / seconds
        used[:, d, 2] = moved / device.memory_bandwidth / seconds
    return used.clip(_LEAST, 1.0)
