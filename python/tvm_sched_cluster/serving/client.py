"""Requests to a deployment, from any process that can reach the cluster."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import threading
import time
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import CancelledError, Future
from concurrent.futures import TimeoutError as FutureTimeoutError
from typing import Any

import numpy as np
import ray
from ray.exceptions import GetTimeoutError, RayActorError, RayError

from tvm_sched_runtime.errors import InputError, ServingError, TvmSchedError
from tvm_sched_runtime.pipeline.pipeline_executor import BatchResult

from .actor_names import NAMESPACE, ingress_name
from .deployment import Generation, check_inputs
from .deployment_lifecycle import unknown
from .ray_connection import connect
from .tensor_channel import Array, Channel, Endpoint, Message, error_of, new_event_loop, tensor_bytes
from .tensor_channel import connect as open_channel

_GRACE_SECONDS = 5.0
"""How much longer than the ingress a client waits, since the ingress reports more precise errors."""
_PAUSE_SECONDS = 0.1


class _LostError(Exception):
    """The connection to the ingress broke, or there is none."""


class _Connection:
    """A connection to an ingress, kept by a thread of its own."""

    def __init__(self, generation: Generation, endpoint: Endpoint) -> None:
        self._names = tuple(tensor.name for tensor in generation.manifest.inputs)
        self._limit = tensor_bytes([(tensor.dtype, tensor.shape) for tensor in generation.manifest.outputs])
        self._numbers = itertools.count(1)
        self._waiting: dict[int, Future[list[Array]]] = {}
        self._loop = new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="tvm-sched-client", daemon=True)
        self._thread.start()
        self.closed = False
        opening = open_channel(endpoint, self._receive, self._lost, self._limit)
        try:
            self._channel = asyncio.run_coroutine_threadsafe(opening, self._loop).result()
        except OSError as error:
            self.close()
            raise _LostError(str(error)) from None

    def send(self, inputs: Mapping[str, Any], seconds: float) -> tuple[int, Future[list[Array]]]:
        """Send a request; return its number and its outputs to come."""
        number, answer = next(self._numbers), Future[list[Array]]()
        message = Message("run", number, seconds=max(seconds, 1e-3), names=tuple(inputs))
        try:
            self._loop.call_soon_threadsafe(self._send, number, answer, message, list(inputs.values()))
        except RuntimeError:  # closed meanwhile
            answer.set_exception(_LostError())
        return number, answer

    def cancel(self, number: int) -> None:
        """Tell the ingress that nobody waits for a request any more."""
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self._channel.send, Message("cancel", number))

    def close(self) -> None:
        """End the connection and its thread."""
        if not self.closed:
            self.closed = True
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()
            self._loop.close()

    def _send(self, number: int, answer: Future[list[Array]], message: Message, tensors: list[Array]) -> None:
        if self._channel.closed:
            answer.set_exception(_LostError())
            return
        self._waiting[number] = answer
        self._channel.send(message, tensors)

    def _receive(self, channel: Channel, message: Message, tensors: list[Array]) -> None:
        answer = self._waiting.pop(message.request, None)
        if answer is None:
            return
        if message.kind == "done":
            answer.set_result(tensors)
        else:
            answer.set_exception(error_of(message))

    def _lost(self, channel: Channel) -> None:
        waiting, self._waiting = self._waiting, {}
        for answer in waiting.values():
            answer.set_exception(_LostError())


def find_ingress(name: str) -> tuple[Generation, Endpoint]:
    """Return what a deployment serves, and where its ingress listens.

    Raises
    ------
    InputError
        There is no such deployment.
    ServingError
        It does not answer.
    """
    try:
        return _describe(name)
    except ValueError:
        raise unknown(name) from None
    except (GetTimeoutError, RayActorError) as error:
        raise ServingError(f"deployment {name!r} does not answer ({type(error).__name__})") from None


def _describe(name: str) -> tuple[Generation, Endpoint]:
    ingress = ray.get_actor(ingress_name(name), NAMESPACE)
    generation, endpoint = ray.get(ingress.describe.remote(), timeout=_GRACE_SECONDS)
    return generation, endpoint


_Sent = tuple[_Connection, int, "Future[list[Array]]"]
"""A connection, and the number and the outputs to come of a request that was sent over it."""


class Client:
    """A handle on a deployment. When the deployment moves, is rolled out or made anew under its name, it follows.

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
        self._connection: _Connection | None = None
        self._lock = threading.Lock()
        try:
            self._connected(find_ingress(name))
        except _LostError as error:
            raise ServingError(f"deployment {name!r} does not answer ({error})") from None

    def _connected(self, known: tuple[Generation, Endpoint] | None = None) -> _Connection:
        """Return the connection; if it is lost, look the deployment up again."""
        with self._lock:
            found = self._connection
            if found is not None and not found.closed:
                return found
            generation, endpoint = known or _describe(self.name)
            self.deployment, self.manifest = generation.deployment, generation.manifest
            self._connection = _Connection(generation, endpoint)
            return self._connection

    def _drop(self, connection: _Connection) -> None:
        with self._lock:
            connection.close()

    def run(self, /, *inputs: Any, timeout: float | None = None, **named: Any) -> list[np.ndarray[Any, Any]]:
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
        sent: deque[tuple[int, dict[str, Any], float, _Sent | None]] = deque()
        for number, batch in enumerate(batches):
            inputs = self._of_batch(batch)
            sent.append((number, inputs, time.monotonic(), self._sent(inputs, timeout)))
            if len(sent) >= (in_flight or self.deployment.places):
                yield self._batch(sent.popleft(), timeout)
        while sent:
            yield self._batch(sent.popleft(), timeout)

    def _batch(self, waiting: tuple[int, dict[str, Any], float, _Sent | None], timeout: float | None) -> BatchResult:
        number, inputs, begin, sent = waiting
        try:
            return BatchResult(number, self._result(inputs, timeout, begin, sent))
        except TvmSchedError as error:
            return BatchResult(number, None, error)

    def _sent(self, inputs: dict[str, Any], seconds: float | None) -> _Sent | None:
        """Send a request; None if its inputs are wrong, or the deployment cannot be reached at the moment."""
        try:
            connection = self._connected()
            check_inputs(self.manifest, inputs)
        except (InputError, ValueError, RayError, GetTimeoutError, _LostError):
            return None
        return connection, *connection.send(inputs, self.deployment.timeout if seconds is None else seconds)

    def _result(self, inputs: dict[str, Any], timeout: float | None, begin: float, sent: _Sent | None) -> list[Array]:
        """Wait for a request, and send it first if needed. If the ingress is lost, ask the one that Ray starts next."""
        limit = self.deployment.timeout if timeout is None else timeout
        while True:
            left = begin + limit - time.monotonic()
            sent = sent or self._sent(inputs, max(left, 0.0))
            if sent is None:
                check_inputs(self.manifest, inputs)
            try:
                if sent is not None:
                    return sent[2].result(max(left, 0.0) + _GRACE_SECONDS)
            except (FutureTimeoutError, CancelledError):
                assert sent is not None
                sent[0].cancel(sent[1])
                raise ServingError(f"deployment {self.name!r} did not answer in {limit:g} s") from None
            except _LostError:
                assert sent is not None
                self._drop(sent[0])
            if left <= 0:
                raise ServingError(f"deployment {self.name!r} is gone, or cannot be reached") from None
            sent = None
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
