"""The actor that holds one stage of a deployment."""

from __future__ import annotations

import os
import time
import warnings
from typing import Any

import ray

from tvm_sched.errors import TvmSchedError
from tvm_sched.pipeline import Manifest, load_stage
from tvm_sched.runtime import MachineWarning

from .actor_names import NAMESPACE, store_name
from .artifact_store import fetch

STATUS = "status"
"""Name of the Ray concurrency group for calls that are answered while the stage computes."""


class StageWorker:
    """An actor that computes one stage of an artifact. Calls have no side effects, so they may be repeated.

    Parameters
    ----------
    deployment : str
        Name of the deployment; files that this node lacks come from its `ArtifactStore`.
    manifest : Manifest
        Of the deployment; files of another artifact are refused.
    stage : int
    """

    def __init__(self, deployment: str, manifest: Manifest, stage: int) -> None:
        store = ray.get_actor(store_name(deployment), NAMESPACE)
        folder = fetch(
            manifest, manifest.stages[stage].files, lambda name, offset: ray.get(store.read.remote(name, offset))
        )
        with warnings.catch_warnings():  # each stage has a node's devices to itself, whatever the plan's topology
            warnings.simplefilter("ignore", MachineWarning)
            self.module = load_stage(folder, stage, manifest)
        self.stage, self.runs, self.seconds = stage, 0, 0.0

    def run(self, *inputs: Any) -> tuple[Any, ...]:
        """Run the stage; return its outputs, and as last value the seconds that it computed.

        Callers that only wait for the stage fetch this small value.

        Raises
        ------
        TvmSchedError
            As `ScheduledModule.run`.
        """
        begin = time.perf_counter()
        try:
            outputs = self.module.run(*inputs)
        except TvmSchedError as error:
            raise type(error)(str(error)) from None  # without what cannot travel to another process
        seconds = time.perf_counter() - begin
        self.runs, self.seconds = self.runs + 1, self.seconds + seconds
        return (*outputs, seconds)

    @ray.method(concurrency_group=STATUS)
    def status(self) -> dict[str, Any]:
        """Return the node of the stage, how often it has run, and for how many seconds."""
        context = ray.get_runtime_context()
        return {
            "node": context.get_node_id(),
            "process": os.getpid(),
            "restarted": context.was_current_actor_reconstructed,
            "runs": self.runs,
            "seconds": self.seconds,
        }
