"""Start the command ``tvm-sched``: until its modules are imported, Ctrl-C ends it with one line and no traceback."""

from __future__ import annotations

import os
import signal
import sys


def main() -> None:
    """Import the command line, and run it; it handles Ctrl-C itself from `cli.interrupt.watch` on."""
    # Scripts ignore the signal for what they start behind themselves; there it stays ignored.
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, _end)
    from .cli import main as command

    try:
        command()
    except SystemExit as end:
        _end_before_solvers(end)
        raise


def _end_before_solvers(end: SystemExit) -> None:
    """End the process at once if a solver still runs that does not heed Ctrl-C or the time limit."""
    runs = sys.modules.get("tvm_sched.schedulers.common.solver_runs")
    if runs is not None and runs.solvers_run():
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(end.code if isinstance(end.code, int) else int(end.code is not None))


def _end(*_: object) -> None:
    os.write(2, b"interrupted; nothing was saved\n")
    os._exit(130)
