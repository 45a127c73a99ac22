"""Where a stage takes requests over connections: they are received while it computes, one after the other."""

from __future__ import annotations

import asyncio
import logging
import math
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor

from tvm_sched_runtime.errors import ServingError, TvmSchedError
from tvm_sched_serve.recent_runs import RecentRuns

from .tensor_channel import Array, Channel, Endpoint, Message, failed, new_event_loop

LOG = logging.getLogger("tvm_sched.serving")
_Key = tuple[Channel, int]
"""Who sent a request, and its number."""


class StageServer:
    """Runs a function for whoever connects and knows the token; threads of its own do all work.

    One thread receives and sends, another runs. While runs are short, the first one runs them, too.

    Parameters
    ----------
    run : callable
        Of inputs in their order: outputs. Called by one thread at a time.
    host, token : str
        Address to listen on, and what lets in.
    limit : int
        Most bytes of a request's inputs.
    latency : callable, optional
        Seconds of the last run as its executor measured them. They lack the wait for Python's lock, which the thread that
        receives may hold at the end of a run.
    """

    def __init__(
        self,
        run: Callable[..., Sequence[Array]],
        host: str,
        token: str,
        limit: int,
        latency: Callable[[], float] = lambda: math.inf,
    ) -> None:
        self._run, self._limit, self._token, self._latency = run, limit, token, latency
        self._cancelled: set[_Key] = set()
        self._queued: dict[_Key, bool] = {}
        """In their order: whether the other end knows that the run has begun."""
        self._recent = RecentRuns()
        self._began: float | None = None
        self._channels: set[Channel] = set()
        self._worker = ThreadPoolExecutor(1, "tvm-sched-stage")
        self._loop = new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="tvm-sched-stage-io", daemon=True)
        self._thread.start()
        server = asyncio.run_coroutine_threadsafe(self._listen(host), self._loop).result()
        self.endpoint = Endpoint(host, server.sockets[0].getsockname()[1], token)
        self._server = server

    def close(self) -> None:
        """Stop listening, and close all connections."""

        async def close() -> None:
            self._server.close()
            for channel in list(self._channels):
                channel.abort()

        asyncio.run_coroutine_threadsafe(close(), self._loop).result()
        self._worker.shutdown(wait=True, cancel_futures=True)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    async def _listen(self, host: str) -> asyncio.Server:
        return await asyncio.get_running_loop().create_server(self._channel, host, 0)

    def _channel(self) -> Channel:
        channel = Channel(self._receive, self._lost, self._limit, self._token)
        self._channels.add(channel)
        return channel

    def _lost(self, channel: Channel) -> None:
        self._cancelled |= {key for key in self._queued if key[0] is channel}
        self._channels.discard(channel)

    def _receive(self, channel: Channel, message: Message, tensors: list[Array]) -> None:
        key = channel, message.request
        if message.kind == "run":
            here = not self._queued and self._recent.short
            self._queued[key] = False
            self._tell_begun()
            if here:
                self._answer(key, *self._compute(message.request, tensors))
            else:
                self._worker.submit(self._work, key, tensors)
        elif message.kind == "cancel" and key in self._queued:
            self._cancelled.add(key)
        elif message.kind == "beat":
            began = self._began
            channel.send(Message("alive", seconds=0.0 if began is None else time.monotonic() - began))

    def _tell_begun(self) -> None:
        """Tell who sent the first request of the queue that it runs: the worker takes it as soon as it is free."""
        for key, told in self._queued.items():
            if key not in self._cancelled:
                if not told:
                    self._queued[key] = True
                    key[0].send(Message("begun", key[1]))
                return

    def _work(self, key: _Key, tensors: list[Array]) -> None:
        """Answer a request in the worker's thread."""
        if key in self._cancelled:
            answer: tuple[Message, Sequence[Array]] = Message("cancelled", key[1]), ()
        else:
            answer = self._compute(key[1], tensors)
        self._loop.call_soon_threadsafe(self._answer, key, *answer)

    def _compute(self, request: int, tensors: list[Array]) -> tuple[Message, Sequence[Array]]:
        outputs: Sequence[Array] = ()
        self._began = begin = time.monotonic()
        try:
            outputs = self._run(*tensors)
            spent = min(time.monotonic() - begin, self._latency())
            message = Message("done", request, seconds=spent)
            self._recent.note(spent)
        except TvmSchedError as error:
            message = failed(request, error)
        except Exception as error:
            LOG.exception("a run failed")
            message = failed(request, ServingError(f"{type(error).__name__}: {error}"))
        self._began = None
        return message, outputs

    def _answer(self, key: _Key, message: Message, outputs: Sequence[Array]) -> None:
        self._queued.pop(key, None)
        self._cancelled.discard(key)
        key[0].send(message, outputs)
        self._tell_begun()
