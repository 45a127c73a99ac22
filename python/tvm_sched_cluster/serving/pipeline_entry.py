"""Where requests enter a pipeline: places, the way through the stages, and what is sent again when a stage is lost.

The ingress has one, and so has every gateway: each with connections of its own to the stages.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Protocol

from tvm_sched_runtime.errors import BusyError, FatalRequestError, InputError, ServingError, TvmSchedError
from tvm_sched_runtime.pipeline import Manifest

from .deployment import Deployment, Generation
from .stage_link import StageGoneError, StageLink, StageLostError, StageReplicas
from .tensor_channel import Array, Endpoint, tensor_bytes

_CREDITS = 2
"""Requests that a process has at once from here: one that it computes, and one that it has received meanwhile."""
_FATAL_RUNS = 2
"""A request is refused when this many runs of it ended their stage's process."""


@dataclass(frozen=True)
class Deadline:
    """The time that a request may take."""

    seconds: float
    begin: float = field(default_factory=time.monotonic)

    def left(self) -> float | None:
        """Return the seconds that remain; None if they are not counted."""
        return None if math.isinf(self.seconds) else max(self.begin + self.seconds - time.monotonic(), 0.0)


class StageDirectory(Protocol):
    """Tells where the processes of a generation's stages are, and ends those that hang."""

    async def find(self, stage: int, replica: int) -> Endpoint:
        """Return where a process listens.

        Raises
        ------
        ServingError
            It is not there at the moment.
        StageGoneError
            It will not be there again.
        """

    async def end(self, stage: int, replica: int, endpoint: Endpoint) -> None:
        """End a process that hangs, if it is still the one that listens there; Ray starts another one."""

    async def why(self, stage: int) -> str:
        """Say why a stage does not answer, if it has no node; empty if it has one."""


class Stage(Protocol):
    """What runs a stage's requests."""

    async def run(self, tensors: Sequence[Array]) -> tuple[list[Array], float]:
        """Return outputs and seconds of computing."""

    async def why(self) -> str:
        """Say why the stage does not answer."""

    def retire(self) -> None:
        """Note that another generation has taken over."""

    async def close(self) -> None:
        """End the connections."""


class RemoteStage(StageReplicas):
    """A stage whose processes a directory finds."""

    def __init__(self, generation: Generation, number: int, directory: StageDirectory) -> None:
        deployment, manifest = generation.deployment, generation.manifest
        limit = tensor_bytes([(tensor.dtype, tensor.shape) for tensor in manifest.stages[number].outputs])
        super().__init__(
            [
                StageLink(
                    partial(directory.find, number, replica), _CREDITS, limit, deployment.hang_timeout,
                    partial(directory.end, number, replica),
                )
                for replica in range(deployment.replicas_of(number))
            ]
        )  # fmt: skip
        self.why = partial(directory.why, number)


def remote_stages(generation: Generation, directory: StageDirectory) -> list[RemoteStage]:
    """Return all stages of a generation."""
    return [RemoteStage(generation, number, directory) for number in range(len(generation.manifest.stages))]


