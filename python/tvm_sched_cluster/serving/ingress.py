"""The actor that accepts requests. It limits how many are in the pipeline, and answers each before its deadline."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import ray
from ray.exceptions import (
    ActorDiedError,
    ObjectLostError,
    OwnerDiedError,
    RayActorError,
    RayError,
    RayTaskError,
    WorkerCrashedError,
)

from tvm_sched.errors import BusyError, InputError, ServingError, TvmSchedError
from tvm_sched.pipeline import Manifest

from .actor_names import NAMESPACE, stage_name
from .deployment import Deployment
from .stage_nodes import node_of_stage
from .stage_worker import STATUS

_PING_SECONDS = 2.0
_PAUSE_SECONDS = 0.1
_LOST = (RayActorError, ObjectLostError, OwnerDiedError, WorkerCrashedError)
"""Errors of Ray that mean that a process, a node or an object is gone."""


@dataclass(frozen=True)
class _Deadline:
    seconds: float
    begin: float = field(default_factory=time.monotonic)

    def left(self) -> float:
        return max(self.begin + self.seconds - time.monotonic(), 0.0)


class _StageLost(Exception):
    """A stage's process or node went away while it had the request."""

    def __init__(self, stage: int, cause: BaseException) -> None:
        super().__init__(f"stage {stage}: {cause}")
        self.stage, self.cause = stage, cause


