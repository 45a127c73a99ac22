"""The processor, and the number of its cores that this process may use."""

from __future__ import annotations

import platform
from functools import lru_cache
from pathlib import Path

from . import _library


def cores(threads: int | None = None) -> int:
    """Return ``threads`` if it is set, else the number of processor cores that this process may use.

    ``TVM_SCHED_NUM_THREADS`` replaces that number.
    """
    return int(_library.function("tvm_sched.cores")(threads or 0, 0))


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
