"""`Deployment`: which artifact, the resources of each stage, and how many requests at once; its file format; generations."""

from __future__ import annotations

import math
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import msgspec

from tvm_sched_runtime.errors import FormatError, InputError
from tvm_sched_runtime.files import read_bytes
from tvm_sched_runtime.pipeline import Manifest, load_manifest
from tvm_sched_runtime.toml_files import parse_toml

FORMAT, VERSION = "tvm_sched.deployment", 1
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")


class StagePlacement(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Resources that a stage takes of its node, and labels that the node must have.

    Examples
    --------
    >>> from tvm_sched_cluster.serving import StagePlacement
    >>> StagePlacement({"h100": 1, "GPU": 1}, labels={"server": "rack0-server1"}).labels
    {'server': 'rack0-server1'}
    """

    resources: dict[str, float]
    """Ray's resources: ``CPU``, ``GPU``, and those that label kinds of devices, such as ``{"h100": 1}``. At least one.
    """
    labels: dict[str, str] = {}
    """Labels that the node must have, such as ``{"server": "rack0-server1"}``."""
    replicas: int = 0
    """Processes of the stage, each with these resources; 0: as many as the deployment says."""

    def __post_init__(self) -> None:
        if not self.resources:
            raise FormatError("a stage needs at least one resource, such as {h100 = 1}")
        for name, amount in self.resources.items():
            if not 0 < amount < math.inf:
                raise FormatError(f"resource {name!r} is {amount}; a number above 0 is allowed")
        if self.replicas < 0:
            raise FormatError(f"replicas is {self.replicas}; 0 or more is allowed")

    def __str__(self) -> str:
        """The resources that it needs, for messages: ``GPU 1, h100 1``."""
        needs = [f"{name} {amount:g}" for name, amount in sorted(self.resources.items())]
        return ", ".join([*needs, *(f"label {name}={value}" for name, value in sorted(self.labels.items()))])


class Deployment(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A pipeline artifact on a cluster, see ``docs/serving.md``.

    Examples
    --------
    >>> from tvm_sched_cluster.serving import Deployment, StagePlacement
    >>> deployment = Deployment("chat", "chat.pipeline", (StagePlacement({"GPU": 1}), StagePlacement({"GPU": 1})))
    >>> deployment.strategy, deployment.max_waiting
    ('PACK', 64)
    """

    name: str
    """Unique on the cluster: letters, digits, ``.``, ``_`` and ``-``."""
    artifact: str
    """The folder, on the machine that deploys it: nodes get their stages' files from there."""
    stages: tuple[StagePlacement, ...]
    """One for each stage of the artifact."""
    strategy: Literal["PACK", "SPREAD", "STRICT_PACK", "STRICT_SPREAD"] = "PACK"
    """How Ray puts the stages on nodes: on few ones, on many; strictly or as well as it can."""
    replicas: int = 1
    """Processes of each stage that does not say it itself; each request goes to the one with the fewest requests."""
    max_in_flight: int = 0
    """Requests in the pipeline at once; 0: four for each process of a stage."""
    max_waiting: int = 64
    """Requests that wait for a place in the pipeline; others are refused as busy."""
    timeout: float = 60.0
    """Seconds that a request may take in all, unless it brings its own limit."""
    retries: int = 3
    """How often a request is sent through the pipeline again after it has lost a stage."""
    hang_timeout: float = 60.0
    """Seconds after which a stage that gives no sign of life, or computes one request, is ended and started again."""
    cluster: str = ""
    """Name of the cluster whose allocation it belongs to, see `tvm_sched_cluster.serving.follow`; empty: of none."""

    def __post_init__(self) -> None:
        if not _NAME.fullmatch(self.name):
            raise FormatError(
                f"name is {self.name!r}; letters, digits, '.', '_' and '-' are allowed, a letter or digit first"
            )
        for field in ("max_in_flight", "max_waiting", "retries"):
            if getattr(self, field) < 0:
                raise FormatError(f"{field} is {getattr(self, field)}; 0 or more is allowed")
        if self.replicas < 1:
            raise FormatError(f"replicas is {self.replicas}; 1 or more is allowed")
        for field in ("timeout", "hang_timeout"):
            if not 0 < getattr(self, field) < math.inf:
                raise FormatError(f"{field} is {getattr(self, field)}; a number of seconds above 0 is allowed")

    @property
    def places(self) -> int:
        """Requests in the pipeline at once."""
        return self.max_in_flight or 4 * len(self.processes)

    @property
    def processes(self) -> tuple[tuple[int, int], ...]:
        """Stage and replica of each process, in the order of the bundles of their placement group."""
        return tuple(
            (number, replica)
            for number, stage in enumerate(self.stages)
            for replica in range(stage.replicas or self.replicas)
        )

    def replicas_of(self, stage: int) -> int:
        """Return the number of processes of a stage."""
        return self.stages[stage].replicas or self.replicas

    def manifest(self) -> Manifest:
        """Return the artifact's manifest.

        Raises
        ------
        InputError
            The artifact is none, or has another number of stages.
        """
        manifest = load_manifest(self.artifact)
        if len(manifest.stages) != len(self.stages):
            raise InputError(
                f"deployment {self.name!r} places {len(self.stages)} stages; {self.artifact} has {len(manifest.stages)}"
            )
        return manifest


class Generation(msgspec.Struct, frozen=True):
    """A deployment with its artifact; each rollout makes the next."""

    deployment: Deployment
    manifest: Manifest
    token: str
    """What lets clients and gateways connect to the entry."""
    number: int = 1

    def stage_token(self, stage: int) -> str:
        """Return what lets the entry connect to a stage, and to no other that may listen at its address later."""
        return f"{self.token}.{self.number}.{stage}"


def load_deployment(path: str | os.PathLike[str]) -> Deployment:
    """Read a deployment file, or make the deployment of an artifact: each stage on any CPU or GPU, as it needs.

    Raises
    ------
    InputError
        It is neither, or breaks a rule.

    Examples
    --------
    >>> from tvm_sched_cluster.serving import load_deployment
    >>> load_deployment("chat.pipeline")
    Traceback (most recent call last):
        ...
    tvm_sched_runtime.errors.InputError: chat.pipeline: neither a deployment file (.toml) nor the folder of ...
    """
    source = Path(path)
    if source.is_dir():
        return _of_artifact(source)
    if source.suffix.lower() != ".toml":
        raise InputError(f"{source}: neither a deployment file (.toml) nor the folder of a pipeline artifact")
    deployment = parse_toml(read_bytes(source), FORMAT, VERSION, Deployment, str(source))
    artifact = source.absolute().parent / deployment.artifact
    return msgspec.structs.replace(deployment, artifact=str(artifact))


def check_inputs(manifest: Manifest, inputs: Mapping[str, Any]) -> None:
    """Raise `InputError` unless these arrays are the model's inputs."""
    known = {tensor.name: tensor for tensor in manifest.inputs}
    if sorted(inputs) != sorted(known):
        raise InputError(f"a request has the inputs {', '.join(known)}; found {', '.join(inputs) or 'none'}")
    for name, value in inputs.items():
        declared = known[name]
        if tuple(value.shape) != declared.shape or str(value.dtype) != declared.dtype:
            raise InputError(
                f"input {name!r} is {value.dtype} {list(value.shape)}; {declared.dtype} {list(declared.shape)} is expected"
            )


def uses_gpu(manifest: Manifest, s: int) -> bool:
    """Return whether a stage runs on a real GPU."""
    return manifest.stages[s].kind == "cuda" and manifest.emulation is None


def _of_artifact(folder: Path) -> Deployment:
    manifest = load_manifest(folder)
    used = ["GPU" if uses_gpu(manifest, s) else "CPU" for s in range(len(manifest.stages))]
    name = re.sub(r"[^A-Za-z0-9._-]+", "-", folder.absolute().name.removesuffix(".pipeline")).lstrip("._-")
    return Deployment(name or "pipeline", str(folder.absolute()), tuple(StagePlacement({kind: 1.0}) for kind in used))
