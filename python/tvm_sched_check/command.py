"""Run a checker as a command: take files, print the lines of the verdict, and exit with a status."""

import sys
from collections.abc import Callable
from typing import Any, NoReturn

from .document import Refused


def run(usage: str | None, check: Callable[..., Any], *files: int) -> NoReturn:
    """Check the files that the command line names and exit: 0 if all is proved, 1 if less is, 2 if a file is wrong.

    ``files`` are the allowed numbers of files. With another number print ``usage`` and exit with 2.
    """
    if len(sys.argv) - 1 not in files:
        sys.exit(print(usage, file=sys.stderr) or 2)
    try:
        verdict = check(*sys.argv[1:])
    except Refused as error:
        sys.exit(print(f"refused: {error}", file=sys.stderr) or 2)
    print(*verdict.lines, sep="\n")
    sys.exit(0 if verdict.all_proved else 1)
