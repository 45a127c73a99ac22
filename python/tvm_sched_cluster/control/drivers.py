"""Drivers: how the controller starts and ends deployments, and learns which of them live."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Protocol

from tvm_sched_runtime.errors import InputError, ServingError

from ..problem.cluster import Cluster
from ..problem.service import Service
from ..problem.service_placement import ServicePlacement


class Driver(Protocol):
    """Starts and ends deployments. Both may be called again after the controller was killed, and then change nothing."""

    def start(self, name: str, placement: ServicePlacement) -> None:
        """Deploy a placement under a name, and return when it serves; raise `ServingError` if it does not."""

    def end(self, name: str) -> None:
        """End a deployment, if there is one."""

    def living(self) -> set[str] | None:
        """Return the names of deployments that serve; None if it is not known."""


class PlanDriver:
    """Deploys nothing: the store is the plan, which other programs follow."""

    def start(self, name: str, placement: ServicePlacement) -> None:
        """Do nothing."""

    def end(self, name: str) -> None:
        """Do nothing."""

    def living(self) -> set[str] | None:
        """Nothing is known."""
        return None


class RayDriver:
    """Deploys placements on a Ray cluster.

    Parameters
    ----------
    cluster : Cluster
    services : dict of str to Service
    artifacts : Path
        Folder of compiled placements.
    address : str, optional
        Of the Ray cluster.
    backend : str
        As for `tvm_sched_cluster.compiled_placements`.
    pin : bool
        As for `tvm_sched_cluster.serving.deployment_of`.
    seconds : float
        For a deployment to serve.
    """

    def __init__(
        self,
        cluster: Cluster,
        services: dict[str, Service],
        artifacts: Path,
        address: str | None = None,
        backend: str = "cuda",
        pin: bool = False,
        seconds: float = 60.0,
    ) -> None:
        self._cluster, self._services, self._artifacts, self._address = cluster, services, artifacts, address
        self._backend, self._pin, self._seconds = backend, pin, seconds

    def start(self, name: str, placement: ServicePlacement) -> None:
        """Compile the placement, and deploy it unless it is deployed."""
        from .. import serving
        from ..compiled_placements import compiled_artifact

        if name in (self.living() or ()):
            return
        self.end(name)
        os.makedirs(self._artifacts, exist_ok=True)
        service = self._services[placement.service]
        artifact = compiled_artifact(self._artifacts, self._cluster, service, placement, self._backend)
        serving.deploy(
            serving.deployment_of(self._cluster, placement, artifact, self._pin), self._address, self._seconds
        )

    def end(self, name: str) -> None:
        """Undeploy it, if it is there."""
        from .. import serving

        if name in serving.deployments(self._address):
            serving.undeploy(name, self._address)

    def living(self) -> set[str] | None:
        """Return the deployments that have all stages ready. Ray itself restarts a stage whose process died."""
        from .. import serving

        alive = set()
        for name in serving.deployments(self._address):
            try:
                stages = serving.status(name, self._address)["stages"]
            except (InputError, ServingError):
                continue
            if all(stage["state"] == "ready" for stage in stages):
                alive.add(name)
        return alive
