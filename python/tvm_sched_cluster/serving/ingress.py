"""The actor that accepts requests. It limits how many are in the pipeline, and answers each before its deadline.

Ray starts the actor and tells where others are; requests come and go over connections (`tensor_channel`).
"""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import ray
from ray.exceptions import ActorDiedError, RayError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from tvm_sched.errors import BusyError, InputError, ServingError, TvmSchedError

from .actor_names import NAMESPACE, stage_name
from .deployment import check_inputs
from .served_generation import Generation, current_generation, store_generation
from .stage_link import StageLink, StageLostError
from .stage_nodes import node_of_stage
from .stage_worker import STATUS
from .tensor_channel import Array, Channel, Endpoint, Message, failed, tensor_bytes

_PING_SECONDS = 2.0
_CREDITS = 2
"""Requests that a stage has at once: one that it computes, and one that it has received meanwhile."""
_FATAL_RUNS = 2
"""A request is refused when this many runs of it ended their stage's process."""


@dataclass(frozen=True)
class _Deadline:
    seconds: float
    begin: float = field(default_factory=time.monotonic)

    def left(self) -> float:
        return max(self.begin + self.seconds - time.monotonic(), 0.0)


class Ingress:
    """Take requests from clients, send them through the stages, and supervise these.

    If a stage is lost, its requests go on with that stage when Ray has started it again, since stages have no side effects.

    Parameters
    ----------
    generation : Generation
        What is served, unless a rollout has stored a later one.
    """

    def __init__(self, generation: Generation) -> None:
        self.token = generation.token
        self.counts = {"answered": 0, "failed": 0, "refused": 0, "retried": 0}
        self.pipeline = _Pipeline(current_generation(generation.deployment.name) or generation, self.counts)
        self.endpoint: Endpoint | None = None
        self.opening = asyncio.Lock()
        self.requests: dict[tuple[Channel, int], asyncio.Task[None]] = {}

    @ray.method(concurrency_group=STATUS)
    async def status(self) -> dict[str, Any]:
        """Contents, counters and nodes of the deployment."""
        pipeline = self.pipeline
        return {
            "name": pipeline.deployment.name,
            "model": pipeline.manifest.model,
            "artifact": pipeline.deployment.artifact,
            "generation": pipeline.generation.number,
            "places": pipeline.deployment.places,
            "in_flight": pipeline.in_flight,
            "waiting": pipeline.waiting,
            **self.counts,
            "stages": await asyncio.gather(*(stage.status() for stage in pipeline.stages)),
        }

    @ray.method(concurrency_group=STATUS)
    async def describe(self) -> tuple[Generation, Endpoint]:
        """Return what is served, and where requests are taken."""
        async with self.opening:
            if self.endpoint is None:
                host = ray.util.get_node_ip_address()
                server = await asyncio.get_running_loop().create_server(self._channel, host, 0)
                self.endpoint = Endpoint(host, server.sockets[0].getsockname()[1], self.token)
        return self.pipeline.generation, self.endpoint

    @ray.method(concurrency_group=STATUS)
    async def switch(self, generation: Generation) -> None:
        """Send requests to another generation, whose stages are ready, and wait until the old one has none."""
        old, new = self.pipeline, _Pipeline(generation, self.counts)
        await asyncio.gather(*(stage.ping() for stage in new.stages))
        store_generation(generation)
        self.pipeline = new
        await old.end()

    def _channel(self) -> Channel:
        tensors = [(tensor.dtype, tensor.shape) for tensor in self.pipeline.manifest.inputs]
        return Channel(self._receive, self._gone, tensor_bytes(tensors), self.token)

    def _receive(self, channel: Channel, message: Message, tensors: list[Array]) -> None:
        key = channel, message.request
        if message.kind == "run":
            self.requests[key] = asyncio.ensure_future(self._serve(channel, message, tensors))
            self.requests[key].add_done_callback(lambda _: self.requests.pop(key, None))
        elif message.kind == "cancel" and key in self.requests:
            self.requests[key].cancel()

    def _gone(self, channel: Channel) -> None:
        """Cancel the requests of a client that went."""
        for (owner, _), task in list(self.requests.items()):
            if owner is channel:
                task.cancel()

    async def _serve(self, channel: Channel, message: Message, tensors: list[Array]) -> None:
        try:
            inputs = dict(zip(message.names, tensors, strict=True))
            outputs = await self.run(inputs, message.seconds or None)
        except TvmSchedError as error:
            channel.send(failed(message.request, error))
        except ValueError as error:
            channel.send(failed(message.request, InputError(str(error))))
        else:
            channel.send(Message("done", message.request), outputs)

    async def run(self, inputs: Mapping[str, Any], timeout: float | None = None) -> list[Any]:
        """Take one batch through the stages.

        Parameters
        ----------
        inputs : mapping
            All of the model's inputs by name.
        timeout : float, optional
            Seconds in all; default: the deployment's.

        Returns
        -------
        list of numpy.ndarray
            The model's outputs.

        Raises
        ------
        InputError
            The inputs are not the model's.
        BusyError
            There was no place in the pipeline.
        ServingError
            A stage failed, could not be had again, or was not done in time.
        """
        pipeline = self.pipeline
        deadline = _Deadline(pipeline.deployment.timeout if timeout is None else timeout)
        try:
            check_inputs(pipeline.manifest, inputs)
            outputs = await pipeline.answer(inputs, deadline)
        except TvmSchedError as error:
            self.counts["refused" if isinstance(error, BusyError) else "failed"] += 1
            raise
        self.counts["answered"] += 1
        return outputs


