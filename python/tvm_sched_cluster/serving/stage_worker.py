"""The actor that holds one stage of a deployment. Requests come over connections, not through Ray."""

from __future__ import annotations

import math
import os
import time
import warnings
from collections.abc import Callable
from typing import Any

import ray

from tvm_sched_runtime.pipeline import Manifest, load_stage
from tvm_sched_runtime.runtime import MachineWarning

from .actor_names import NAMESPACE, store_name
from .artifact_store import fetch
from .stage_server import StageServer
from .tensor_channel import Array, tensor_bytes

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
    stage, generation : int
    token : str
        What lets the deployment's entry connect.
    """

    def __init__(self, deployment: str, manifest: Manifest, stage: int, generation: int, token: str) -> None:
        store = ray.get_actor(store_name(deployment, generation), NAMESPACE)
        folder = fetch(
            manifest, manifest.stages[stage].files, lambda name, offset: ray.get(store.read.remote(name, offset))
        )
        with warnings.catch_warnings():  # each stage has a node's devices to itself, whatever the plan's topology
            warnings.simplefilter("ignore", MachineWarning)
            self.module = load_stage(folder, stage, manifest)
        self.stage, self.runs, self.seconds = stage, 0, 0.0

        limit = tensor_bytes([(tensor.dtype, tensor.shape) for tensor in manifest.stages[stage].inputs])
        # Emulated devices report the plan's time, which is not the one that passed.
        self._latency: Callable[[], float] = (lambda: math.inf) if self.module.emulated else self.module.latency
        self.server = StageServer(self._run, ray.util.get_node_ip_address(), token, limit, self._latency)

    def _run(self, *inputs: Array) -> list[Array]:
        begin = time.perf_counter()
        outputs = self.module.run(*inputs)
        spent = min(time.perf_counter() - begin, self._latency())
        self.runs, self.seconds = self.runs + 1, self.seconds + spent
        return outputs

    @ray.method(concurrency_group=STATUS)
    def status(self) -> dict[str, Any]:
        """Return the node of the stage, how often it has run, and for how many seconds."""
        context = ray.get_runtime_context()
        return {
            "node": context.get_node_id(),
            "process": os.getpid(),
            "address": [self.server.endpoint.host, self.server.endpoint.port],
            "restarted": context.was_current_actor_reconstructed,
            "runs": self.runs,
            "seconds": self.seconds,
        }
