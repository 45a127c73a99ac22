"""Make deployments follow a cluster's allocation: start placed services, move moved ones, end all others."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tvm_sched.errors import InputError, ServingError
from tvm_sched.pipeline import load_manifest
from tvm_sched.progress import Progress

from .. import Cluster, ServicePlacement
from .client import Client
from .deployment import Deployment, StagePlacement, uses_gpu
from .deployment_lifecycle import deploy, deployments, undeploy

SERVER_LABEL = "server"
"""The label by which Ray's nodes say which server of the cluster they are."""


@dataclass(frozen=True)
class Followed:
    """Result of `follow`: names of deployments by what was done to them.

    Attributes
    ----------
    kept, started, ended : tuple of str
        One that has moved was ended and started.
    failed : dict of str to str
        Those that could not be started, and why.
    """

    kept: tuple[str, ...]
    started: tuple[str, ...]
    ended: tuple[str, ...]
    failed: Mapping[str, str]


def deployment_of(
    cluster: Cluster, placement: ServicePlacement, artifact: str | os.PathLike[str], pin: bool = False, **options: Any
) -> Deployment:
    """The deployment of a placement: each stage takes one unit of the Ray resource named after its kind of GPU.

    Parameters
    ----------
    artifact
        The placement's pipeline, see `tvm_sched_cluster.placement_pipelines`.
    pin : bool
        Each stage runs on a node whose label `SERVER_LABEL` is the placement's server, and on no other. Otherwise on any
        that has the kind.
    options
        Other fields of `Deployment`.

    Raises
    ------
    InputError
        The artifact is none, or has another number of stages.
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
    """Make the deployments of a cluster those of its allocation.

    What is deployed just as wanted stays, and goes on serving. All others of the cluster end, then those that are new or
    have moved start: what they need may be what others held. A deployment that fails keeps none from being tried.

    Parameters
    ----------
    wanted : sequence of Deployment
        As `deployment_of` makes them of all of an allocation's placements.
    address, seconds
        As for `deploy`, of each.

    Raises
    ------
    InputError
        A name is that of a deployment of somebody else.
    """
    running = {name: _deployed(name, address) for name in deployments(address)}
    new = {deployment.name: deployment for deployment in wanted}
    for name in new.keys() & running.keys():
        found = running[name]
        if found is not None and found.cluster != cluster.name:
            raise InputError(
                f"there is a deployment {name!r} that is not of cluster {cluster.name!r}; undeploy it first"
            )
    kept = {name for name, found in running.items() if found is not None and found == new.get(name)}
    gone = [
        name
        for name, found in running.items()
        if name not in kept and (name in new or (found is not None and found.cluster == cluster.name))
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
    """What was deployed under a name; None where nobody says so any more."""
    try:
        return Client(name, address).deployment
    except (InputError, ServingError):
        return None
