"""Pipelines on a Ray cluster: a placement group, an actor for each stage, one that takes requests.

Modules here that import Ray are imported on first use, so that the command line starts quickly.
"""

from __future__ import annotations

from concurrent.futures import Executor
from typing import TYPE_CHECKING, Any

from tvm_sched_runtime.errors import InputError
from tvm_sched_runtime.lazy_names import lazy_names

from .deployment import Deployment, StagePlacement, load_deployment

if TYPE_CHECKING:
    from .allocation_follower import deployment_of, follow
    from .client import Client
    from .deployment_lifecycle import deploy, deployments, rollout, status, undeploy
    from .ray_connection import connect
    from .ray_executor import RayExecutor

_WHERE = {
    "Client": "client",
    "RayExecutor": "ray_executor",
    "connect": "ray_connection",
    "deploy": "deployment_lifecycle",
    "deployment_of": "allocation_follower",
    "deployments": "deployment_lifecycle",
    "follow": "allocation_follower",
    "rollout": "deployment_lifecycle",
    "status": "deployment_lifecycle",
    "undeploy": "deployment_lifecycle",
}


def executor_of(address: str) -> Executor:
    """Return what runs searches on the Ray cluster at an address (empty: as for `connect`), for ``--workers ray:ADDRESS``.

    The entry point ``ray`` of the group ``tvm_sched.executors`` names this function.
    """
    executor: Executor = __getattr__("RayExecutor")(address or None)
    return executor


__all__ = [
    "Client",
    "Deployment",
    "RayExecutor",
    "StagePlacement",
    "connect",
    "deploy",
    "deployment_of",
    "deployments",
    "executor_of",
    "follow",
    "load_deployment",
    "rollout",
    "status",
    "undeploy",
]


def __getattr__(name: str) -> Any:
    try:
        return lazy_names(__name__, _WHERE)(name)
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != "ray":
            raise
        raise InputError("Ray is not installed: pip install 'tvm-sched[cluster]'") from None
