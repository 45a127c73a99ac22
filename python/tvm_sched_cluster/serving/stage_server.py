"""Where a stage takes requests over connections: they are received while it computes, one after the other."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor

from tvm_sched.errors import ServingError, TvmSchedError

from .tensor_channel import Array, Channel, Endpoint, Message, failed

LOG = logging.getLogger("tvm_sched.serving")


class StageServer:
    """Runs a function for whoever connects and knows the token; threads of its own do all work.

    Parameters
    ----------
    run : callable
        Of inputs in their order: outputs. Called by one thread.
    host, token : str
        Address to listen on, and what lets in.
    limit : int
        Most bytes of a request's inputs.
    """

    def __init__(self, run: Callable[..., Sequence[Array]], host: str, token: str, limit: int) -> None:
        self._run, self._limit, self._token = run, limit, token
        self._cancelled: set[tuple[Channel, int]] = set()
        self._queued: set[tuple[Channel, int]] = set()
        self._began: float | None = None
        self._channels: set[Channel] = set()
        self._worker = ThreadPoolExecutor(1, "tvm-sched-stage")
        self._loop = asyncio.new_event_loop()
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
            self._queued.add(key)
            self._worker.submit(self._work, key, tensors)
        elif message.kind == "cancel" and key in self._queued:
            self._cancelled.add(key)
        elif message.kind == "beat":
            began = self._began
            channel.send(Message("alive", seconds=0.0 if began is None else time.monotonic() - began))

    def _work(self, key: tuple[Channel, int], tensors: list[Array]) -> None:
        channel, request = key
        if key in self._cancelled:
            self._loop.call_soon_threadsafe(self._answer, key, Message("cancelled", request), ())
            return
        self._loop.call_soon_threadsafe(channel.send, Message("begun", request))
        outputs: Sequence[Array] = ()
        self._began = begin = time.monotonic()
        try:
            outputs = self._run(*tensors)
            message = Message("done", request, seconds=time.monotonic() - begin)
        except TvmSchedError as error:
            message = failed(request, error)
        except Exception as error:
            LOG.exception("a run failed")
            message = failed(request, ServingError(f"{type(error).__name__}: {error}"))
        self._began = None
        self._loop.call_soon_threadsafe(self._answer, key, message, outputs)

    def _answer(self, key: tuple[Channel, int], message: Message, outputs: Sequence[Array]) -> None:
        self._queued.discard(key)
        self._cancelled.discard(key)
        key[0].send(message, outputs)
