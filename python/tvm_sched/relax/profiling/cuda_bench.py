"""Measure kernels on a GPU through cupy: times by events around launches, and the resources that each kernel takes."""

from __future__ import annotations

import re
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import tvm

from tvm_sched_runtime.errors import InputError
from tvm_sched_runtime.problem import KernelResources, Topology
from tvm_sched_runtime.runtime.tensors import random_value

from ...cost_model.copies import REPEATS, CopyTimer, EventTimer, gpu_count, import_cupy
from ...cost_model.detect import to_topology
from ...cost_model.device_properties import properties
from ...cost_model.profile import Copies, Measurement, Pair, this_machine
from ...cost_model.recording import pci_address, record
from ...cost_model.signature import signatures
from ..codegen.cuda.compile import compile_image
from ..problem.operator_graph import Extraction

COPY_SIZES = tuple(4**n << 12 for n in range(0, 9))
"""Bytes of the copies that are timed: 4 KiB to 256 MiB."""
_LAUNCHES_SECONDS, _MOST_LAUNCHES = 1e-3, 200
_STATIC_SHARED = 48 << 10  # bytes of shared memory that a launch gets without asking for more


@dataclass(frozen=True)
class GpuKernel:
    """The launches of one function, bound to memory."""

    launches: list[tuple[Any, tuple[int, ...], tuple[int, ...], tuple[Any, ...], int]]  # with grid, block, shared bytes
    resources: tuple[KernelResources, ...]  # of each launch
    memory: list[Any]  # to which the arguments point

    def __call__(self) -> None:
        """Launch all on the current stream."""
        for kernel, grid, block, arguments, shared in self.launches:
            kernel(grid, block, arguments, shared_mem=shared)


