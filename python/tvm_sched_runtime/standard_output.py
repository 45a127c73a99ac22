"""The end of a command: what it printed is written, or standard output takes no more (a closed pipe, a full disk)."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable


def written_out(command: Callable[[], int]) -> int:
    """Return the status of a command whose output is written; 1 if standard output takes no more.

    Standard error then says why, unless the reader closed the pipe, as ``head`` does. Other errors of the system that name
    no file are told as they are.
    """
    try:
        try:
            return command()
        except BrokenPipeError:
            discard_output()
            return 1
        except OSError as error:
            sys.stdout.flush()  # fails again while standard output has not taken what it was given
            if error.filename is not None:
                raise
            print(f"error: {error.strerror or error}", file=sys.stderr)
            return 1
        finally:
            sys.stdout.flush()
    except OSError as error:
        if error.filename is not None:
            raise
        if not isinstance(error, BrokenPipeError):
            print(f"error: standard output: {error.strerror or error}", file=sys.stderr)
    discard_output()
    return 1


def discard_output() -> None:
    """Drop what standard output could not take, which Python would try to write once more when it ends."""
    try:
        sys.stdout.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
