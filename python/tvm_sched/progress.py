"""Progress of long work: methods report it, and callers may listen.

The listeners are context variables, since they change no answer: methods call them and read nothing from them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from contextvars import ContextVar

Progress = Callable[[str, int, int], None]
"""Called with the current step, and the numbers of finished and of all parts."""

Searching = Callable[[], AbstractContextManager[None]]
"""Makes the context in which a search runs that answers KeyboardInterrupt with its best result."""

_listener: ContextVar[Progress | None] = ContextVar("tvm_sched_progress", default=None)
_searching: ContextVar[Searching] = ContextVar("tvm_sched_searching", default=nullcontext)


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


@contextmanager
def searches_run_in(context: Searching) -> Iterator[None]:
    """Let `searching` return ``context()`` within this context."""
    token = _searching.set(context)
    try:
        yield
    finally:
        _searching.reset(token)


def searching() -> AbstractContextManager[None]:
    """Return the caller's context for a search that answers KeyboardInterrupt with its best result."""
    return _searching.get()()
