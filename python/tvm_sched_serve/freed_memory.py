"""Memory that requests give back stays with the process, which takes it again for the next ones."""

from __future__ import annotations

import contextlib
import ctypes

_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3
"""Options of glibc's `mallopt`."""
_LARGEST_BLOCK = 32 << 20
"""glibc's limit; larger blocks are mapped and unmapped each time."""
_KEPT = 64 << 20


def keep_freed_memory() -> None:
    """Let glibc keep up to 64 MiB of freed memory in each arena; else it returns it to the system when a request ends.

    The next request would take it again page by page: with an input of 602 KB, hundreds of page faults. Other C libraries
    are left as they are.
    """
    with contextlib.suppress(OSError, AttributeError):
        mallopt = ctypes.CDLL(None).mallopt
        mallopt(_MMAP_THRESHOLD, _LARGEST_BLOCK)
        mallopt(_TRIM_THRESHOLD, _KEPT)
