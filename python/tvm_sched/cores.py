"""How many processor cores this process may use."""

from __future__ import annotations

from . import _library


def cores() -> int:
    """Processor cores that this process may use.

    As many as `tvm_sched._library.use_cores` or ``TVM_SCHED_NUM_THREADS`` says, where it is a number above 0.
    """
    return int(_library.function("tvm_sched.cores")(0))
