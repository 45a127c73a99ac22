"""Compute independent parts of a search in this process, or with an executor of the caller: other processes, a cluster.

Searches call `distribute`; callers provide an executor with `workers`. Results have the order of the parts. The executor is
a context variable, since it changes the duration of a search but not its answer.
"""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Executor, ProcessPoolExecutor, as_completed
from contextlib import AbstractContextManager, contextmanager, nullcontext
from contextvars import ContextVar
from typing import Any, TypeVar

from tvm_sched_runtime.cores import cores
from tvm_sched_runtime.errors import InputError

from .parent_death import end_with
from .progress import report_progress
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
    """Return whether `distribute` uses an executor."""
    return _executor.get() is not None


def distribute(function: Callable[..., T], parts: Iterable[tuple[Any, ...]], what: str | None = None) -> list[T]:
    """Call a function with the arguments of each part; return the results in the order of the parts.

    Parameters
    ----------
    function : callable
        Top-level function of a module; it and the arguments must be picklable.
    what : str, optional
        Name of the work, to report with an executor how many parts are done (`report_progress`). Default: no report.

    Raises
    ------
    Exception
        The exception of the first part that failed; parts that have not begun are cancelled.
    """
    executor = _executor.get()
    if executor is None:
        return [function(*part) for part in parts]
    futures = [executor.submit(function, *part) for part in parts]
    try:
        if what is not None:
            report_progress(what, 0, len(futures))
            for done, future in enumerate(as_completed(futures), 1):
                if not future.cancelled() and future.exception() is not None:
                    break  # the first of the parts that failed is raised below
                report_progress(what, done, len(futures))
        return [future.result() for future in futures]
    except BaseException:
        for future in futures:
            future.cancel()
        raise


EXECUTORS: Registry[Callable[[str], Executor]] = Registry("kind of workers", "tvm_sched.executors")
"""Functions from an address to a `concurrent.futures.Executor`, by kind of workers."""
LOCAL = "processes"
"""Kind of workers that are processes of this machine; the address is their number."""


def _local_processes(count: str) -> Executor:
    """Return processes of this machine, by default one for each core; they end with this process."""
    if count and (not count.isdecimal() or int(count) < 1):
        raise InputError(f"--workers {LOCAL}:{count}: a number of processes from 1 is expected, such as {LOCAL}:4")
    spawn = multiprocessing.get_context("spawn")  # this process may have threads
    return ProcessPoolExecutor(int(count or cores()), spawn, end_with, (os.getpid(),))


EXECUTORS.add(LOCAL, _local_processes)


def executor_of(text: str) -> Executor:
    """Return the executor that ``--workers KIND[:ADDRESS]`` names.

    Raises
    ------
    InputError
        No installed package offers the kind, or its address is wrong.
    """
    kind, _, address = text.partition(":")
    offered = EXECUTORS.names()
    if kind not in offered:
        raise InputError(
            f"--workers {text}: no installed package offers workers of the kind {kind!r}; there are "
            f"{', '.join(offered) or 'none'}. Workers of a cluster need tvm-sched-cluster: pip install tvm-sched-cluster"
        )
    return EXECUTORS.get(kind)(address)


def workers_of(kind: str | None) -> AbstractContextManager[None]:
    """Return a context in which searches use the workers of ``--workers``, or this process without the option."""
    if kind is None:
        return nullcontext()
    return workers(executor_of(kind))
