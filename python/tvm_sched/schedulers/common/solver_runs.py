"""Run solvers: their prints go to standard error, apart from a command's result, and Ctrl-C reaches Python at once."""

from __future__ import annotations

import atexit
import ctypes
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, wait
from contextlib import contextmanager
from typing import Any, TypeVar

from tvm_sched_runtime.search_budget import OutOfTime, seconds_left

T = TypeVar("T")

OVERTIME = 0.3
"""Seconds past the deadline for which an answer of a solver is awaited."""

PATIENCE = 0.3
"""Seconds for which the end of a solver is awaited that was told to stop."""

_lock = threading.Lock()
_inside = 0
_saved = -1
left_running: list[Future[Any]] = []
"""Answers of solvers that did not stop when they were told to."""


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


def solvers_run() -> bool:
    """Return whether a solver still runs whose answer nobody awaits: then the process must not end in the usual way.

    The end of the process would take the solver's memory away, and the system then aborts the process.
    """
    return not all(answer.done() for answer in left_running)


@atexit.register
def wait_for_solvers() -> None:
    """Wait for the end of all solvers."""
    wait(left_running)


def solve_in_thread(solve: Callable[[], T], stop: Callable[[], None] | None = None) -> T:
    """Call a solver in a thread, so that Ctrl-C reaches Python at once, and return its result.

    On Ctrl-C, and `OVERTIME` past the deadline of the search around, ``stop`` ends the solver. The call waits for that up to
    `PATIENCE`. A solver that does not look at ``stop`` in that time, and one without it, is left to its own limit. The end
    of the process waits for it (`wait_for_solvers`), but the command line ends at once.

    Raises
    ------
    OutOfTime
        The solver has not kept to its limit, as solvers do in their first steps on large programs.
    """
    answer: Future[T] = Future()  # after an interrupt `Thread.join` would count the thread as ended

    def work() -> None:
        try:
            answer.set_result(solve())
        except BaseException as error:
            answer.set_exception(error)

    try:
        threading.Thread(target=work, name="solver", daemon=True).start()
        late = time.monotonic() + seconds_left() + OVERTIME
        while not wait([answer], timeout=0.1).done:  # a wait without end would not be woken by Ctrl-C of another thread
            if time.monotonic() > late:
                raise OutOfTime
    except (KeyboardInterrupt, OutOfTime):
        patience = time.monotonic() + PATIENCE
        while stop is not None and time.monotonic() < patience:
            stop()  # again and again, since the solver may not have begun
            if wait([answer], timeout=0.1).done:
                break
        if not answer.done():
            left_running.append(answer)
        raise
    return answer.result()
