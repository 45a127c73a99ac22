"""Start the command ``tvm-sched``: until its modules are imported, Ctrl-C ends it with one line and no traceback."""

from __future__ import annotations

import os
import signal


def main() -> None:
    """Import the command line, and run it; it handles Ctrl-C itself from `cli.interrupt.watch` on."""
    # Scripts ignore the signal for what they start behind themselves; there it stays ignored.
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, _end)
    from .cli import main as command

    command()


def _end(*_: object) -> None:
    os.write(2, b"interrupted; nothing was saved\n")
    os._exit(130)
