"""Compute independent parts of a search in this process, or with an executor of the caller: other processes, a cluster.

Searches with such parts call `distribute`; callers that have workers name them with `workers`. Results come in the order
of the parts, so that they do not depend on where they were computed. So the executor may be in a context variable: it
changes how long an answer takes, and not the answer.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Executor
from contextlib import AbstractContextManager, contextmanager, nullcontext
from contextvars import ContextVar
from typing import Any, TypeVar

from .errors import InputError
from .registry import Registry

T = TypeVar("T")

_executor: ContextVar[Executor | None] = ContextVar("executor", default=None)


@contextmanager
def workers(executor: Executor) -> Iterator[None]:
    """Let all `distribute` inside use an executor; it is not shut down."""
    token = _executor.set(executor)
    try:
        yield
    finally:
        _executor.reset(token)


def have_workers() -> bool:
    """Whether `distribute` computes elsewhere."""
    return _executor.get() is not None


def distribute(function: Callable[..., T], parts: Iterable[tuple[Any, ...]]) -> list[T]:
    """Call a function with the arguments of each part; return the results in the order of the parts.

    Parameters
    ----------
    function : callable
        At the top of a module, and the arguments such as can be pickled: they may go to another process.

    Raises
    ------
    Exception
        What the function raised for the first part that failed; parts that have not begun are given up.
    """
    executor = _executor.get()
    if executor is None:
        return [function(*part) for part in parts]
    futures = [executor.submit(function, *part) for part in parts]
    try:
        return [future.result() for future in futures]
    except BaseException:
        for future in futures:
            future.cancel()
        raise


EXECUTORS: Registry[Callable[[str], Executor]] = Registry("kind of workers", "tvm_sched.executors")
"""What makes a `concurrent.futures.Executor` of an address, by kind of workers."""


def _executor_of(text: str) -> Executor:
    kind, _, address = text.partition(":")
    offered = EXECUTORS.names()
    if kind not in offered:
        raise InputError(
            f"--workers {text}: no installed package offers workers of the kind {kind!r}; there are "
            f"{', '.join(offered) or 'none'}. Those of a cluster come with tvm-sched-cluster: pip install tvm-sched-cluster"
        )
    return EXECUTORS.get(kind)(address)


def workers_of(kind: str | None) -> AbstractContextManager[None]:
    """Return a context in which searches use the workers of ``--workers``; without the option they work here."""
    if kind is None:
        return nullcontext()
    return workers(_executor_of(kind))
