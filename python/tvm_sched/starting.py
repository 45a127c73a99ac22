"""Start the command ``tvm-sched``: until its modules are imported, Ctrl-C ends it with one line and no traceback."""

from __future__ import annotations

import os
import signal


def main() -> None:
    """Import the command line, and run it."""
    # Scripts ignore the signal for what they start behind themselves; there it stays ignored.
    ends = signal.getsignal(signal.SIGINT) is signal.default_int_handler
    if ends:
        signal.signal(signal.SIGINT, _end)
    from .cli import main as command

    if ends:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    command()


def _end(*_: object) -> None:
    os.write(2, b"interrupted; nothing was saved\n")
    os._exit(130)
