"""Ray names of the parts of a deployment."""

from __future__ import annotations

NAMESPACE = "tvm_sched"
"""Ray's namespace of all deployments."""


def ingress_name(deployment: str) -> str:
    """Return the name of the actor that accepts requests."""
    return f"{deployment}/ingress"


def stage_name(deployment: str, stage: int, generation: int = 1, replica: int = 0) -> str:
    """Return the name of an actor that holds a stage; each rollout starts the next generation."""
    return f"{deployment}/stage{stage}{f'.{replica}' * (replica > 0)}{_suffix(generation)}"


def store_name(deployment: str, generation: int = 1) -> str:
    """Return the name of the actor that has the artifact's files."""
    return f"{deployment}/store{_suffix(generation)}"


def group_name(deployment: str, generation: int = 1) -> str:
    """Return the name of the placement group."""
    return f"tvm_sched/{deployment}{_suffix(generation)}"


def generation_of(actor: str) -> int:
    """Return the generation of the actor of a name."""
    return int(actor.rpartition("@")[2]) if "@" in actor else 1


def _suffix(generation: int) -> str:
    return f"@{generation}" if generation > 1 else ""
