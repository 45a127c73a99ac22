"""The connection to a process of a stage: requests with credits, signs of life, a new connection when the stage is back."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import time
from collections.abc import Awaitable, Callable, Sequence

from tvm_sched_runtime.errors import ServingError, TvmSchedError

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


class StageGoneError(Exception):
    """A stage's process will not be started again."""


class StageRetiredError(Exception):
    """The stage is lost, and another generation has taken over."""


class StageLink:
    """Sends requests to a process of a stage over one connection, which is made again when it breaks.

    Parameters
    ----------
    find : callable
        Looks the process up; raises `ServingError` if it is not there at the moment, and `StageGoneError`.
    credits : int
        Requests that the process may have at once.
    limit : int
        Most bytes of a request's outputs.
    hang_seconds : float
        A process that sends no sign of life, or computes one request, for longer than this is given up.
    give_up : callable
        Ends the process that listens there, so that it is started again.
    """

    def __init__(
        self,
        find: Callable[[], Awaitable[Endpoint]],
        credits: int,
        limit: int,
        hang_seconds: float,
        give_up: Callable[[Endpoint], Awaitable[None]],
    ) -> None:
        self._find, self._limit, self._hang_seconds, self._give_up = find, limit, hang_seconds, give_up
        self._credits = credits
        self._channel: Channel | None = None
        self._numbers = itertools.count(1)
        self._waiting: dict[int, asyncio.Future[tuple[list[Array], float]]] = {}
        self._begun: set[int] = set()
        self._sign = 0.0
        self._closing = asyncio.Event()
        self._keeper: asyncio.Task[None] | None = None
        self.gone: StageGoneError | None = None
        """Why the process will not come back."""
        self.hangs = 0
        """How often the process was given up."""
        self.changed: Callable[[], None] = lambda: None
        """Called when the link may take a request that it did not take before, or is lost."""

    def open(self) -> None:
        """Begin to keep a connection."""
        if self._keeper is None:
            self._keeper = asyncio.get_running_loop().create_task(self._keep())

    @property
    def connected(self) -> bool:
        """Whether there is a connection."""
        return self._channel is not None and not self._channel.closed

    @property
    def outstanding(self) -> int:
        """Requests that the process has from here."""
        return len(self._waiting)

    @property
    def free(self) -> bool:
        """Whether the process may get a request."""
        return self.connected and len(self._waiting) < self._credits

    def send(self, tensors: Sequence[Array]) -> tuple[int, asyncio.Future[tuple[list[Array], float]]]:
        """Send a request, for which the link must be free; return its number, and what it will give."""
        assert self._channel is not None
        number = next(self._numbers)
        answer: asyncio.Future[tuple[list[Array], float]] = asyncio.get_running_loop().create_future()
        self._waiting[number] = answer
        self._channel.send(Message("run", number), tensors)
        return number, answer

    def cancel(self, number: int) -> None:
        """Tell the process that nobody waits for a request any more."""
        if self._channel is not None:
            self._channel.send(Message("cancel", number))

    async def close(self) -> None:
        """Close the connection, and make no other."""
        self._closing.set()
        if self._keeper is not None:
            self._keeper.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._keeper
        if self._channel is not None:
            self._channel.abort()

    async def _keep(self) -> None:
        """Keep a connection; look the process up whenever there is none."""
        while not self._closing.is_set():  # a cancellation may be lost in the library
            try:
                endpoint = await self._find()
                self._channel = await connect(endpoint, self._receive, self._lost, self._limit)
            except (OSError, ServingError):
                await asyncio.sleep(_PAUSE_SECONDS)
                continue
            except StageGoneError as error:
                self.gone = error
                self.changed()
                return
            if self._closing.is_set():
                return
            self._sign = time.monotonic()
            self.changed()
            await self._watch(self._channel, endpoint)

    def _receive(self, channel: Channel, message: Message, tensors: list[Array]) -> None:
        self._sign = time.monotonic()
        if message.kind == "begun":
            self._begun.add(message.request)
        elif message.kind == "alive":
            self._sign -= message.seconds
        else:
            self._begun.discard(message.request)
            answer = self._waiting.pop(message.request, None)
            if answer is None:
                return
            self.changed()
            if answer.done():
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
        self.changed()

    async def _watch(self, channel: Channel, endpoint: Endpoint) -> None:
        """Ask for signs of life until the connection is closed; without one for too long, end the process."""
        ended = asyncio.ensure_future(channel.ended.wait())
        try:
            while True:
                await asyncio.wait([ended], timeout=min(_BEAT_SECONDS, self._hang_seconds / 4))
                if channel.closed:
                    return
                if time.monotonic() - self._sign > self._hang_seconds:
                    self.hangs += 1
                    channel.abort()
                    await self._give_up(endpoint)
                    return
                channel.send(Message("beat"))
        finally:
            ended.cancel()


class StageReplicas:
    """The processes of a stage. A request goes to the one with the fewest, as soon as one may have another.

    Parameters
    ----------
    links : sequence of StageLink
        They are opened at the first request.
    """

    def __init__(self, links: Sequence[StageLink]) -> None:
        self.links = links
        self.retired = False
        self._turn = asyncio.Lock()
        self._changed = asyncio.Event()
        for link in links:
            link.changed = self._changed.set

    async def run(self, tensors: Sequence[Array]) -> tuple[list[Array], float]:
        """Run a request; return outputs and the seconds of computing.

        If the caller is cancelled, so is the request; the caller then waits until the process has done with it.

        Raises
        ------
        StageLostError
            The connection broke.
        StageRetiredError
            There is none, and another generation has taken over.
        StageGoneError
            No process will be there again.
        ServingError, InputError
            What the stage says.
        """
        async with self._turn:  # those who wait are served in their order
            link = await self._choose()
            number, answer = link.send(tensors)
        try:
            return await asyncio.shield(answer)
        except asyncio.CancelledError:
            link.cancel(number)
            with contextlib.suppress(asyncio.CancelledError, StageLostError, TvmSchedError):
                await asyncio.shield(answer)
            raise

    def open(self) -> None:
        """Begin to keep the connections."""
        for link in self.links:
            link.open()

    def retire(self) -> None:
        """Note that another generation has taken over: a process that is lost will not come back."""
        self.retired = True
        self._changed.set()

    async def idle(self) -> None:
        """Wait until no process has a request from here."""
        while waiting := [answer for link in self.links for answer in link._waiting.values()]:
            await asyncio.wait(waiting)

    async def close(self) -> None:
        """Close the connections."""
        await asyncio.gather(*(link.close() for link in self.links))

    async def _choose(self) -> StageLink:
        self.open()
        while True:
            free = [link for link in self.links if link.free]
            if free:
                return min(free, key=lambda link: link.outstanding)
            if self.retired and not any(link.connected for link in self.links):
                raise StageRetiredError
            gone = [link.gone for link in self.links if link.gone is not None]
            if gone and len(gone) == len(self.links):
                raise gone[0]
            self._changed.clear()
            await self._changed.wait()
