"""The connection to a stage: requests with credits, signs of life, and a new connection when the stage is back."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import time
from collections.abc import Awaitable, Callable, Sequence

from tvm_sched.errors import ServingError, TvmSchedError

from .tensor_channel import Array, Channel, Endpoint, Message, connect, error_of

_PAUSE_SECONDS = 0.05
_BEAT_SECONDS = 1.0


class StageLostError(Exception):
    """The connection to a stage broke while the stage had the request.

    Parameters
    ----------
    running : bool
        Whether the stage was computing it.
    """

    def __init__(self, running: bool) -> None:
        super().__init__("the connection to its process broke")
        self.running = running


class StageLink:
    """Sends requests to a stage over one connection that is kept.

    Parameters
    ----------
    find : callable
        Looks the stage up; raises `ServingError` if it is not there at the moment.
    credits : int
        Requests that the stage may have at once; others wait here.
    limit : int
        Most bytes of a request's outputs.
    hang_seconds : float
        A stage that sends no sign of life, or computes one request, for longer than this is given up.
    give_up : callable
        Ends the stage's process, so that it is started again.
    """

    def __init__(
        self,
        find: Callable[[], Awaitable[Endpoint]],
        credits: int,
        limit: int,
        hang_seconds: float,
        give_up: Callable[[], Awaitable[None]],
    ) -> None:
        self._find, self._limit, self._hang_seconds, self._give_up = find, limit, hang_seconds, give_up
        self._credits = asyncio.Semaphore(credits)
        self._connecting = asyncio.Lock()
        self._channel: Channel | None = None
        self._numbers = itertools.count(1)
        self._waiting: dict[int, asyncio.Future[tuple[list[Array], float]]] = {}
        self._begun: set[int] = set()
        self._sign = 0.0
        self._watching: asyncio.Task[None] | None = None
        self.hangs = 0
        """How often the stage was given up."""

    async def run(self, tensors: Sequence[Array]) -> tuple[list[Array], float]:
        """Run a request; return outputs and the seconds of computing.

        If the caller is cancelled, so is the request; the caller then waits until the stage has done with it.

        Raises
        ------
        StageLostError
            The connection broke.
        ServingError, InputError
            What the stage says.
        """
        await self._credits.acquire()
        try:
            channel = await self._connected()
            number = next(self._numbers)
            answer: asyncio.Future[tuple[list[Array], float]] = asyncio.get_running_loop().create_future()
        except BaseException:
            self._credits.release()
            raise
        # The credit comes back when the stage has done with the request.
        answer.add_done_callback(lambda _: self._credits.release())
        self._waiting[number] = answer
        channel.send(Message("run", number), tensors)
        try:
            return await asyncio.shield(answer)
        except asyncio.CancelledError:
            channel.send(Message("cancel", number))
            with contextlib.suppress(asyncio.CancelledError, StageLostError, TvmSchedError):
                await asyncio.shield(answer)
            raise

    async def idle(self) -> None:
        """Wait until the stage has no request of this link."""
        while self._waiting:
            await asyncio.wait(list(self._waiting.values()))

    async def close(self) -> None:
        """Close the connection."""
        if self._watching is not None:
            self._watching.cancel()
        if self._channel is not None:
            self._channel.abort()

    async def _connected(self) -> Channel:
        """Return the connection; if there is none, look the stage up until there is one."""
        async with self._connecting:
            while self._channel is None or self._channel.closed:
                with contextlib.suppress(OSError, ServingError):
                    self._channel = await connect(await self._find(), self._receive, self._lost, self._limit)
                    self._sign = time.monotonic()
                    if self._watching is not None:
                        self._watching.cancel()
                    self._watching = asyncio.create_task(self._watch(self._channel))
                    break
                await asyncio.sleep(_PAUSE_SECONDS)
            return self._channel

    def _receive(self, channel: Channel, message: Message, tensors: list[Array]) -> None:
        self._sign = time.monotonic()
        if message.kind == "begun":
            self._begun.add(message.request)
        elif message.kind == "alive":
            self._sign -= message.seconds
        else:
            self._begun.discard(message.request)
            answer = self._waiting.pop(message.request, None)
            if answer is None or answer.done():
                return
            if message.kind == "done":
                answer.set_result((tensors, message.seconds))
            elif message.kind == "cancelled":
                answer.cancel()
            else:
                answer.set_exception(error_of(message))

    def _lost(self, channel: Channel) -> None:
        if channel is not self._channel:
            return
        waiting, self._waiting = self._waiting, {}
        for number, answer in waiting.items():
            if not answer.done():
                answer.set_exception(StageLostError(number in self._begun))
        self._begun.clear()

    async def _watch(self, channel: Channel) -> None:
        """Ask for signs of life; without one for too long, end the stage's process."""
        while not channel.closed:
            await asyncio.sleep(min(_BEAT_SECONDS, self._hang_seconds / 4))
            if time.monotonic() - self._sign > self._hang_seconds:
                self.hangs += 1
                channel.abort()
                await self._give_up()
                return
            channel.send(Message("beat"))
