"""Progress of long work: methods report it, and callers may listen.

The listener is a context variable, since it changes no answer: methods call it and read nothing from it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

Progress = Callable[[str, int, int], None]
"""Called with the current step, and the numbers of finished and of all parts."""

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
    """Report the progress of the work to the listener, if there is one.

    Examples
    --------
    >>> from tvm_sched.progress import report_to
    >>> from tvm_sched.schedulers import report_progress
    >>> with report_to(print):
    ...     report_progress("layers", 1, 4)
    ...
    layers 1 4
    """
    listener = _listener.get()
    if listener is not None:
        listener(what, done, total)
