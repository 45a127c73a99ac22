"""Ctrl-C that works while C++ computes: solvers and compilers keep Python's own handler from running.

Some solvers take the signal for themselves, and fail when another thread than the solving one gets it. So the command line
blocks the signal before any other thread begins, and one thread waits for it.
"""

from __future__ import annotations

import _thread
import os
import signal
import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext

from .output import INTERRUPTED, Output

_at_once: Output | None = None
"""Where to say goodbye, while the process may end at any moment."""


def watch() -> None:
    """Take Ctrl-C over; call it once, before anything heavy is imported.

    The first one raises ``KeyboardInterrupt`` in the main thread, or ends the process inside of `interruptible`; the
    second ends it in any case.
    """
    if not hasattr(signal, "sigwait"):
        return
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    threading.Thread(target=_wait, name="ctrl-c", daemon=True).start()


def _wait() -> None:
    asked = False
    while True:
        signal.sigwait({signal.SIGINT})
        out = _at_once
        if out or asked:
            if out:
                out.aside.show_cursor(True)
                out.interrupted()
            os._exit(INTERRUPTED)
        asked = True
        _thread.interrupt_main()


@contextmanager
def interruptible(out: Output) -> Iterator[None]:
    """Let Ctrl-C end the process with status 130 at once, wherever the work is.

    No file may be written inside: it could be left half-written.
    """
    global _at_once
    _at_once = out
    try:
        yield
    finally:
        _at_once = None


def stoppable(out: Output, answers_interrupt: bool) -> AbstractContextManager[None]:
    """`interruptible`, but for a method that answers Ctrl-C with what it has; a second one ends the process all the same."""
    return nullcontext() if answers_interrupt else interruptible(out)
