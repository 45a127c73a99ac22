"""Run a checker as a command: take files, print the lines of the verdict, and exit with a status."""

import os
import sys
from collections.abc import Callable
from typing import Any, NoReturn

from .document import Refused


def run(usage: str | None, check: Callable[..., Any], *files: int) -> NoReturn:
    """Check the files that the command line names and exit: 0 if all is proved, 1 if less is, 2 if a file is wrong.

    ``files`` are the allowed numbers of files. With another number print ``usage`` and exit with 2. Ctrl-C exits with 130.
    """
    if len(sys.argv) - 1 not in files:
        sys.exit(print(usage, file=sys.stderr) or 2)
    try:
        verdict = check(*sys.argv[1:])
    except Refused as error:
        sys.exit(print(f"refused: {error}", file=sys.stderr) or 2)
    except KeyboardInterrupt:
        sys.exit(print("interrupted", file=sys.stderr) or 130)
    end("\n".join(verdict.lines), 0 if verdict.all_proved else 1)


def end(text: str | None, status: int) -> NoReturn:
    """Print ``text`` and exit with ``status``; with 1 if standard output does not take the text.

    Standard error then says why, unless the reader closed the pipe, as ``head`` does.
    """
    try:
        print(text, flush=True)
    except OSError as error:
        if not isinstance(error, BrokenPipeError):
            print(f"error: standard output: {error.strerror or error}", file=sys.stderr)
        # Python writes once more what could not be written when it ends.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        status = 1
    sys.exit(status)