class _Pipeline:
    """The stages of a generation, and the requests in them."""

    def __init__(self, generation: Generation, counts: dict[str, int]) -> None:
        self.generation, self.counts = generation, counts
        self.deployment, self.manifest = generation.deployment, generation.manifest
        self.stages = [_Stage(generation, s) for s in range(len(self.manifest.stages))]
        self.room = asyncio.Semaphore(self.deployment.places)
        self.in_flight = self.waiting = 0
        self.leaving: set[asyncio.Task[None]] = set()
        self.idle = asyncio.Event()
        self.idle.set()

    async def answer(self, inputs: Mapping[str, Any], deadline: _Deadline) -> list[Any]:
        """Take one batch through the stages."""
        async with self._place(deadline) as calls:
            values = dict(inputs)
            for stage in self.stages:
                outputs = await self._run(stage, values, calls, deadline)
                names = [tensor.name for tensor in self.manifest.stages[stage.number].outputs]
                values.update(zip(names, outputs, strict=True))
            return [values[tensor.name] for tensor in self.manifest.outputs]

    async def end(self) -> None:
        """Wait until no request is left, then close the connections."""
        await self.idle.wait()
        await asyncio.gather(*(stage.link.close() for stage in self.stages))

    @asynccontextmanager
    async def _place(self, deadline: _Deadline) -> AsyncIterator[list[asyncio.Task[Any]]]:
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

    async def _wait_for_room(self, deadline: _Deadline) -> None:
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

    async def _run(
        self, stage: _Stage, values: Mapping[str, Any], calls: list[asyncio.Task[Any]], deadline: _Deadline
    ) -> Sequence[Array]:
        """Run a stage; if it is lost, run it again when it is back."""
        tensors = [values[tensor.name] for tensor in self.manifest.stages[stage.number].inputs]
        fatal, lost = 0, False
        for attempt in range(self.deployment.retries + 1):
            if attempt:
                self.counts["retried"] += 1
            call = asyncio.ensure_future(stage.link.run(tensors))
            calls.append(call)
            try:
                done, _ = await asyncio.wait([call], timeout=deadline.left())
                if not done:
                    why = await stage.why()
                    if lost:
                        raise ServingError(f"{stage} was lost and was not there again in {deadline.seconds:g} s{why}")
                    raise ServingError(f"{stage} was not done in {deadline.seconds:g} s{why}")
                calls.remove(call)
                outputs, _ = call.result()
                return outputs
            except StageLostError as error:
                lost = True
                fatal += error.running
                if fatal >= _FATAL_RUNS:
                    raise ServingError(
                        f"{stage}: its process ended {fatal} times while it computed this request, which is not sent again"
                    ) from None
            except _GoneError as error:
                raise ServingError(f"{stage} cannot be started again: {error}") from None
            except TvmSchedError as error:
                if not done:
                    raise
                kind = InputError if isinstance(error, InputError) else ServingError
                raise kind(f"{stage}: {error}") from None
        raise ServingError(f"{stage} was lost {self.deployment.retries + 1} times while it had this request")


