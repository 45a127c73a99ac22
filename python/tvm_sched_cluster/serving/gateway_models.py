"""The models of a gateway: pipelines that are deployed on a cluster, or run in this process.

The gateway is the server of `tvm_sched_serve`; here is what stands in for artifacts on the disk.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
import math
import time
from collections.abc import Callable, Collection, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from tvm_sched_runtime.errors import BusyError, FatalRequestError, InputError
from tvm_sched_runtime.pipeline import Manifest
from tvm_sched_serve.datatypes import DATATYPES, Array, TensorType
from tvm_sched_serve.execution_queue import ExecutionQueue, QueueOptions, Waiting
from tvm_sched_serve.failures import Busy, Failed, Refused, RequestError
from tvm_sched_serve.repository import Models, OnChange, Queue
from tvm_sched_serve.served_model import ServedModel

from .deployment import load_deployment
from .followed_deployment import PAUSES, FollowedDeployment, FollowedDirectory
from .ingress_lookup import look_up
from .local_stage import LocalStage
from .pipeline_entry import Deadline, PipelineEntry, remote_stages
from .stage_link import StageRetiredError

LOG = logging.getLogger("tvm_sched.serve")


class PipelineQueue(ExecutionQueue):
    """Requests to a generation of a pipeline: as many as the deployment has places are in the pipeline, others wait here."""

    def __init__(self, version: str, entry: PipelineEntry) -> None:
        deployment = entry.deployment
        options = QueueOptions(instances=deployment.places, places=deployment.max_waiting, timeout=deployment.timeout)
        super().__init__(_model(deployment.name, version, entry.manifest), options)
        self.entry = entry
        self.successor: PipelineQueue | None = None
        """What serves the deployment's next generation."""
        self.drained: Callable[[], None] = lambda: None
        """Called when the last request was answered."""
        self._runs: set[asyncio.Task[None]] = set()

    @property
    def retried(self) -> int | None:
        """Return how often a request was sent again because its stage was lost."""
        return self.entry.counts["retried"]

    def replaced_by(self, queue: PipelineQueue) -> None:
        """Send requests to the next generation if they lose their stage."""
        self.successor = queue
        self.entry.retire()

    def record_timelines(self, wanted: bool) -> None:
        """Record none: the executors are in the processes of the stages."""

    async def drain(self) -> None:
        """Wait until nothing waits or runs, then close the connections to the stages."""
        await super().drain()
        await self.entry.end()
        self.drained()

    def _start(self, batch: list[Waiting]) -> None:
        task = asyncio.get_running_loop().create_task(self._run(batch))
        self._runs.add(task)
        task.add_done_callback(self._runs.discard)

    async def _run(self, batch: list[Waiting]) -> None:
        """Take a request through the stages; give up when nobody waits for it any more."""
        (each,) = batch
        begun = time.perf_counter_ns()
        work = asyncio.ensure_future(self._answer(each.arrays))
        each.result.add_done_callback(lambda _: work.cancel())
        outputs: list[Array] = []
        failure: RequestError | None = None
        try:
            outputs = await work
        except asyncio.CancelledError:
            failure = Failed("cancelled")
        except FatalRequestError as error:
            failure = Refused(str(error))
        except BusyError as error:
            failure = Busy(str(error), self.retry_after())
        except InputError as error:
            failure = RequestError(str(error))
        except Exception as error:
            LOG.error("model %s version %s: %s", self.model.name, self.model.version, error)
            failure = Failed("the pipeline failed; the gateway's log says why")
        end = time.perf_counter_ns()
        if failure is None:
            self._record(batch, [begun, end], None)
        self._finish(batch, 0, [outputs], [begun, begun, end, end], failure)

    async def _answer(self, arrays: Sequence[Array]) -> list[Array]:
        queue = self
        while True:
            inputs = dict(zip((tensor.name for tensor in self.model.inputs), arrays, strict=True))
            try:
                return await queue.entry.answer(inputs, Deadline(math.inf))  # the queue counts the seconds
            except StageRetiredError:
                assert queue.successor is not None
                queue = queue.successor


class LocalPipeline:
    """A pipeline artifact, or the one of a deployment file, in this process."""

    def __init__(self, plan: Path) -> None:
        self._plan = plan
        self.name = load_deployment(plan).name
        self.version = "1"
        self.changed: Callable[[], None] = lambda: None

    async def open(self, previous: PipelineQueue | None) -> PipelineQueue:
        """Load the artifact as it is now."""
        entry = await asyncio.to_thread(self._load)
        queue = PipelineQueue(self.version, entry)
        if previous is not None:
            previous.replaced_by(queue)
        return queue

    def _load(self) -> PipelineEntry:
        deployment = load_deployment(self._plan)
        if deployment.name != self.name:
            raise InputError(f"{self._plan}: its name is {deployment.name!r}, and was {self.name!r}")
        manifest = deployment.manifest()
        stages = [
            LocalStage(Path(deployment.artifact), manifest, number, deployment.replicas_of(number))
            for number in range(len(manifest.stages))
        ]
        return PipelineEntry(deployment, manifest, stages, {"retried": 0})


