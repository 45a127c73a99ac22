"""Requests to a deployment, from any process that can reach the cluster."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import numpy as np
import ray
from ray.exceptions import GetTimeoutError, RayActorError, RayError, RayTaskError

from tvm_sched.errors import InputError, ServingError, TvmSchedError
from tvm_sched.pipeline.pipeline_executor import BatchResult

from .actor_names import NAMESPACE, ingress_name
from .deployment_lifecycle import unknown
from .ray_connection import connect

_GRACE_SECONDS = 5.0
"""How much longer than the ingress a client waits, since the ingress reports more precise errors."""
_PAUSE_SECONDS = 0.1


class Client:
    """A handle on a deployment.

    Parameters
    ----------
    name : str
    address
        As for `connect`.

    Raises
    ------
    InputError
        There is no such deployment.
    ServingError
        It does not answer.
    """

    def __init__(self, name: str, address: str | None = None) -> None:
        connect(address)
        self.name = name
        try:
            self._ingress = ray.get_actor(ingress_name(name), NAMESPACE)
        except ValueError:
            raise unknown(name) from None
        try:
            self.deployment, self.manifest = ray.get(self._ingress.describe.remote(), timeout=_GRACE_SECONDS)
        except (GetTimeoutError, RayActorError) as error:
            raise ServingError(f"deployment {name!r} does not answer ({type(error).__name__})") from None

    def run(self, *inputs: Any, timeout: float | None = None, **named: Any) -> list[np.ndarray[Any, Any]]:
        """Answer one request.

        Parameters
        ----------
        inputs
            The model's inputs in their order.
        timeout : float, optional
            Seconds in all; default: the deployment's.
        named
            Inputs by name, after the positional ones.

        Raises
        ------
        InputError
            They are not the model's inputs.
        BusyError
            The deployment had no place for it.
        ServingError
            A stage failed or was not done in time.
        """
        return self._result(self._named(inputs, named), timeout, time.monotonic(), None)

    def stream(
        self, batches: Iterable[Any], timeout: float | None = None, in_flight: int | None = None
    ) -> Iterator[BatchResult]:
        """Run batches and yield their results in order. The result of a batch that fails holds the error.

        Parameters
        ----------
        batches : iterable
            Each a mapping by name, a sequence in the model's order, or an array.
        in_flight : int, optional
            Batches sent and not yet yielded; default: as many as the deployment has places.

        Raises
        ------
        InputError
            A batch has more inputs than the model.
        """
        sent: deque[tuple[int, dict[str, Any], float, Any]] = deque()
        for number, batch in enumerate(batches):
            inputs = self._of_batch(batch)
            sent.append((number, inputs, time.monotonic(), self._ingress.run.remote(inputs, timeout)))
            if len(sent) >= (in_flight or self.deployment.places):
                yield self._batch(sent.popleft(), timeout)
        while sent:
            yield self._batch(sent.popleft(), timeout)

    def _batch(self, sent: tuple[int, dict[str, Any], float, Any], timeout: float | None) -> BatchResult:
        number, inputs, begin, reference = sent
        try:
            return BatchResult(number, self._result(inputs, timeout, begin, reference))
        except TvmSchedError as error:
            return BatchResult(number, None, error)

    def _result(
        self, inputs: dict[str, Any], timeout: float | None, begin: float, reference: Any
    ) -> list[np.ndarray[Any, Any]]:
        """Wait for a request, and send it first if needed. If the ingress is lost, ask the one that Ray starts next."""
        limit = self.deployment.timeout if timeout is None else timeout
        while True:
            left = begin + limit - time.monotonic()
            try:
                reference = reference or self._ingress.run.remote(inputs, max(left, 0.0))
                return list(ray.get(reference, timeout=max(left, 0.0) + _GRACE_SECONDS))
            except RayTaskError as error:
                raise error.cause from None
            except GetTimeoutError:
                ray.cancel(reference)
                raise ServingError(f"deployment {self.name!r} did not answer in {limit:g} s") from None
            except RayError as error:
                if left <= 0:
                    raise ServingError(f"deployment {self.name!r} is gone ({type(error).__name__})") from None
                reference = None
                time.sleep(min(_PAUSE_SECONDS, left))

    def _of_batch(self, batch: Any) -> dict[str, Any]:
        if isinstance(batch, Mapping):
            return self._named((), batch)
        return self._named(batch if isinstance(batch, (list, tuple)) else (batch,), {})

    def _named(self, inputs: Iterable[Any], named: Mapping[str, Any]) -> dict[str, Any]:
        """Return all inputs as arrays by name."""
        positional, names = list(inputs), [tensor.name for tensor in self.manifest.inputs]
        if len(positional) > len(names):
            raise InputError(f"{len(positional)} inputs are given; deployment {self.name!r} takes {', '.join(names)}")
        return {
            name: np.asarray(value) for name, value in {**dict(zip(names, positional, strict=False)), **named}.items()
        }