class _GoneError(Exception):
    """Ray will not start the stage again."""


class _Stage:
    """A stage's actor and the connection to it."""

    def __init__(self, generation: Generation, number: int) -> None:
        self.number, self.generation = number, generation
        self.deployment, self.manifest = generation.deployment, generation.manifest
        self.actor = ray.get_actor(stage_name(self.deployment.name, number, generation.number), NAMESPACE)
        tensors = [(tensor.dtype, tensor.shape) for tensor in self.manifest.stages[number].outputs]
        self.link = StageLink(
            self._find, _CREDITS, tensor_bytes(tensors), self.deployment.hang_timeout, self._end_process
        )
        self.last: dict[str, Any] = {}

    def __str__(self) -> str:
        return f"deployment {self.deployment.name!r}, stage {self.number} on {self.manifest.stages[self.number].device}"

    async def ping(self) -> dict[str, Any]:
        """Return what the actor says of itself."""
        reference = self.actor.status.remote()
        try:
            self.last = dict(await asyncio.wait_for(asyncio.wrap_future(reference.future()), _PING_SECONDS))
        except asyncio.TimeoutError:
            ray.cancel(reference)
            raise
        return self.last

    async def status(self) -> dict[str, Any]:
        """Return the stage's device, state and counts."""
        entry = {
            "stage": self.number,
            "device": self.manifest.stages[self.number].device,
            "resources": self.deployment.stages[self.number].resources,
            "hangs": self.link.hangs,
        }
        try:
            return {**entry, "state": "ready", **await self.ping()}
        except asyncio.TimeoutError:
            state, cause = "not answering", ""
        except RayError as error:
            state, cause = "dead" if isinstance(error, ActorDiedError) else "restarting", _first_line(error)
        return {**entry, "state": state, "cause": (await self.why()).removeprefix(": ") or cause}

    async def why(self) -> str:
        """Say why a stage does not answer if it has no node; empty if it has one."""
        name, generation = self.deployment.name, self.generation.number
        if await asyncio.to_thread(node_of_stage, name, self.number, generation):
            return ""
        return f": no node that is free has {self.deployment.stages[self.number]}"

    async def _find(self) -> Endpoint:
        try:
            host, port = (await self.ping())["address"]
        except ActorDiedError as error:
            raise _GoneError(_first_line(error)) from None
        except (RayError, asyncio.TimeoutError) as error:
            raise ServingError(_first_line(error)) from None
        return Endpoint(host, port, self.generation.token)

    async def _end_process(self) -> None:
        """End the process of a stage that hangs; Ray starts another one."""
        if not self.last:
            return
        here = NodeAffinitySchedulingStrategy(self.last["node"], soft=False)
        task = ray.remote(num_cpus=0, max_retries=0, scheduling_strategy=here)(_kill)
        task.remote(self.last["process"])


def _kill(process: int) -> None:
    os.kill(process, signal.SIGKILL)


def _first_line(error: BaseException) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[0] if lines else type(error).__name__
