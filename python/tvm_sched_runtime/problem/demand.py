"""Demands of operators (threads, registers, shared memory of their kernels), and the limits of GPUs' multiprocessors."""

from __future__ import annotations

from typing import Literal

import msgspec

from ..checks import require_at_least
from ..errors import CostsError
from .topology import Device

DemandSource = Literal["cubin", "launch", "library"]


class KernelResources(msgspec.Struct, frozen=True):
    """Launch size and resources of a kernel on a GPU.

    Raises
    ------
    CostsError
        A number is too small for a kernel, or the dynamic shared memory exceeds all of it.

    Examples
    --------
    >>> from tvm_sched_runtime.problem import KernelResources
    >>> KernelResources(blocks=80, threads=256).registers
    32
    """

    blocks: int
    """Blocks of its launch."""
    threads: int
    """Threads of a block."""
    registers: int = 32
    """Registers of a thread."""
    shared_memory: int = 0
    """Bytes of a block, static and dynamic."""
    dynamic_shared_memory: int = 0
    """The dynamic part of ``shared_memory``, which the launch requests."""

    def __post_init__(self) -> None:
        least = {"blocks": 1, "threads": 1, "registers": 0, "shared_memory": 0, "dynamic_shared_memory": 0}
        require_at_least(self, where="a kernel's ", error=CostsError, **least)
        if self.dynamic_shared_memory > self.shared_memory:
            raise CostsError(
                f"a kernel has {self.dynamic_shared_memory} bytes of dynamic shared memory, more than its "
                f"{self.shared_memory} in all; shared_memory counts both"
            )


class Demand(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Resources that the kernels of an operator take on a GPU.

    Raises
    ------
    CostsError
        There is no launch.

    Examples
    --------
    >>> from tvm_sched_runtime.problem import Demand, KernelResources
    >>> Demand((KernelResources(blocks=80, threads=256),), memory_bound=True, source="launch").launches[0].blocks
    80
    """

    launches: tuple[KernelResources, ...]
    """Kernels in launch order, at least one."""
    memory_bound: bool
    """Whether the operator is memory-intensive rather than compute-intensive, by Opara's distinction."""
    source: DemandSource
    """Origin of the numbers: registers and static shared memory of the compiled kernel; the launch alone, with
    registers assumed; or a model of what a library launches."""

    def __post_init__(self) -> None:
        if not self.launches:
            raise CostsError("a demand has no launches; an operator on a GPU launches at least one kernel")


class Multiprocessor(msgspec.Struct, frozen=True):
    """Resources that blocks on a multiprocessor share; the system takes ``reserved`` shared bytes for each block.

    Examples
    --------
    >>> from tvm_sched_runtime.problem import KernelResources, Multiprocessor
    >>> volta = Multiprocessor(threads=2048, registers=65536, shared_memory=98304, blocks=32)
    >>> volta.resident(KernelResources(blocks=80, threads=256, registers=64))
    4
    """

    threads: int
    registers: int
    shared_memory: int
    blocks: int
    reserved: int = 1024

    def resident(self, kernel: KernelResources) -> int:
        """Return how many blocks of a kernel fit at once.

        Each quarter of the multiprocessor allocates registers to warps of 32 threads in units of 256; shared memory has
        units of 128 bytes. NVIDIA's driver gives the same numbers for an H100 (``benchmarks/data/h100_concurrency.json``).
        """
        warps, registers, shared, _ = self.room_of(kernel)
        fits = [self.blocks, self.threads // _WARP // warps, self.registers // registers if registers else 0]
        if shared:
            fits.append(self.shared_memory // shared)
        return min(fits)

    @property
    def room(self) -> tuple[int, int, int, int]:
        """Its resources: warps, registers, bytes of shared memory, blocks."""
        return self.threads // _WARP, self.registers, self.shared_memory, self.blocks

    def room_of(self, kernel: KernelResources) -> tuple[int, int, int, int]:
        """Return how much of each resource a block takes, in whole allocation units; no registers if a warp has too many."""
        warps = -(-kernel.threads // _WARP)
        registers = max(1, -(-kernel.registers * _WARP // _REGISTER_UNIT)) * _REGISTER_UNIT
        quarter = self.registers // _QUARTERS
        fit = quarter // registers
        taken = warps * (quarter // fit) if fit else 0
        return warps, taken, self.reserved + -(-kernel.shared_memory // _SHARED_UNIT) * _SHARED_UNIT, 1


_WARP, _QUARTERS, _REGISTER_UNIT, _SHARED_UNIT = 32, 4, 256, 128
MULTIPROCESSORS = {
    "sm_70": Multiprocessor(2048, 65536, 96 * 1024, 32, 0),
    "sm_75": Multiprocessor(1024, 65536, 64 * 1024, 16, 0),
    "sm_80": Multiprocessor(2048, 65536, 164 * 1024, 32),
    "sm_86": Multiprocessor(1536, 65536, 100 * 1024, 16),
    "sm_89": Multiprocessor(1536, 65536, 100 * 1024, 24),
    "sm_90": Multiprocessor(2048, 65536, 228 * 1024, 32),
}
"""Limits by compute capability, from the table of technical specifications in the CUDA C++ Programming Guide."""

_COUNTS = {
    "MIG 1g.5gb": 14, "V100": 80, "A100": 108, "A40": 84, "A6000": 84, "H100": 132, "H200": 132, "RTX 2080 SUPER": 48
}  # fmt: skip
"""Multiprocessors of products by a part of their names; the first match counts (NVIDIA's data sheets)."""


def multiprocessors_of(device: Device) -> tuple[Multiprocessor, int] | None:
    """Return a device's multiprocessor and how many of them it has; None if the device is unknown.

    Examples
    --------
    >>> from tvm_sched_runtime.problem import load_topology, multiprocessors_of
    >>> volta, count = multiprocessors_of(load_topology("v100-server").devices[0])
    >>> volta.threads, count
    (2048, 80)
    """
    count = next((n for name, n in _COUNTS.items() if name in device.model), 0)
    processor = MULTIPROCESSORS.get(device.arch)
    return (processor, count) if processor is not None and count else None
