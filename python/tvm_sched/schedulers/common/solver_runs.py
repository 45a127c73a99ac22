"""Run solvers: their prints go to standard error, apart from a command's result, and Ctrl-C reaches Python at once."""

from __future__ import annotations

import ctypes
import os
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, wait
from contextlib import contextmanager
from typing import TypeVar

T = TypeVar("T")

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


def solve_in_thread(solve: Callable[[], T], stop: Callable[[], None] | None = None) -> T:
    """Call a solver in a thread, so that Ctrl-C reaches Python at once, and return its result.

    On Ctrl-C ``stop`` ends the solver, and the call waits for that. Without ``stop`` the thread ends at the solver's limit.
    """
    answer: Future[T] = Future()  # after an interrupt `Thread.join` would count the thread as ended

    def work() -> None:
        try:
            answer.set_result(solve())
        except BaseException as error:
            answer.set_exception(error)

    try:
        threading.Thread(target=work, name="solver", daemon=True).start()
        while not wait([answer], timeout=0.1).done:  # a wait without end would not be woken by Ctrl-C of another thread
            pass
    except KeyboardInterrupt:
        if stop is not None:
            stop()
            while not wait([answer], timeout=0.1).done:  # a process must not end before its solver
                stop()  # again, since the solver may not have begun
        raise
    return answer.result()