class CudaBench:
    """One GPU of this machine; see `tvm_sched.relax.profile_models.Bench`.

    In a model's run, the executor's events time the kernels. A kernel alone is replayed as a CUDA graph of many launches,
    which excludes Python's time. Libraries' kernels need an executor and are measured in the run only.

    Raises
    ------
    InputError
        A name that is not ``cuda:N``, no cupy, or no such GPU.
    """

    backend: str | None = "cuda"
    threads = 0

    def __init__(self, device: str) -> None:
        match = re.fullmatch(r"cuda(?::(\d+))?", device)
        if match is None:
            raise InputError(f"device {device!r}: allowed are cpuN and cuda:N")
        self.ordinal = int(match.group(1) or 0)
        self.cupy = import_cupy()
        self.count = gpu_count(self.cupy)
        if self.ordinal >= self.count:
            raise InputError(f"device {device!r}: this machine has {self.count} GPUs, numbered from 0")
        self.cupy.cuda.Device(self.ordinal).use()
        self.topology = topology_of(self.cupy.cuda.Device(self.ordinal).pci_bus_id)
        here, driver = this_machine(), self.cupy.cuda.runtime.driverGetVersion()
        versions = {**here.versions, "cuda driver": f"{driver // 1000}.{driver % 1000 // 10}"}
        self.machine = msgspec.structs.replace(here, versions=versions)
        self.device = properties(self.topology.devices[0])
        self.key = f"cuda, {self.device.name}"
        self.settings: dict[str, Any] = {"devices": [self.ordinal]}
        self.timer = EventTimer(self.cupy)
        self.stream = self.timer.stream
        self._flush = self.cupy.cuda.alloc(int(2 * self.device.cache))

    def alone(
        self, mod: tvm.IRModule, extraction: Extraction, measured: Mapping[str, Measurement]
    ) -> dict[str, Measurement]:
        """Add times of kernels alone: repeated (warm), after a cache flush (cold), and with direct host access.

        For direct host access, inputs and parameters lie in pinned host memory.
        """
        result = dict(measured)
        host = self._kernels(mod, extraction, measured, direct=True)
        for text, kernel in self._kernels(mod, extraction, measured).items():
            result[text] = msgspec.structs.replace(
                measured[text], warm=self._warm(kernel), cold=self._cold(kernel),
                direct=self._warm(host[text]) if text in host else 0.0, launches=kernel.resources,
            )  # fmt: skip
        return result

    def beside(self, mod: tvm.IRModule, extraction: Extraction, pairs: Sequence[tuple[str, str]]) -> list[Pair]:
        """Measure pairs of kernels on two streams, each launched often enough to run for a millisecond."""
        names = {name for pair in pairs for name in pair}
        first, second = (self._kernels(mod, extraction, names) for _ in range(2))
        other = self.cupy.cuda.Stream(non_blocking=True)
        result = []
        for a, b in pairs:
            if a not in first or b not in second:
                continue
            alone = self._warm(first[a]), self._warm(second[b])
            counts = [_launches_for(seconds) for seconds in alone]
            graphs = [self._graph(kernel, n) for kernel, n in zip((first[a], second[b]), counts, strict=True)]
            ended = np.median([self._race(graphs, other) for _ in range(REPEATS)], axis=0).tolist()
            factors = slowdowns([n * seconds for n, seconds in zip(counts, alone, strict=True)], ended)
            result.append(Pair(a, b, alone, (alone[0] * factors[0], alone[1] * factors[1])))
        return result

    def copies(self) -> tuple[Copies, ...]:
        """Time copies between host and GPU, alone and while all GPUs copy, and copies to each other GPU."""
        here, others = f"cuda:{self.ordinal}", [n for n in range(self.count) if n != self.ordinal]
        copies, result = CopyTimer(self.timer), []
        for at_once, beside in ((1, []), (self.count, others)) if others else ((1, []),):
            for down, route in ((True, f"host to {here}"), (False, f"{here} to host")):
                times = ((size, copies.host(size, down, beside)) for size in COPY_SIZES)
                result.append(Copies(route, at_once, tuple(times)))
        for other in others:
            times = ((size, copies.peer(size, other)) for size in COPY_SIZES)
            result.append(Copies(f"{here} to cuda:{other}", 1, tuple(times)))
        return tuple(result)

    def _kernels(
        self, mod: tvm.IRModule, extraction: Extraction, texts: Mapping[str, Any] | set[str], direct: bool = False
    ) -> dict[str, GpuKernel]:
        """Compile kernels by signature; ``direct``: only kernels that read host tensors, which stay in host memory."""
        calls = {
            text: call
            for text, call in zip(signatures(extraction.graph), extraction.calls, strict=True)
            if text in texts and not call.external
        }
        if not calls:
            return {}
        arch = self.topology.devices[0].arch
        functions = {call.function: mod[call.function] for call in calls.values()}
        image = compile_image(functions, [arch] if arch else ())
        with tempfile.TemporaryDirectory(prefix="tvm_sched_profile_") as folder:
            path = Path(folder) / "kernels.fatbin"
            path.write_bytes(image.binary)
            module = self.cupy.RawModule(path=str(path))
            kernels = {
                t: self._bind(module, image.functions[c.function], extraction, c, direct) for t, c in calls.items()
            }
        return {text: kernel for text, kernel in kernels.items() if kernel is not None}

    def _bind(
        self, module: Any, described: Mapping[str, Any], extraction: Extraction, call: Any, direct: bool
    ) -> GpuKernel | None:
        """Bind a function's launches to new tensors; with ``direct``, return None if it reads no host tensor."""
        graph, rng = extraction.graph, np.random.default_rng(0)
        tensors = [graph.tensors[graph.index.tensor_id[name]] for name in (*call.inputs, *call.outputs)]
        hosted = [direct and tensor.kind in ("input", "parameter") for tensor in tensors]
        if direct and not any(hosted):
            return None
        memory = [
            self._filled(random_value(rng, {"shape": tensor.shape, "dtype": tensor.dtype}), on_host)
            for tensor, on_host in zip(tensors, hosted, strict=True)
        ]
        spaces = [self.cupy.cuda.alloc(max(size, 1)) for size in described["workspaces"]]
        launches, resources = [], []
        for launch in described["launches"]:
            kernel, shared = module.get_function(launch["symbol"]), launch["shared_bytes"]
            if shared > _STATIC_SHARED:
                kernel.max_dynamic_shared_size_bytes = shared
            places = [(memory if kind == "tensor" else spaces)[index] for kind, index in launch["pointers"]]
            arguments = tuple(np.uint64(place.ptr) for place in places)
            launches.append((kernel, tuple(launch["grid"]), tuple(launch["block"]), arguments, shared))
            resources.append(_resources(kernel.attributes, launch))
        return GpuKernel(launches, tuple(resources), [*memory, *spaces])

    def _filled(self, value: np.ndarray[Any, Any], on_host: bool) -> Any:
        """Copy an array into new memory, on the GPU or pinned on the host; its address is ``ptr``."""
        data = np.ascontiguousarray(value).reshape(-1).view(np.uint8)
        pinned = self.cupy.cuda.alloc_pinned_memory(max(len(data), 1))
        np.frombuffer(pinned, np.uint8, len(data))[:] = data
        if on_host:
            return pinned
        memory = self.cupy.cuda.alloc(max(len(data), 1))
        memory.copy_from_host_async(pinned.ptr, len(data), self.stream)
        self.stream.synchronize()
        return memory

    def _warm(self, kernel: GpuKernel) -> float:
        with self.stream:
            kernel()  # loads it
        count = _launches_for(self.timer.seconds(kernel, repeats=3))
        graph = self._graph(kernel, count)
        return self.timer.seconds(lambda: graph.launch(self.stream)) / count

    def _cold(self, kernel: GpuKernel) -> float:
        return self.timer.seconds(kernel, lambda: self._flush.memset_async(0, int(2 * self.device.cache), self.stream))

    def _graph(self, kernel: GpuKernel, count: int) -> Any:
        with self.stream:
            self.stream.begin_capture()
            for _ in range(count):
                kernel()
            return self.stream.end_capture()

    def _race(self, graphs: Sequence[Any], other: Any) -> tuple[float, float]:
        """Start two graphs at once on two streams; return the seconds after which each ends."""
        start = self.timer.event()
        other.wait_event(start)
        ends = []
        for graph, stream in zip(graphs, (self.stream, other), strict=True):
            graph.launch(stream)
            ends.append(self.cupy.cuda.Event())
            ends[-1].record(stream)
        for end in ends:
            end.synchronize()
        first, second = (self.cupy.cuda.get_elapsed_time(start, end) / 1e3 for end in ends)
        return first, second


