"""Ray names of the parts of a deployment."""

from __future__ import annotations

NAMESPACE = "tvm_sched"
"""Ray's namespace of all deployments."""


def ingress_name(deployment: str) -> str:
    """Return the name of the actor that accepts requests."""
    return f"{deployment}/ingress"


def stage_name(deployment: str, stage: int) -> str:
    """Return the name of the actor that holds a stage."""
    return f"{deployment}/stage{stage}"


def store_name(deployment: str) -> str:
    """Return the name of the actor that has the artifact's files."""
    return f"{deployment}/store"


def group_name(deployment: str) -> str:
    """Return the name of the placement group."""
    return f"tvm_sched/{deployment}"
