"""A deployment as a gateway follows it: what it serves, and where its stages are, told by its ingress.

If the ingress cannot be reached, the gateway goes on with what it knows, and looks for the ingress again.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import os
import socket
from collections.abc import Awaitable, Callable

import msgspec

from tvm_sched_runtime.errors import ServingError, TvmSchedError

from .deployment import Generation
from .stage_link import StageGoneError
from .tensor_channel import Array, Channel, Endpoint, Message, connect, error_of

LOG = logging.getLogger("tvm_sched.serve")
_GENERATION_BYTES = 256 << 20
_ANSWER_SECONDS = 10.0
PAUSES = (0.1, 0.5, 2.0, 10.0, 30.0)
"""Seconds between attempts to find the ingress (each starts a process), or to switch; the last from then on."""
RECONNECTION_SECONDS = 2 * PAUSES[-1]
"""In which a gateway has found an ingress that was started again: the longest pause, and as much for the look-up."""


class FollowedDeployment:
    """A connection to the ingress of a deployment, which is made again when it breaks.

    Parameters
    ----------
    name : str
    look_up : callable
        Returns where the ingress listens; raises a `TvmSchedError` if nobody knows.
    """

    def __init__(self, name: str, look_up: Callable[[], Awaitable[Endpoint]]) -> None:
        self.name, self._look_up = name, look_up
        self.generation: Generation | None = None
        self.changed: Callable[[], None] = lambda: None
        """Called when another generation is served."""
        self._switched = 0
        """The earliest generation of which there may be requests here; 0: none was followed yet."""
        self._channel: Channel | None = None
        self._numbers = itertools.count(1)
        self._waiting: dict[int, asyncio.Future[Message]] = {}
        self._keeper: asyncio.Task[None] | None = None

    async def open(self) -> Generation:
        """Connect, unless it was done before, and return what is served.

        Raises
        ------
        InputError, ServingError
            There is no such deployment, or it does not answer.
        """
        if self._keeper is None:
            endpoint = await self._look_up()
            try:
                await self._follow(endpoint)
            except OSError as error:
                raise ServingError(f"deployment {self.name!r}: its ingress cannot be reached ({error})") from None
            self._keeper = asyncio.get_running_loop().create_task(self._keep(endpoint))
        assert self.generation is not None
        return self.generation

    def switched(self, generation: int) -> None:
        """Tell the ingress that no request is left of generations before this one."""
        self._switched = max(self._switched, generation)
        if self._channel is not None:
            self._channel.send(Message("switched", generation))

    @property
    def connected(self) -> bool:
        """Whether the ingress is there."""
        return self._channel is not None and not self._channel.closed

    async def ask(self, kind: str, text: str = "") -> Message:
        """Return the ingress's answer.

        Raises
        ------
        ServingError
            It does not answer, or answers with an error.
        """
        channel = self._channel
        if channel is None or channel.closed:
            raise ServingError(f"deployment {self.name!r}: its ingress cannot be reached")
        number = next(self._numbers)
        answer: asyncio.Future[Message] = asyncio.get_running_loop().create_future()
        self._waiting[number] = answer
        channel.send(Message(kind, number, text))
        try:
            message = await asyncio.wait_for(answer, _ANSWER_SECONDS)
        except asyncio.TimeoutError:
            raise ServingError(f"deployment {self.name!r}: its ingress does not answer") from None
        finally:
            self._waiting.pop(number, None)
        if message.kind == "failed":
            raise error_of(message)
        return message

    async def close(self) -> None:
        """End the connection."""
        if self._keeper is not None:
            self._keeper.cancel()
        if self._channel is not None:
            self._channel.abort()

    async def _follow(self, endpoint: Endpoint) -> None:
        self._channel = await connect(endpoint, self._receive, self._lost, _GENERATION_BYTES)
        await self.ask("follow", f"{self._switched} {socket.gethostname()}, process {os.getpid()}")
        assert self.generation is not None
        self._switched = self._switched or self.generation.number

    async def _keep(self, endpoint: Endpoint) -> None:
        """Look for the ingress whenever the connection breaks."""
        while True:
            assert self._channel is not None
            await self._channel.ended.wait()
            LOG.warning("deployment %s: the connection to its ingress broke", self.name)
            for pause in itertools.chain(PAUSES, itertools.repeat(PAUSES[-1])):
                try:
                    await self._follow(endpoint)
                    break
                except (OSError, TvmSchedError) as error:
                    LOG.info("deployment %s: its ingress does not take the connection: %s", self.name, error)
                    await asyncio.sleep(pause)
                try:
                    endpoint = await self._look_up()
                except (OSError, TvmSchedError) as error:
                    LOG.warning("deployment %s: %s", self.name, error)
            LOG.info("deployment %s: connected to its ingress again", self.name)

    def _receive(self, channel: Channel, message: Message, tensors: list[Array]) -> None:
        if message.kind == "serves":
            generation = msgspec.msgpack.decode(tensors[0].tobytes(), type=Generation)
            known, self.generation = self.generation, generation
            if known not in (None, generation):
                self.changed()
        answer = self._waiting.get(message.request)
        if answer is not None and not answer.done():
            answer.set_result(message)

    def _lost(self, channel: Channel) -> None:
        for answer in self._waiting.values():
            if not answer.done():
                answer.set_exception(ServingError(f"deployment {self.name!r}: the connection to its ingress broke"))


class FollowedDirectory:
    """Finds the processes of a generation's stages by asking the ingress; see `StageDirectory`."""

    def __init__(self, followed: FollowedDeployment, generation: Generation) -> None:
        self._followed, self._generation = followed, generation
        self._known: dict[tuple[int, int], Endpoint] = {}

    async def find(self, stage: int, replica: int) -> Endpoint:
        """Return where a process listens: where it was, if the ingress cannot be reached."""
        if not self._followed.connected and (stage, replica) in self._known:
            return self._known[stage, replica]
        told = await self._followed.ask("find", f"{self._generation.number} {stage} {replica}")
        if told.kind == "gone":
            raise StageGoneError(told.text)
        host, port = told.text.split()
        self._known[stage, replica] = Endpoint(host, int(port), self._generation.stage_token(stage))
        return self._known[stage, replica]

    async def end(self, stage: int, replica: int, endpoint: Endpoint) -> None:
        """End a process that hangs."""
        try:
            where = f"{endpoint.host} {endpoint.port}"
            await self._followed.ask("end", f"{self._generation.number} {stage} {replica} {where}")
        except TvmSchedError as error:
            LOG.warning("deployment %s, stage %d hangs: %s", self._followed.name, stage, error)

    async def why(self, stage: int) -> str:
        """Say why a stage does not answer."""
        try:
            return (await self._followed.ask("why", f"{self._generation.number} {stage} 0")).text
        except TvmSchedError as error:
            return f": {error}"