def slowdowns(alone: Sequence[float], ended: Sequence[float]) -> tuple[float, float]:
    """Return how many times as long each of two runs takes while the other runs, at least 1.

    ``alone`` holds the seconds of each run by itself, ``ended`` the seconds from the common start to the end of each. The
    longer run ends alone.
    """
    short, long = (0, 1) if ended[0] <= ended[1] else (1, 0)
    factors = [1.0, 1.0]
    factors[short] = max(ended[short] / alone[short], 1.0)
    beside = alone[long] - (ended[long] - ended[short])  # seconds of the longer run's work done while both ran
    factors[long] = max(ended[short] / beside, 1.0) if beside > 0 else 1.0
    return factors[0], factors[1]


def _launches_for(seconds: float) -> int:
    return int(np.clip(_LAUNCHES_SECONDS / max(seconds, 1e-7), 1, _MOST_LAUNCHES))


def _resources(attributes: Mapping[str, int], launch: Mapping[str, Any]) -> KernelResources:
    shared = attributes["shared_size_bytes"] + launch["shared_bytes"]
    return KernelResources(
        prod(launch["grid"]), prod(launch["block"]), attributes["num_regs"], shared, launch["shared_bytes"]
    )


def topology_of(address: str) -> Topology:
    """Return the topology of one GPU of this machine, by its PCI address, with its bus."""
    recording = record()
    machine = to_topology(recording)
    wanted = pci_address(address)
    position = next((n for n, gpu in enumerate(recording.gpus) if gpu.address == wanted), None)
    if position is None:
        raise InputError(f"GPU {address} is not among the GPUs of this machine: tvm-sched topology detect shows them")
    device = machine.devices[position]
    buses = tuple(bus for bus in machine.buses if bus.name == device.bus)
    return msgspec.structs.replace(machine, name=device.name, devices=(device,), buses=buses, links=(), switches=())
