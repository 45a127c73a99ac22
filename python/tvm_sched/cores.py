"""How many processor cores this process may use."""

from __future__ import annotations

import os

VARIABLE = "TVM_SCHED_NUM_THREADS"


def cores() -> int:
    """Processor cores that this process may use: as many as ``TVM_SCHED_NUM_THREADS`` says, where it is a number above 0."""
    said = os.environ.get(VARIABLE, "")
    if said.isdigit() and int(said):
        return int(said)
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
