"""Pipelines on a Ray cluster: a placement group, an actor for each stage, one that takes requests.

the only package that imports Ray, and does so when it is used: the extra ``cluster``.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from tvm_sched.errors import InputError

from .deployment import Deployment, StagePlacement, load_deployment

if TYPE_CHECKING:
    from .allocated import deployment_of, follow
    from .client import Client
    from .connection import connect
    from .executor import RayExecutor
    from .lifecycle import deploy, deployments, status, undeploy

_WHERE = {
    "Client": "client",
    "RayExecutor": "executor",
    "connect": "connection",
    "deploy": "lifecycle",
    "deployment_of": "allocated",
    "deployments": "lifecycle",
    "follow": "allocated",
    "status": "lifecycle",
    "undeploy": "lifecycle",
}

__all__ = [
    "Client",
    "Deployment",
    "RayExecutor",
    "StagePlacement",
    "connect",
    "deploy",
    "deployment_of",
    "deployments",
    "follow",
    "load_deployment",
    "status",
    "undeploy",
]


def __getattr__(name: str) -> Any:
    if name not in _WHERE:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        return getattr(import_module(f"{__name__}.{_WHERE[name]}"), name)
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != "ray":
            raise
        raise InputError("Ray is not installed: pip install 'tvm-sched[cluster]'") from None