class PipelineEntry:
    """Takes requests through the stages of a generation.

    Parameters
    ----------
    deployment : Deployment
    manifest : Manifest
    stages : sequence of Stage
    counts : dict
        Of requests that were sent again: ``retried``.
    """

    def __init__(
        self, deployment: Deployment, manifest: Manifest, stages: Sequence[Stage], counts: dict[str, int]
    ) -> None:
        self.deployment, self.manifest, self.stages, self.counts = deployment, manifest, stages, counts
        self.room = asyncio.Semaphore(deployment.places)
        self.in_flight = self.waiting = 0
        self.leaving: set[asyncio.Task[None]] = set()
        self.idle = asyncio.Event()
        self.idle.set()

    async def answer(self, inputs: Mapping[str, Any], deadline: Deadline) -> list[Any]:
        """Take one batch through the stages.

        Raises
        ------
        BusyError
            There was no place in the pipeline.
        FatalRequestError
            The request ended the process of its stage more than once.
        InputError, ServingError
            A stage failed, could not be had again, or was not done in time.
        StageRetiredError
            A stage was lost, and another generation has taken over.
        """
        async with self._place(deadline) as calls:
            values = dict(inputs)
            for number in range(len(self.stages)):
                outputs = await self._run(number, values, calls, deadline)
                names = [tensor.name for tensor in self.manifest.stages[number].outputs]
                values.update(zip(names, outputs, strict=True))
            return [values[tensor.name] for tensor in self.manifest.outputs]

    def retire(self) -> None:
        """Note that another generation has taken over; requests that are here go on, unless their stage is lost."""
        for stage in self.stages:
            stage.retire()

    async def end(self) -> None:
        """Wait until no request is left, then close the connections."""
        await self.idle.wait()
        await self.close()

    async def close(self) -> None:
        """Close the connections."""
        await asyncio.gather(*(stage.close() for stage in self.stages))

    @asynccontextmanager
    async def _place(self, deadline: Deadline) -> AsyncIterator[list[asyncio.Task[Any]]]:
        """Hold a place in the pipeline until no stage works on the request any more; yields the list of its calls."""
        self.idle.clear()
        try:
            if self.room.locked():
                await self._wait_for_room(deadline)
            else:
                await self.room.acquire()  # without a pause, in which others could come in
        except BaseException:
            self._settle()
            raise
        self.in_flight += 1
        calls: list[asyncio.Task[Any]] = []
        try:
            yield calls
        finally:
            task = asyncio.ensure_future(self._leave(calls))
            self.leaving.add(task)
            task.add_done_callback(self._left)

    async def _wait_for_room(self, deadline: Deadline) -> None:
        name, places = self.deployment.name, self.deployment.places
        if self.waiting >= self.deployment.max_waiting:
            raise BusyError(f"deployment {name!r} is busy: {places} requests are in it, {self.waiting} wait")
        self.waiting += 1
        try:
            await asyncio.wait_for(self.room.acquire(), deadline.left())
        except asyncio.TimeoutError:
            raise BusyError(
                f"deployment {name!r} is busy: no place among {places} was free in {deadline.seconds:g} s"
            ) from None
        finally:
            self.waiting -= 1

    async def _leave(self, calls: list[asyncio.Task[Any]]) -> None:
        """Cancel what is left of a request, and wait until no stage works on it."""
        for call in calls:
            call.cancel()
        await asyncio.gather(*calls, return_exceptions=True)

    def _left(self, task: asyncio.Task[None]) -> None:
        self.leaving.discard(task)
        self.in_flight -= 1
        self.room.release()
        self._settle()

    def _settle(self) -> None:
        if not self.in_flight and not self.waiting:
            self.idle.set()

    def _name(self, number: int) -> str:
        return f"deployment {self.deployment.name!r}, stage {number} on {self.manifest.stages[number].device}"

    async def _run(
        self, number: int, values: Mapping[str, Any], calls: list[asyncio.Task[Any]], deadline: Deadline
    ) -> Sequence[Array]:
        """Run a stage; if it is lost, run it again where it is back."""
        stage, what = self.stages[number], self._name(number)
        tensors = [values[tensor.name] for tensor in self.manifest.stages[number].inputs]
        fatal, lost = 0, False
        for attempt in range(self.deployment.retries + 1):
            if attempt:
                self.counts["retried"] += 1
            call = asyncio.ensure_future(stage.run(tensors))
            calls.append(call)
            try:
                done, _ = await asyncio.wait([call], timeout=deadline.left())
                if not done:
                    why = await stage.why()
                    if lost:
                        raise ServingError(f"{what} was lost and was not there again in {deadline.seconds:g} s{why}")
                    raise ServingError(f"{what} was not done in {deadline.seconds:g} s{why}")
                calls.remove(call)
                outputs, _ = call.result()
                return outputs
            except StageLostError as error:
                lost = True
                fatal += error.running
                if fatal >= _FATAL_RUNS:
                    raise FatalRequestError(
                        f"{what}: its process ended {fatal} times while it computed this request, which is not sent again"
                    ) from None
            except StageGoneError as error:
                raise ServingError(f"{what} cannot be started again: {error}") from None
            except TvmSchedError as error:
                if not done:
                    raise
                kind = InputError if isinstance(error, InputError) else ServingError
                raise kind(f"{what}: {error}") from None
        raise ServingError(f"{what} was lost {self.deployment.retries + 1} times while it had this request")
