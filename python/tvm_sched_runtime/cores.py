"""The processor, and the cores and the memory that this process may use."""

from __future__ import annotations

import os
import platform
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

from . import core_library


def cores(threads: int | None = None) -> int:
    """Return ``threads`` if it is set, else the number of processor cores that this process may use.

    ``TVM_SCHED_NUM_THREADS`` replaces that number.
    """
    return int(core_library.function("tvm_sched.cores")(threads or 0, 0))


class ContainerLimits(NamedTuple):
    """Limits of a container; 0 where there is none."""

    cores: int
    """Its CPU quota, rounded down, but at least 1."""
    memory: int
    """Bytes."""


def container_limits(root: str | os.PathLike[str] = "") -> ContainerLimits:
    """Return the limits of the container that this process runs in: those of its control groups (versions 1 and 2).

    ``root`` is the folder with ``proc`` and ``sys``. Without the C++ library, which reads them, no limit is known.
    """
    try:
        limits = core_library.function("tvm_sched.container_limits")(os.fspath(root))
    except (FileNotFoundError, RuntimeError):
        return ContainerLimits(0, 0)
    return ContainerLimits(*map(int, limits))


def allowed_memory() -> int:
    """Return the bytes of memory that this process may use: the machine's, but no more than its container's limit."""
    physical = int(os.sysconf("SC_PAGE_SIZE")) * int(os.sysconf("SC_PHYS_PAGES"))
    return min(physical, container_limits().memory or physical)


@lru_cache
def processor_fields() -> dict[str, str]:
    """Return what ``/proc/cpuinfo`` says of the last processor; empty where there is none."""
    file = Path("/proc/cpuinfo")
    text = file.read_text() if file.is_file() else ""
    pairs = (line.split(":", 1) for line in text.splitlines() if ":" in line)
    return {key.strip(): value.strip() for key, value in pairs}


def processor_name() -> str:
    """Return the model of this machine's processor with its family."""
    fields = processor_fields()
    name = fields.get("model name") or platform.processor() or platform.machine()
    family = fields.get("cpu family", "")
    return f"{name} (family {family})" if family else name
