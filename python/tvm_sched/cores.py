"""The number of processor cores that this process may use."""

from __future__ import annotations

from . import _library


def cores(threads: int | None = None) -> int:
    """Return ``threads`` if it is set, else the number of processor cores that this process may use.

    ``TVM_SCHED_NUM_THREADS`` replaces that number.
    """
    return int(_library.function("tvm_sched.cores")(threads or 0, 0))
