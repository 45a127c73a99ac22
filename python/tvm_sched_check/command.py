"""What the commands of the three checkers share: they take files, print a verdict's lines, and end with a status."""

import sys
from collections.abc import Callable
from typing import Any, NoReturn

from .document import Refused


def run(usage: str | None, check: Callable[..., Any], *files: int) -> NoReturn:
    """Check as many files of the command line: status 0 where all is proved, 1 where less is, 2 where a file is wrong."""
    if len(sys.argv) - 1 not in files:
        sys.exit(print(usage, file=sys.stderr) or 2)
    try:
        verdict = check(*sys.argv[1:])
    except Refused as error:
        sys.exit(print(f"refused: {error}", file=sys.stderr) or 2)
    print(*verdict.lines, sep="\n")
    sys.exit(0 if verdict.all_proved else 1)
