"""Run commands that import and compile models in a child process, so that its crash ends with a message.

The compiler is C++: a broken or too deeply nested model can end its process by a signal, which Python cannot catch. The
child is forked before anything heavy is imported, which costs milliseconds. It writes to the same terminal.
"""

from __future__ import annotations

import mmap
import os
import signal
import sys

from ..parent_death import end_with

CRASHES = tuple(
    getattr(signal, name) for name in ("SIGSEGV", "SIGABRT", "SIGBUS", "SIGFPE", "SIGILL") if hasattr(signal, name)
)
"""Signals that end a process after a fault of its program."""
_NOTE_BYTES = 1024


class Note:
    """Text in shared memory: the child's current work, which its parent reads after a crash."""

    def __init__(self) -> None:
        self._memory = mmap.mmap(-1, _NOTE_BYTES)  # shared with children

    def write(self, text: str) -> None:
        """Replace the note."""
        content = text.encode()[: _NOTE_BYTES - 1]
        self._memory[: len(content) + 1] = content + b"\0"

    def read(self) -> str:
        """Return the last note."""
        return bytes(self._memory).partition(b"\0")[0].decode(errors="replace")


def can_fork() -> bool:
    """Return whether `fork_child` works on this system."""
    return hasattr(os, "fork") and hasattr(signal, "sigwaitinfo")


def fork_child() -> int | None:
    """Fork; return None in the child, and the child's wait status in the parent when the child has ended.

    Ctrl-C on the terminal reaches both processes. The parent passes on a SIGINT that only it received, SIGTERM and
    SIGHUP. The child ends when its parent does.
    """
    passed_on = {signal.SIGINT, signal.SIGTERM, signal.SIGHUP}
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {*passed_on, signal.SIGCHLD})
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    parent, child = os.getpid(), os.fork()
    if child == 0:
        end_with(parent)
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        return None
    while True:
        ended, status = os.waitpid(child, os.WNOHANG)
        if ended:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
            return status
        received = signal.sigwaitinfo({*passed_on, signal.SIGCHLD})
        from_terminal = received.si_signo == signal.SIGINT and received.si_code > 0
        if received.si_signo in passed_on and not from_terminal:
            os.kill(child, received.si_signo)
