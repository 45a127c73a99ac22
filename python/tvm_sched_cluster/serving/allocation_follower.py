"""Make the deployments of a cluster follow its allocation: start new services, move moved ones, end removed ones."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tvm_sched.progress import Progress
from tvm_sched_runtime.errors import InputError, ServingError
from tvm_sched_runtime.pipeline import load_manifest

from .. import Cluster, ServicePlacement
from .client import Client
from .deployment import Deployment, StagePlacement, uses_gpu
from .deployment_lifecycle import deploy, deployments, undeploy

SERVER_LABEL = "server"
"""Label of a Ray node with the name of its server in the cluster."""


@dataclass(frozen=True)
class Followed:
    """The names of deployments that `follow` kept, started and ended."""

    kept: tuple[str, ...]
    started: tuple[str, ...]
    ended: tuple[str, ...]
    """A deployment that moved is in ``ended`` and in ``started``."""
    failed: Mapping[str, str]
    """Deployments that could not be started, with the error."""


def deployment_of(
    cluster: Cluster, placement: ServicePlacement, artifact: str | os.PathLike[str], pin: bool = False, **options: Any
) -> Deployment:
    """Return the deployment of a placement: each stage takes one unit of the Ray resource named after its kind of GPU.

    Parameters
    ----------
    artifact
        The compiled pipeline of the placement, see `tvm_sched_cluster.compiled_placements`.
    pin : bool
        Whether a stage may run only on a node whose label `SERVER_LABEL` is the placement's server. Otherwise any node with
        that kind of GPU will do.
    options
        Other fields of `Deployment`.

    Raises
    ------
    InputError
        This is no artifact, or it has another number of stages.
    """
    manifest = load_manifest(artifact)
    if len(manifest.stages) != len(placement.stages):
        raise InputError(
            f"request {placement.request!r} has {len(placement.stages)} stages; {os.fspath(artifact)} has "
            f"{len(manifest.stages)}"
        )
    stages = []
    for s, stage in enumerate(placement.stages):
        gpu = cluster.gpus[cluster.gpu_id[stage.gpu]]
        resources = {cluster.kinds[gpu.kind].name: 1.0, **({"GPU": 1.0} if uses_gpu(manifest, s) else {})}
        stages.append(StagePlacement(resources, {SERVER_LABEL: gpu.server} if pin else {}))
    return Deployment(placement.request, os.path.abspath(artifact), tuple(stages), cluster=cluster.name, **options)


def follow(
    cluster: Cluster,
    wanted: Sequence[Deployment],
    address: str | None = None,
    seconds: float = 60.0,
    progress: Progress | None = None,
) -> Followed:
    """Start and end deployments of a cluster until they are those of its allocation.

    Unchanged deployments go on serving. First the deployments that have moved or were removed end, then new and moved ones
    start, since they may need the same GPUs. If one deployment fails, the others are still started.

    Parameters
    ----------
    wanted : sequence of Deployment
        One for each placement of the allocation, made by `deployment_of`.
    address, seconds
        As for `deploy`; ``seconds`` is for each deployment.

    Raises
    ------
    InputError
        A name is taken by a deployment that does not belong to the cluster.
    """
    running = {name: _deployed(name, address) for name in deployments(address)}
    new = {deployment.name: deployment for deployment in wanted}
    for name in new.keys() & running.keys():
        deployed = running[name]
        if deployed is not None and deployed.cluster != cluster.name:
            raise InputError(
                f"there is a deployment {name!r} that is not of cluster {cluster.name!r}; undeploy it first"
            )
    kept = {name for name, deployed in running.items() if deployed is not None and deployed == new.get(name)}
    gone = [
        name
        for name, deployed in running.items()
        if name not in kept and (name in new or (deployed is not None and deployed.cluster == cluster.name))
    ]
    for name in gone:
        undeploy(name, address)
    failed, started = {}, []
    for n, deployment in enumerate(new.values()):
        if progress:
            progress(deployment.name, n, len(new))
        if deployment.name in kept:
            continue
        try:
            deploy(deployment, address, seconds)
            started.append(deployment.name)
        except (InputError, ServingError) as error:
            failed[deployment.name] = str(error)
    return Followed(tuple(sorted(kept)), tuple(started), tuple(gone), failed)


def _deployed(name: str, address: str | None) -> Deployment | None:
    """Return the deployment of a name; None if it does not answer."""
    try:
        return Client(name, address).deployment
    except (InputError, ServingError):
        return None