class Ingress:
    """Send requests through the stages and supervise them.

    The ingress passes references on, so tensors go directly from one stage's node to the next. If a stage is lost, its
    requests start again from the first stage, since stages have no side effects.
    """

    def __init__(self, deployment: Deployment, manifest: Manifest) -> None:
        self.deployment, self.manifest = deployment, manifest
        names = [stage_name(deployment.name, s) for s in range(len(manifest.stages))]
        self.stages = [ray.get_actor(name, NAMESPACE) for name in names]
        self.room = asyncio.Semaphore(deployment.places)
        self.in_flight = self.waiting = 0
        self.counts = {"answered": 0, "failed": 0, "refused": 0, "retried": 0}
        self.leaving: set[asyncio.Task[None]] = set()

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
        deadline = _Deadline(self.deployment.timeout if timeout is None else timeout)
        try:
            self._check(inputs)
            outputs = await self._answer(inputs, deadline)
        except TvmSchedError as error:
            self.counts["refused" if isinstance(error, BusyError) else "failed"] += 1
            raise
        self.counts["answered"] += 1
        return outputs

    @ray.method(concurrency_group=STATUS)
    async def status(self) -> dict[str, Any]:
        """Contents, counters and nodes of the deployment."""
        stages = await asyncio.gather(*(self._stage_status(s) for s in range(len(self.stages))))
        return {
            "name": self.deployment.name,
            "model": self.manifest.model,
            "artifact": self.deployment.artifact,
            "places": self.deployment.places,
            "in_flight": self.in_flight,
            "waiting": self.waiting,
            **self.counts,
            "stages": stages,
        }

    @ray.method(concurrency_group=STATUS)
    async def describe(self) -> tuple[Deployment, Manifest]:
        """Return the deployment and the manifest of its artifact."""
        return self.deployment, self.manifest

    def _check(self, inputs: Mapping[str, Any]) -> None:
        known = {tensor.name: tensor for tensor in self.manifest.inputs}
        if sorted(inputs) != sorted(known):
            raise InputError(f"a request has the inputs {', '.join(known)}; found {', '.join(inputs) or 'none'}")
        for name, value in inputs.items():
            declared = known[name]
            if tuple(np.shape(value)) != declared.shape or str(value.dtype) != declared.dtype:
                raise InputError(
                    f"input {name!r} is {value.dtype} {list(np.shape(value))}; {declared.dtype} {list(declared.shape)} "
                    "is expected"
                )

    @asynccontextmanager
    async def _place(self, deadline: _Deadline) -> AsyncIterator[_Attempts]:
        """Hold a place in the pipeline until no stage works on the request any more."""
        if self.room.locked():
            await self._wait_for_room(deadline)
        else:
            await self.room.acquire()  # without a pause, in which others could come in
        self.in_flight += 1
        attempts = _Attempts()
        try:
            yield attempts
        finally:
            task = asyncio.ensure_future(attempts.end())
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

    def _left(self, task: asyncio.Task[None]) -> None:
        self.leaving.discard(task)
        self.in_flight -= 1
        self.room.release()

    async def _answer(self, inputs: Mapping[str, Any], deadline: _Deadline) -> list[Any]:
        async with self._place(deadline) as attempts:
            for attempt in range(self.deployment.retries + 1):
                if attempt:
                    self.counts["retried"] += 1
                try:
                    values, reports = self._submit(inputs)
                    attempts.reports += reports
                    outputs = await self._collect(values, reports, deadline)
                    del attempts.reports[-len(reports) :]
                    return outputs
                except _StageLost as lost:
                    attempts.cancel()
                    last = lost
                    await self._until_ready(lost, deadline)
            raise ServingError(
                f"{self._named(last.stage)} was lost {self.deployment.retries + 1} times while it had this request; "
                f"the last time: {_first_line(last.cause)}"
            )

    def _submit(self, inputs: Mapping[str, Any]) -> tuple[dict[str, Any], list[Any]]:
        """Call all stages; return values or references of all tensors by name, and the stages' reports."""
        values, reports = dict(inputs), []
        for actor, stage in zip(self.stages, self.manifest.stages, strict=True):
            names = [tensor.name for tensor in stage.outputs]
            call = actor.run.options(num_returns=len(names) + 1)
            results = call.remote(*(values[tensor.name] for tensor in stage.inputs))
            *outputs, report = results if names else [results]
            values.update(zip(names, outputs, strict=True))
            reports.append(report)
        return values, reports

    async def _collect(self, values: Mapping[str, Any], reports: Sequence[Any], deadline: _Deadline) -> list[Any]:
        """Wait for the stages in order, so that the error names the first one that failed; then return the outputs."""
        for s, report in enumerate(reports):
            await self._get(s, report, deadline)
        outputs = []
        for tensor in self.manifest.outputs:
            value = values[tensor.name]
            outputs.append(value if tensor.source is None else await self._get(tensor.source, value, deadline))
        return outputs

    async def _get(self, s: int, reference: Any, deadline: _Deadline) -> Any:
        try:
            return await _value(reference, deadline.left())
        except asyncio.TimeoutError:
            raise ServingError(f"{self._named(s)} was not done in {deadline.seconds:g} s{await self._why(s)}") from None
        except _LOST as error:
            raise _StageLost(s, error) from None
        except RayTaskError as error:
            cause = error.cause
            if isinstance(cause, _LOST):
                raise _StageLost(s, cause) from None
            kind = InputError if isinstance(cause, InputError) else ServingError
            raise kind(f"{self._named(s)}: {cause}") from None
        except RayError as error:
            raise ServingError(f"{self._named(s)}: {_first_line(error)}") from None

    async def _until_ready(self, lost: _StageLost, deadline: _Deadline) -> None:
        """Wait until a stage that was lost answers again.

        Raises
        ------
        ServingError
            It will not, or not in time.
        """
        s = lost.stage
        while deadline.left() > 0:
            try:
                await self._ping(s, min(_PING_SECONDS, deadline.left()))
                return
            except asyncio.TimeoutError:
                pass
            except ActorDiedError as error:
                raise ServingError(f"{self._named(s)} cannot be started again: {_first_line(error)}") from None
            except RayError:
                await asyncio.sleep(min(_PAUSE_SECONDS, deadline.left()))
        raise ServingError(
            f"{self._named(s)} was lost ({_first_line(lost.cause)}) and was not there again in {deadline.seconds:g} s"
            f"{await self._why(s)}"
        )

    async def _ping(self, s: int, seconds: float) -> dict[str, Any]:
        reference = self.stages[s].status.remote()
        try:
            return dict(await _value(reference, seconds))
        except asyncio.TimeoutError:
            ray.cancel(reference)
            raise

    async def _stage_status(self, s: int) -> dict[str, Any]:
        entry = {"stage": s, "device": self.manifest.stages[s].device, "resources": self.deployment.stages[s].resources}
        try:
            return {**entry, "state": "ready", **await self._ping(s, _PING_SECONDS)}
        except asyncio.TimeoutError:
            state, cause = "not answering", ""
        except RayError as error:
            state, cause = "dead" if isinstance(error, ActorDiedError) else "restarting", _first_line(error)
        return {**entry, "state": state, "cause": (await self._why(s)).removeprefix(": ") or cause}

    async def _why(self, s: int) -> str:
        """Say why a stage does not answer if it has no node; empty if it has one."""
        if await asyncio.to_thread(node_of_stage, self.deployment.name, s):
            return ""
        return f": no node that is free has {self.deployment.stages[s]}"

    def _named(self, s: int) -> str:
        return f"deployment {self.deployment.name!r}, stage {s} on {self.manifest.stages[s].device}"


@dataclass
class _Attempts:
    """The calls of stages for one request that are not answered yet."""

    reports: list[Any] = field(default_factory=list)

    def cancel(self) -> None:
        """Cancel calls that no stage has begun."""
        for report in self.reports:
            ray.cancel(report)

    async def end(self) -> None:
        """Cancel calls, and wait until no stage works on the request."""
        self.cancel()
        await asyncio.gather(*(_value(report, None) for report in self.reports), return_exceptions=True)


async def _value(reference: Any, seconds: float | None) -> Any:
    return await asyncio.wait_for(asyncio.wrap_future(reference.future()), seconds)


def _first_line(error: BaseException) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[0] if lines else type(error).__name__
