"""Let a process end with its parent."""

from __future__ import annotations

import os
import signal
import sys

_PARENT_DEATH_SIGNAL = 1
"""``PR_SET_PDEATHSIG`` of Linux' ``prctl``."""


def end_with(parent: int) -> None:
    """Have the system kill this process when its parent ends."""
    if not sys.platform.startswith("linux"):
        return
    import ctypes

    ctypes.CDLL(None).prctl(_PARENT_DEATH_SIGNAL, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)
