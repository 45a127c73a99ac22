"""Handle Ctrl-C while C++ code computes, which keeps Python's own handler from running.

Some solvers handle the signal themselves, and fail if another thread than the solving one receives it. So the command
line blocks the signal before any other thread begins, and one thread waits for it.
"""

from __future__ import annotations

import _thread
import math
import os
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext

from ..progress import Progress
from .output import INTERRUPTED, Output

_SAME_SECONDS = 0.1
"""Signals that come sooner after one another are one: `timeout` sends it to the process and to its group, as scripts do."""
_at_once: Output | None = None
"""Where to print the last message, while Ctrl-C may end the process at once."""
_asked = False
"""Whether Ctrl-C was pressed before."""


def watch() -> None:
    """Handle Ctrl-C; call this once, before anything heavy is imported.

    The first Ctrl-C raises ``KeyboardInterrupt`` in the main thread; inside `interruptible` it ends the process. The
    second one always ends it. Where the signal is ignored, as by what a script runs behind itself, it stays ignored.
    """
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # as of a script's job
        return
    if hasattr(signal, "sigwait"):
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    signal.signal(signal.SIGINT, signal.default_int_handler)  # `tvm_sched.starting` has set another one
    if not hasattr(signal, "sigwait"):
        return
    threading.Thread(target=_wait, name="ctrl-c", daemon=True).start()


def _wait() -> None:
    global _asked
    before = -math.inf
    while True:
        signal.sigwait({signal.SIGINT})
        now = time.monotonic()
        if now - before < _SAME_SECONDS:
            continue
        before, out = now, _at_once
        if out or _asked:
            if out:
                out.aside.show_cursor(True)
                out.interrupted()
            os._exit(INTERRUPTED)
        _asked = True
        _thread.interrupt_main()


@contextmanager
def interruptible(out: Output) -> Iterator[None]:
    """Let Ctrl-C end the process with status 130 at once. Write no file inside: it could be left half-written."""
    global _at_once
    _at_once = out
    try:
        yield
    finally:
        _at_once = None


@contextmanager
def answered(out: Output) -> Iterator[None]:
    """Within `interruptible`, let Ctrl-C end a search, which answers with its best result, and not the process."""
    global _at_once
    before, _at_once = _at_once, None
    try:
        yield
    finally:
        _at_once = before
    if _asked:
        out.say("interrupted: going on with the best schedule so far; Ctrl-C again ends at once")


def was_interrupted() -> bool:
    """Return whether Ctrl-C was pressed, so that a result may be less than was asked for."""
    return _asked


def ending_when_interrupted(progress: Progress) -> Progress:
    """Return a progress that raises ``KeyboardInterrupt`` after Ctrl-C, also if a search has answered the signal itself."""

    def report(what: str, done: int, total: int) -> None:
        progress(what, done, total)
        if _asked:
            raise KeyboardInterrupt

    return report


def stoppable(out: Output, answers_interrupt: bool) -> AbstractContextManager[None]:
    """Return `interruptible`, unless the method answers Ctrl-C with its best result so far."""
    return nullcontext() if answers_interrupt else interruptible(out)
