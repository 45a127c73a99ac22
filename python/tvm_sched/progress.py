"""Progress of long work: methods report it, callers may listen.

The listener is in a context variable, since it changes no answer: methods tell it something and read nothing from it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

Progress = Callable[[str, int, int], None]
"""Called with what is being done, how many parts are done and how many there are."""

_listener: ContextVar[Progress | None] = ContextVar("tvm_sched_progress", default=None)


@contextmanager
def report_to(progress: Progress | None) -> Iterator[None]:
    """Let `report_progress` call ``progress`` within the context."""
    token = _listener.set(progress)
    try:
        yield
    finally:
        _listener.reset(token)


def report_progress(what: str, done: int, total: int) -> None:
    """Say how far the work has come; costs nothing when nobody listens."""
    listener = _listener.get()
    if listener is not None:
        listener(what, done, total)
