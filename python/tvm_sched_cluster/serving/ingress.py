"""The actor that accepts requests of Python clients, starts rollouts, and tells gateways where stages are.

Ray starts the actor and tells where others are; requests come and go over connections (`tensor_channel`).
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import time
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass
from typing import Any

import msgspec
import numpy as np
import ray
from msgspec.structs import replace
from ray.exceptions import ActorDiedError, RayError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from tvm_sched_runtime.errors import BusyError, InputError, ServingError, TvmSchedError

from .actor_names import NAMESPACE, stage_name
from .deployment import Generation, check_inputs
from .deployment_actors import abandoned_generations, end_generation, end_generations_before
from .followed_deployment import RECONNECTION_SECONDS
from .pipeline_entry import Deadline, PipelineEntry, remote_stages
from .served_generation import current_generation, store_generation
from .stage_link import StageGoneError
from .stage_nodes import node_of_process
from .stage_worker import STATUS
from .tensor_channel import Array, Channel, Endpoint, Message, failed, tensor_bytes

LOG = logging.getLogger("tvm_sched.serving")
_PING_SECONDS = 2.0
ABANDONED_SECONDS = 30.0
"""Between looks for stages that nobody will hand over."""
_MISSING_SECONDS = 1.0
"""Until Ray is asked again for the stages of a generation that it did not have."""


@dataclass
class Gateway:
    """A gateway that follows the deployment."""

    name: str
    """Its host and process."""
    generation: int
    """The earliest of which it may have requests."""


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
        self.directories: dict[int, RayDirectory] = {}
        now = current_generation(generation.deployment.name) or generation
        self._serve(now, RayDirectory(now))
        self.endpoint: Endpoint | None = None
        self.opening = asyncio.Lock()
        self.calls: dict[asyncio.Task[None], tuple[Channel, int | None]] = {}
        """What is done for clients and gateways: for whom, and the number of a request. Clients choose the numbers."""
        self.followers: dict[Channel, Gateway] = {}
        self.retiring: asyncio.Task[None] | None = None
        """Ends the generations before this one."""
        self.past: list[PipelineEntry] = []
        """Of earlier generations, which may have requests of clients."""
        self.switched = asyncio.Condition()
        self.arriving: list[int] = []
        """The generations that rollouts hand over at the moment."""
        self.missing: dict[int, float] = {}
        """Generations whose stages Ray does not have, and when it may be asked again."""
        self.caretaker = asyncio.create_task(self._end_abandoned())
        self.complete = asyncio.Event()
        """Set when every gateway that is there has had the time to find this ingress."""
        if not started_again():
            self.complete.set()
        else:
            asyncio.get_running_loop().call_later(RECONNECTION_SECONDS, self.complete.set)
            if now.number > 1:  # the earlier ingress may not have ended the generations before
                self.retiring = asyncio.create_task(self._retire(now, None, None))

    def _serve(self, generation: Generation, directory: RayDirectory) -> None:
        self.generation, self.directories[generation.number] = generation, directory
        self.stages = remote_stages(generation, directory)
        self.entry = PipelineEntry(generation.deployment, generation.manifest, self.stages, self.counts)

    @ray.method(concurrency_group=STATUS)
    async def status(self) -> dict[str, Any]:
        """Contents, counters and nodes of the deployment."""
        entry, directory = self.entry, self.directories[self.generation.number]
        links = [link for stage in self.stages for link in stage.links]
        processes = await asyncio.gather(*(directory.status(*each) for each in entry.deployment.processes))
        return {
            "name": entry.deployment.name,
            "model": entry.manifest.model,
            "artifact": entry.deployment.artifact,
            "generation": self.generation.number,
            "places": entry.deployment.places,
            "in_flight": entry.in_flight,
            "waiting": entry.waiting,
            **self.counts,
            "gateways": len(self.followers),
            "switching": [each.name for each in self.followers.values() if each.generation < self.generation.number],
            "process": os.getpid(),
            "stages": [{**told, "hangs": link.hangs} for told, link in zip(processes, links, strict=True)],
        }

    @ray.method(concurrency_group=STATUS)
    async def describe(self) -> tuple[Generation, Endpoint]:
        """Return what is served, and where requests are taken."""
        async with self.opening:
            if self.endpoint is None:
                host = ray.util.get_node_ip_address()
                self.server = await asyncio.get_running_loop().create_server(self._channel, host, 0)
                self.endpoint = Endpoint(host, self.server.sockets[0].getsockname()[1], self.token)
        return self.generation, self.endpoint

    @ray.method(concurrency_group=STATUS)
    async def switch(self, generation: Generation, seconds: float | None = None) -> list[str]:
        """Send requests to another generation, whose stages are ready; end the earlier ones when they have no request.

        Wait for their end, at most some seconds; it comes also if nobody waits. Called again for the same generation, this
        only waits.

        Returns
        -------
        list of str
            Why the earlier generations have not ended; empty if they have.
        """
        if generation.number > self.generation.number:
            directory = RayDirectory(generation)
            self.arriving.append(generation.number)
            try:
                await asyncio.gather(*(directory.ping(*each) for each in generation.deployment.processes))
            finally:
                self.arriving.remove(generation.number)
        if generation.number > self.generation.number:  # no other rollout was faster
            store_generation(generation)
            old = self.entry
            self.past.append(old)
            self._serve(generation, directory)
            for gateway in self.followers:
                gateway.send(*self._serves(0))
            self.retiring = asyncio.create_task(self._retire(generation, old, self.retiring))
        retiring = self.retiring
        if retiring is None:
            return []
        await asyncio.wait([retiring], timeout=seconds)
        if retiring.done():
            retiring.result()
            return []
        return self._reasons(generation.number)

    def _reasons(self, number: int) -> list[str]:
        """Say why the generations before one have not ended."""
        gateways = [each.name for each in self.followers.values() if each.generation < number]
        found = [f"the gateway on {name} may have requests of them" for name in gateways]
        if not all(entry.idle.is_set() for entry in self.past):
            found.append("clients in Python have requests of them")
        if not self.complete.is_set():
            found.append("the ingress was started again, and gateways may not have found it yet")
        return found or ["Ray is ending them"]

    async def _retire(
        self, generation: Generation, old: PipelineEntry | None, before: asyncio.Task[None] | None
    ) -> None:
        """End the generations before this one when nobody has requests of them."""
        if before is not None:
            await asyncio.wait([before])
        if old is not None:
            await old.end()
            self.past.remove(old)
        await self.complete.wait()
        number = generation.number
        async with self.switched:
            await self.switched.wait_for(lambda: all(each.generation >= number for each in self.followers.values()))
        self.directories = {key: directory for key, directory in self.directories.items() if key >= number}
        await asyncio.to_thread(end_generations_before, generation.deployment.name, number)

    async def _end_abandoned(self) -> None:
        """End the stages of rollouts whose command ended before it handed them over; nobody else would."""
        name = self.generation.deployment.name
        while True:
            try:
                for number in await asyncio.to_thread(abandoned_generations, name, self.generation.number):
                    if number > self.generation.number and number not in self.arriving:
                        LOG.warning("deployment %s: generation %d was abandoned by its rollout and ends", name, number)
                        await asyncio.to_thread(end_generation, name, number)
            except Exception as error:  # what Ray lists differs between its versions; the next look may succeed
                what = type(error).__name__
                LOG.warning(
                    "deployment %s: abandoned stages were not looked for: %s: %s", name, what, _first_line(error)
                )
            await asyncio.sleep(ABANDONED_SECONDS)

    def _serves(self, request: int) -> tuple[Message, list[Array]]:
        return Message("serves", request), [np.frombuffer(msgspec.msgpack.encode(self.generation), np.uint8)]

    def _channel(self) -> Channel:
        tensors = [(tensor.dtype, tensor.shape) for tensor in self.entry.manifest.inputs]
        return Channel(self._receive, self._gone, tensor_bytes(tensors), self.token)

    def _receive(self, channel: Channel, message: Message, tensors: list[Array]) -> None:
        if message.kind == "run":
            self._begin(channel, message.request, self._run(channel, message, tensors))
        elif message.kind == "cancel":
            self._cancel(lambda owner, number: (owner, number) == (channel, message.request))
        elif message.kind == "follow":
            # A gateway that lost an earlier ingress may still have requests of an earlier generation.
            number, _, name = message.text.partition(" ")
            self.followers[channel] = Gateway(name, int(number) or self.generation.number)
            channel.send(*self._serves(message.request))
        elif message.kind == "switched":
            self._begin(channel, None, self._switched(channel, message.request))
        elif message.kind in ("find", "end", "why"):
            self._begin(channel, None, self._tell(channel, message))

    def _begin(self, channel: Channel, number: int | None, work: Coroutine[Any, Any, None]) -> None:
        call = asyncio.get_running_loop().create_task(work)
        self.calls[call] = channel, number
        call.add_done_callback(self.calls.pop)

    def _cancel(self, which: Callable[[Channel, int | None], bool]) -> None:
        for call in [call for call, of in self.calls.items() if which(*of)]:
            call.cancel()

    async def _switched(self, channel: Channel, generation: int | None) -> None:
        """Note that a gateway has switched; None: that it has gone."""
        async with self.switched:
            if generation is None:
                self.followers.pop(channel, None)
            elif channel in self.followers:
                found = self.followers[channel]
                found.generation = max(found.generation, generation)
            self.switched.notify_all()

    async def _tell(self, channel: Channel, message: Message) -> None:
        """Answer what a gateway asks about a process."""
        try:
            generation, stage, replica, *where = message.text.split()
            place = int(stage), int(replica)
            directory = self._directory(int(generation))
            if message.kind == "find":
                found = await directory.find(*place)
                text = f"{found.host} {found.port}"
            elif message.kind == "end":
                text = ""
                await directory.end(*place, Endpoint(where[0], int(where[1]), self.token))
            else:
                text = await directory.why(place[0])
        except StageGoneError as error:
            channel.send(Message("gone", message.request, str(error)))
        except (TvmSchedError, LookupError, ValueError) as error:
            channel.send(failed(message.request, ServingError(str(error))))
        else:
            channel.send(Message("told", message.request, text))

    def _directory(self, number: int) -> RayDirectory:
        """Return the directory of a generation, also of an earlier one whose stages an earlier ingress knew.

        Raises
        ------
        ServingError
            Its stages are not there. A gateway asks again until it has switched.
        """
        found, current, now = self.directories.get(number), self.generation.number, time.monotonic()
        if found is None and 1 <= number < current and now >= self.missing.get(number, now):
            try:  # a rollout changes nothing but the artifact
                found = self.directories[number] = RayDirectory(replace(self.generation, number=number))
            except (LookupError, ValueError):
                self.missing[number] = now + _MISSING_SECONDS
        if found is None:
            raise ServingError(f"generation {number} is not served; generation {current} is")
        return found

    def _gone(self, channel: Channel) -> None:
        """Cancel the requests of a client that went."""
        self._cancel(lambda owner, _: owner is channel)
        if channel in self.followers:
            self._begin(channel, None, self._switched(channel, None))

    async def _run(self, channel: Channel, message: Message, tensors: list[Array]) -> None:
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
        entry = self.entry
        deadline = Deadline(entry.deployment.timeout if timeout is None else timeout)
        try:
            check_inputs(entry.manifest, inputs)
            outputs = await entry.answer(inputs, deadline)
        except TvmSchedError as error:
            self.counts["refused" if isinstance(error, BusyError) else "failed"] += 1
            raise
        self.counts["answered"] += 1
        return outputs


def started_again() -> bool:
    """Return whether Ray has started this actor again."""
    return bool(ray.get_runtime_context().was_current_actor_reconstructed)


class RayDirectory:
    """Finds the processes of a generation's stages by their actors."""

    def __init__(self, generation: Generation) -> None:
        self.generation = generation
        self.deployment, self.manifest = generation.deployment, generation.manifest
        self.actors = {
            (stage, replica): ray.get_actor(
                stage_name(self.deployment.name, stage, generation.number, replica), NAMESPACE
            )
            for stage, replica in self.deployment.processes
        }
        self.last: dict[tuple[int, int], dict[str, Any]] = {}
        self.silent: dict[tuple[int, int], float] = {}
        """Since when a process does not answer."""

    async def ping(self, stage: int, replica: int) -> dict[str, Any]:
        """Return what an actor says of itself."""
        reference = self.actors[stage, replica].status.remote()
        try:
            told = dict(await asyncio.wait_for(asyncio.wrap_future(reference.future()), _PING_SECONDS))
        except asyncio.TimeoutError:
            ray.cancel(reference)
            raise
        self.last[stage, replica] = told
        self.silent.pop((stage, replica), None)
        return told

    async def status(self, stage: int, replica: int) -> dict[str, Any]:
        """Return a process's device, state and counts."""
        entry = {
            "stage": stage,
            "replica": replica,
            "device": self.manifest.stages[stage].device,
            "resources": self.deployment.stages[stage].resources,
        }
        try:
            return {**entry, "state": "ready", **await self.ping(stage, replica)}
        except asyncio.TimeoutError:
            state, cause = "not answering", ""
        except RayError as error:
            state, cause = "dead" if isinstance(error, ActorDiedError) else "restarting", _first_line(error)
        return {**entry, "state": state, "cause": (await self._missing(stage, replica)).removeprefix(": ") or cause}

    async def why(self, stage: int) -> str:
        """Say why a stage does not answer; see `StageDirectory`."""
        for number, replica in self.deployment.processes:
            if number == stage and (missing := await self._missing(stage, replica)):
                return missing
        return ""

    async def _missing(self, stage: int, replica: int) -> str:
        process = self.deployment.processes.index((stage, replica))
        if await asyncio.to_thread(node_of_process, self.deployment.name, process, self.generation.number):
            return ""
        return f": no node that is free has {self.deployment.stages[stage]}"

    async def find(self, stage: int, replica: int) -> Endpoint:
        """Return where a process listens; see `StageDirectory`."""
        try:
            host, port = (await self.ping(stage, replica))["address"]
        except ActorDiedError as error:
            raise StageGoneError(_first_line(error)) from None
        except (RayError, asyncio.TimeoutError) as error:
            await self._end_if_silent(stage, replica)
            raise ServingError(_first_line(error)) from None
        return Endpoint(host, port, self.generation.stage_token(stage))

    async def end(self, stage: int, replica: int, endpoint: Endpoint) -> None:
        """End a process that hangs; see `StageDirectory`."""
        told = self.last.get((stage, replica))
        if told is not None and told["address"] == [endpoint.host, endpoint.port]:
            kill_there(told["node"], told["process"])

    async def _end_if_silent(self, stage: int, replica: int) -> None:
        """End a process that Ray takes for alive and that has not answered for too long, as one that was stopped."""
        now = time.monotonic()
        if now - self.silent.setdefault((stage, replica), now) < self.deployment.hang_timeout:
            return
        del self.silent[stage, replica]
        known = await asyncio.to_thread(ray._private.state.actors, self.actors[stage, replica]._actor_id.hex())
        if known.get("State") == "ALIVE" and known["Pid"]:
            kill_there(known["Address"]["NodeID"], known["Pid"])


def kill_there(node: str, process: int) -> None:
    """End a process on a node; Ray starts its actor again."""
    here = NodeAffinitySchedulingStrategy(node, soft=False)
    ray.remote(num_cpus=0, max_retries=0, scheduling_strategy=here)(_kill).remote(process)


def _kill(process: int) -> None:
    os.kill(process, signal.SIGKILL)


def _first_line(error: BaseException) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[0] if lines else type(error).__name__
