"""Redirect what solvers print to standard error, so that it does not mix with a command's result on standard output."""

from __future__ import annotations

import ctypes
import os
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager

_lock = threading.Lock()
_inside = 0
_saved = -1


@contextmanager
def stdout_aside() -> Iterator[None]:
    """Send what C++ prints to standard error: HiGHS sometimes prints although its output is disabled.

    Standard output belongs to the process, so the first of several threads redirects it and the last one restores it. Both
    flush C's buffer: into a pipe, C prints only when the buffer is full, or at exit.
    """
    global _inside, _saved
    with _lock:
        if _inside == 0:
            _flush()
            _saved = os.dup(1)
            os.dup2(2, 1)
        _inside += 1
    try:
        yield
    finally:
        with _lock:
            _inside -= 1
            if _inside == 0:
                _flush()
                os.dup2(_saved, 1)
                os.close(_saved)


def _flush() -> None:
    """Write out what Python and C have printed so far."""
    sys.stdout.flush()
    ctypes.CDLL(None).fflush(None)
