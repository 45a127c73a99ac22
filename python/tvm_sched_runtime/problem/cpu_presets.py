"""The presets ``cpuN``: N logical devices on the cores of the machine that runs this."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from functools import lru_cache

from ..core_library import function as library_function
from ..cores import allowed_memory
from ..cores import cores as available_cores
from .core_speed import CoreSpeed, core_speed
from .topology import Device, Switch, Topology


@dataclass(frozen=True)
class _Kernels:
    """What CPU kernels make of a core's speed, and the gain of a further thread."""

    arithmetic: float  # share of the core's arithmetic that they reach at most
    thread_gain: float
    source: str


# Measured on an AMD EPYC server CPU at 2.6 GHz (AVX-512) and rounded: a core does 255 GFLOP/s there.
ONEDNN = _Kernels(
    arithmetic=1.0,  # convolutions of squeezenet, quiet machine: 250 GFLOP/s; with two threads 480 to 530
    thread_gain=0.95,  # of each further thread of a device
    source="oneDNN 3.2",
)
_TVM = _Kernels(
    arithmetic=40 / 255,  # GoogLeNet in all: 41 GFLOP/s; squeezenet: 64, resnet50: 31, densenet121: 15
    thread_gain=0.0,  # TVM's kernels use one thread
    source="apache-tvm 0.27",
)
CPU_MODEL = "logical CPU device"
"""`Device.model` of the devices."""
LAUNCH_OVERHEAD = 5e-6  # the smallest kernels: 0.2 to 5 us; waking a thread that waits for its inputs: a few more
COPY_BANDWIDTH = 20e9  # memcpy of 64 MiB: 22 GB/s
COPY_LATENCY = 10e-6  # two events between threads; assumed

_GIB = 1 << 30


MEASURED = "cpu"
"""Name of the topology ``cpu1`` that makes the compiler measure the best use of the cores."""


MOST_CPU_DEVICES = 9999
"""The largest N of the names ``cpuN``."""


def cpu_count_of(name: str) -> int | None:
    """Return N of a name ``cpuN`` with N from 1 to `MOST_CPU_DEVICES`, 1 for ``cpu``, else None."""
    if name == MEASURED:
        return 1
    match = re.fullmatch(r"cpu([1-9]\d{0,3})", name)
    return int(match.group(1)) if match else None


def cpu_topology(count: int, cores: int = 0, memory: int = 0) -> Topology:
    """Return a topology of ``count`` logical devices that share this machine's memory.

    Every device reads the parameters in host memory, so there is no bus. A switch called ``memory`` copies activations
    between the devices' arenas. Each device has an equal part of the memory that this process may use, rounded down to GiB
    (to MiB below 1 GiB), so the topology depends on the machine and the limits of its container. With more devices than
    cores each device has a fraction of a core's speed; with fewer, each device computes its kernels with several threads. A
    core's speed is measured once (`core_speed`).

    Parameters
    ----------
    count : int
        Number of devices.
    cores, memory : int
        Cores and bytes of another machine; 0: those that this process may use.

    Examples
    --------
    >>> from tvm_sched_runtime.problem import cpu_topology
    >>> [device.name for device in cpu_topology(2).devices]
    ['cpu0', 'cpu1']
    """
    return _topology(count, own_kernels(), cores or own_cores(), memory or allowed_memory(), core_speed())


@lru_cache
def _topology(count: int, kernels: _Kernels, cores: int, ram: int, core: CoreSpeed) -> Topology:
    share = min(1.0, cores / count)
    threads = max(cores // count, 1) if kernels.thread_gain else 1
    speed = share * (1 + kernels.thread_gain * (threads - 1))
    step = _GIB if ram // count >= _GIB else 1 << 20
    devices = tuple(
        Device(
            name=f"cpu{d}",
            kind="cpu",
            memory=max(ram // count // step, 1) * step,
            memory_bandwidth=core.bandwidth * share,
            peak_flops={"float32": kernels.arithmetic * core.flops * speed},
            launch_overhead=LAUNCH_OVERHEAD,
            model=CPU_MODEL,
            threads=threads,
        )
        for d in range(count)
    )
    names = tuple(device.name for device in devices)
    switches = (Switch("memory", names, COPY_BANDWIDTH, COPY_LATENCY),) if count > 1 else ()
    return Topology(
        name=f"cpu{count}",
        devices=devices,
        switches=switches,
        host_memory=ram // _GIB * _GIB,
        source=f"memory and cores that this process may use; speeds of CPU kernels ({kernels.source}), measured and rounded",
    )


def own_kernels() -> _Kernels:
    """Return whose kernels the compiler takes: oneDNN's if available, else TVM's own."""
    asked = os.environ.get("TVM_SCHED_KERNEL_LIBRARIES")
    if asked is not None:
        return ONEDNN if "onednn" in [name.strip() for name in asked.split(",")] else _TVM
    try:
        missing = library_function("tvm_sched.why_not_onednn")()
    except (FileNotFoundError, RuntimeError):  # no C++ library, or an old one: nothing runs here
        return _TVM
    return _TVM if missing else ONEDNN


def own_cores() -> int:
    """Return the cores that kernels may use; without the C++ library, which runs them, all cores of this process."""
    try:
        return available_cores()
    except (FileNotFoundError, RuntimeError):
        return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
