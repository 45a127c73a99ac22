"""`RayExecutor`: a `concurrent.futures.Executor` whose workers are those of a Ray cluster."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Executor, Future
from typing import Any, TypeVar

import ray
from ray.exceptions import RayError, RayTaskError

from tvm_sched_runtime.errors import ServingError

from .ray_connection import connect

T = TypeVar("T")


class RayExecutor(Executor):
    """Run functions on a Ray cluster, each on one CPU of any node; for `tvm_sched.worker_pool.workers`.

    If a node dies, its functions run again on others.

    Parameters
    ----------
    address
        As for `connect`.
    """

    def __init__(self, address: str | None = None) -> None:
        connect(address)
        self._call = ray.remote(num_cpus=1, max_retries=3)(_call)
        self._open: dict[Future[Any], Any] = {}

    def submit(self, function: Callable[..., T], /, *arguments: Any, **named: Any) -> Future[T]:
        """Run a function. Its exceptions are raised unchanged, Ray's exceptions as `ServingError`."""
        reference = self._call.remote(function, arguments, named)
        future: Future[T] = Future()
        self._open[future] = reference

        def done(finished: Future[T]) -> None:
            self._open.pop(future, None)
            if not future.set_running_or_notify_cancel():
                return
            error = finished.exception()
            if error is None:
                future.set_result(finished.result())
            else:
                future.set_exception(_as_raised(error))

        future.add_done_callback(self._take_back)
        reference.future().add_done_callback(done)
        return future

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Wait for running functions, or cancel those that have not begun. The cluster stays connected."""
        for future in list(self._open):
            if cancel_futures:
                future.cancel()
            elif wait:
                future.exception()

    def _take_back(self, future: Future[Any]) -> None:
        reference = self._open.pop(future, None)
        if future.cancelled() and reference is not None:
            ray.cancel(reference)


def _call(function: Callable[..., T], arguments: tuple[Any, ...], named: dict[str, Any]) -> T:
    return function(*arguments, **named)


def _as_raised(error: BaseException) -> BaseException:
    raised = error.cause if isinstance(error, RayTaskError) and error.cause is not None else error
    return (
        ServingError(f"a part of the search failed on the cluster: {raised}")
        if isinstance(raised, RayError)
        else raised
    )
