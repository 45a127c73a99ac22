"""Commands that import and compile models work in a child process, so that a crash in there ends with a message.

The compiler is C++: a broken model, or one that is nested too deep, can end its process by a signal, which Python cannot
catch. The child is forked before anything heavy is imported, so it costs milliseconds, and it writes to the same terminal.
"""

from __future__ import annotations

import mmap
import os
import signal
import sys

CRASHES = tuple(
    getattr(signal, name) for name in ("SIGSEGV", "SIGABRT", "SIGBUS", "SIGFPE", "SIGILL") if hasattr(signal, name)
)
"""Signals by which a fault of the program ends it."""
_NOTE_BYTES = 1024
_PARENT_DEATH_SIGNAL = 1
"""Of Linux' ``prctl``."""


class Note:
    """What the child is doing, for its parent to read when the child has crashed."""

    def __init__(self) -> None:
        self._memory = mmap.mmap(-1, _NOTE_BYTES)  # shared with children

    def write(self, text: str) -> None:
        """Replace the note."""
        content = text.encode()[: _NOTE_BYTES - 1]
        self._memory[: len(content) + 1] = content + b"\0"

    def read(self) -> str:
        """The last note."""
        return bytes(self._memory).partition(b"\0")[0].decode(errors="replace")


def can_fork() -> bool:
    """Whether this system has what `fork_child` needs."""
    return hasattr(os, "fork") and hasattr(signal, "sigwaitinfo")


def fork_child() -> int | None:
    """Fork; returns None in the child, and in the parent, when the child has ended, its wait status.

    Ctrl-C reaches both where it comes from the terminal, and only the parent where somebody sends it to that process:
    then the child gets it, too. It also gets SIGTERM and SIGHUP, and ends when its parent does.
    """
    passed_on = {signal.SIGINT, signal.SIGTERM, signal.SIGHUP}
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {*passed_on, signal.SIGCHLD})
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    parent, child = os.getpid(), os.fork()
    if child == 0:
        _end_with(parent)
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        return None
    while True:
        ended, status = os.waitpid(child, os.WNOHANG)
        if ended:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
            return status
        found = signal.sigwaitinfo({*passed_on, signal.SIGCHLD})
        from_terminal = found.si_signo == signal.SIGINT and found.si_code > 0
        if found.si_signo in passed_on and not from_terminal:
            os.kill(child, found.si_signo)


def _end_with(parent: int) -> None:
    """Have this process killed when its parent is gone, however that happens."""
    if not sys.platform.startswith("linux"):
        return
    import ctypes

    ctypes.CDLL(None).prctl(_PARENT_DEATH_SIGNAL, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)