class DeployedPipeline:
    """A deployment on a cluster."""

    def __init__(self, name: str, address: str | None) -> None:
        self.name = name
        self.followed = FollowedDeployment(name, partial(look_up, name, address))

    @property
    def version(self) -> str:
        """The deployment's generation."""
        generation = self.followed.generation
        return "1" if generation is None else str(generation.number)

    @property
    def changed(self) -> Callable[[], None]:
        """Called when another generation is served."""
        return self.followed.changed

    @changed.setter
    def changed(self, call: Callable[[], None]) -> None:
        self.followed.changed = call

    async def open(self, previous: PipelineQueue | None) -> PipelineQueue:
        """Connect to the stages of the generation that is served now."""
        generation = await self.followed.open()
        stages = remote_stages(generation, FollowedDirectory(self.followed, generation))
        entry = PipelineEntry(generation.deployment, generation.manifest, stages, {"retried": 0})
        queue = PipelineQueue(str(generation.number), entry)
        for stage in stages:
            stage.open()
        if previous is not None:
            previous.replaced_by(queue)
            previous.drained = partial(self.followed.switched, generation.number)
        return queue


Pipeline = LocalPipeline | DeployedPipeline


class GatewayModels(Models):
    """Pipelines by name, each in the version that is served at the moment.

    Parameters
    ----------
    pipelines : sequence
    on_change : callable
        As for `Models`.

    Raises
    ------
    InputError
        Two have one name.
    """

    def __init__(self, pipelines: Sequence[Pipeline], on_change: OnChange) -> None:
        super().__init__(on_change)
        self._pipelines: dict[str, Pipeline] = {}
        self._switches: dict[str, asyncio.Task[None]] = {}
        """To another generation, by the pipeline's name; those that failed are tried again."""
        self._draining = False
        for pipeline in pipelines:
            if pipeline.name in self._pipelines:
                raise InputError(f"two pipelines have the name {pipeline.name!r}")
            self._pipelines[pipeline.name] = pipeline
            pipeline.changed = partial(self._changed, pipeline.name)

    def names(self) -> list[str]:
        """Return the names of all pipelines."""
        return sorted(self._pipelines)

    def known_versions(self, name: str) -> Collection[str]:
        """Return the version of a pipeline."""
        return [self._pipelines[name].version] if name in self._pipelines else []

    async def open(self, name: str) -> dict[str, Queue]:
        """Return the queue of a pipeline as it is served now."""
        previous = self._latest.get(name)
        queue = await self._pipelines[name].open(previous if isinstance(previous, PipelineQueue) else None)
        return {queue.model.version: queue}

    async def drain(self) -> None:
        """Switch no more, and wait until every request is answered."""
        self._draining = True
        for switch in self._switches.values():
            switch.cancel()
        await super().drain()

    def _changed(self, name: str) -> None:
        if self._draining:
            return
        if name in self._switches:  # to a generation that is not served any more
            self._switches[name].cancel()
        self._switches[name] = asyncio.get_running_loop().create_task(self._switch(name))

    async def _switch(self, name: str) -> None:
        """Serve the pipeline's generation of now; try again until it succeeds. Until then the earlier one serves."""
        for pause in itertools.chain(PAUSES, itertools.repeat(PAUSES[-1])):
            with contextlib.suppress(RequestError):  # `load` logs why
                await self.load(name)
                return
            LOG.warning(
                "model %s: the switch to version %s is tried again in %g s", name, self._pipelines[name].version, pause
            )
            await asyncio.sleep(pause)


def pipelines_of(sources: Sequence[str], address: str | None) -> list[Pipeline]:
    """Return the pipelines of arguments: files and folders run in this process, names are of deployments."""
    return [
        LocalPipeline(Path(source))
        if source.endswith(".toml") or "/" in source or Path(source).is_dir()
        else DeployedPipeline(source, address)
        for source in sources
    ]


def _model(name: str, version: str, manifest: Manifest) -> ServedModel:
    """Return the model as clients see it.

    Raises
    ------
    InputError
        It has a data type that the protocol lacks.
    """
    for tensor in (*manifest.inputs, *manifest.outputs):
        if tensor.dtype not in DATATYPES:
            raise InputError(
                f"pipeline {name!r}: {tensor.name!r} is {tensor.dtype}, which the protocol has no name for"
            )
    names = manifest.output_names or [tensor.name for tensor in manifest.outputs]
    inputs = tuple(TensorType(tensor.name, tensor.dtype, tuple(tensor.shape)) for tensor in manifest.inputs)
    outputs = tuple(
        TensorType(name, tensor.dtype, tuple(tensor.shape))
        for name, tensor in zip(names, manifest.outputs, strict=True)
    )
    shapes = frozenset({tuple(tensor.shape for tensor in inputs)})
    module: Any = None  # the queue takes requests to the stages
    return ServedModel(name, version, module, inputs, outputs, shapes)
