"""Measure kernels on this machine's cores (alone and warm, alone and cold, in parallel), and copies in memory."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import msgspec
import numpy as np
import tvm

from tvm_sched_runtime.cores import cores
from tvm_sched_runtime.errors import InputError
from tvm_sched_runtime.problem import load_topology

from ...cost_model.device_properties import properties
from ...cost_model.predicted import database_key
from ...cost_model.profile import Copies, Measurement, Pair, this_machine
from ..problem.operator_graph import Extraction
from .measure_interference import measure_pairs, running_beside
from .single_kernels import single_kernels

_FLUSH_BYTES = 64 << 20  # more than the last-level cache of most CPUs
COPY_SIZES = tuple(4**n << 10 for n in range(0, 9))
"""Bytes of the copies that are timed: 1 KiB to 64 MiB."""


class CpuBench:
    """One device of a topology ``cpuN``; see `tvm_sched.relax.profile_models.Bench`.

    Raises
    ------
    InputError
        The topology has devices other than CPUs.
    """

    backend: str | None = None

    def __init__(self, device: str) -> None:
        self.topology = load_topology(device)
        if any(each.kind != "cpu" for each in self.topology.devices):
            raise InputError(
                f"device {device!r}: kernels are measured on this machine's devices; allowed are cpuN, cuda:N"
            )
        self.machine = this_machine()
        self.device = properties(self.topology.devices[0])
        self.threads = max(cores() // len(self.topology.devices), 1)
        self.key = database_key(self.threads)
        self.settings: dict[str, Any] = {}

    def alone(
        self, mod: tvm.IRModule, extraction: Extraction, measured: Mapping[str, Measurement]
    ) -> dict[str, Measurement]:
        """Add times of kernels alone: in repeated calls (warm), and with caches flushed before each call (cold)."""
        result = dict(measured)
        for text, kernel in single_kernels(mod, extraction, measured, len(self.topology.devices)).items():
            warm = kernel.seconds(number=3, min_repeat_ms=2)
            cold = kernel.seconds(number=1, cache_flush_bytes=_FLUSH_BYTES)
            result[text] = msgspec.structs.replace(measured[text], warm=warm, cold=cold)
        return result

    def beside(self, mod: tvm.IRModule, extraction: Extraction, pairs: Sequence[tuple[str, str]]) -> list[Pair]:
        """Measure pairs of kernels, each on its own cores; return none if there are too few cores.

        Two streams share the threads of a device. A device with one thread is measured beside another device.
        """
        each = max(self.threads // 2, 1)
        if cores() < 2 * each:
            return []
        names = {name for pair in pairs for name in pair}
        first, second = (single_kernels(mod, extraction, names, cores() // each) for _ in range(2))
        return measure_pairs(pairs, first, second, each)

    def copies(self) -> tuple[Copies, ...]:
        """Time copies from memory to memory, by one core and by two at once."""
        alone = Copies("memory", 1, tuple((size, _copy_seconds(size)) for size in COPY_SIZES))
        if cores() < 2:
            return (alone,)
        together = []
        for size in COPY_SIZES:
            with running_beside(partial(_copy_seconds, size)):
                together.append((size, _copy_seconds(size)))
        return alone, Copies("memory", 2, tuple(together))


def _copy_seconds(size: int) -> float:
    """Return the median seconds of several copies."""
    source, target = np.ones(size, np.uint8), np.zeros(size, np.uint8)
    times = []
    for _ in range(9):
        begin = time.perf_counter()
        np.copyto(target, source)
        times.append(time.perf_counter() - begin)
    return float(np.median(times))
