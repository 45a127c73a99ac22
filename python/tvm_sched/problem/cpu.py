"""The presets ``cpuN``: N logical devices on the cores of the machine that runs this."""

from __future__ import annotations

import os
import re
from functools import lru_cache

from .topology import Device, Switch, Topology

# Measured on one core of an AMD EPYC server CPU at 2.6 GHz (AVX-512) with oneDNN 3.2, in one thread, each operator's best
# of 15 runs while the machine was busy with other work, and rounded:
PEAK_FLOPS = 240e9  # convolutions of GoogLeNet: 255 GFLOP/s; squeezenet: 254, resnet50: 246
MEMORY_BANDWIDTH = 40e9  # pooling and concatenation: GoogLeNet 55 GB/s read and written; squeezenet 80, resnet50 30
THREAD_GAIN = 0.3  # of each further thread of a device: resnet50's convolutions 322 GFLOP/s with two; more when quiet
LAUNCH_OVERHEAD = 5e-6  # the smallest kernels: 0.2 to 5 us; waking a thread that waits for its inputs: a few more
COPY_BANDWIDTH = 20e9  # memcpy of 64 MiB: 22 GB/s
COPY_LATENCY = 10e-6  # two events between threads; assumed

_GIB = 1 << 30


def cpu_count_of(name: str) -> int | None:
    """N of the name ``cpuN`` with N from 1, else None."""
    match = re.fullmatch(r"cpu([1-9]\d{0,3})", name)
    return int(match.group(1)) if match else None


@lru_cache
def cpu_topology(count: int) -> Topology:
    """``count`` logical devices that share this machine's memory.

    Parameters lie where every device reads them, so there is no bus; activations are copied between the devices' arenas
    by a switch called ``memory``. Each device has its share of the machine's memory, rounded down to GiB (to MiB where
    that is none), so the topology differs from machine to machine. With more devices than cores each device has its
    share of the cores' speed; with fewer, each device computes its kernels with several threads.
    """
    ram = _physical_memory()
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    share = min(1.0, cores / count)
    speed = share * (1 + THREAD_GAIN * (max(cores // count, 1) - 1))
    step = _GIB if ram // count >= _GIB else 1 << 20
    devices = tuple(
        Device(
            name=f"cpu{d}",
            kind="cpu",
            memory=max(ram // count // step, 1) * step,
            memory_bandwidth=MEMORY_BANDWIDTH * share,
            peak_flops={"float32": PEAK_FLOPS * speed},
            launch_overhead=LAUNCH_OVERHEAD,
            model="logical CPU device",
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
        source="memory and cores of this machine; speeds of our CPU kernels on one core, measured and rounded",
    )


def _physical_memory() -> int:
    return int(os.sysconf("SC_PAGE_SIZE")) * int(os.sysconf("SC_PHYS_PAGES"))
