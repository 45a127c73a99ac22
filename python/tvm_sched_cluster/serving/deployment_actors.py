"""The actors of deployments as Ray lists them, and their end."""

from __future__ import annotations

import ray

from . import stage_nodes
from .actor_names import NAMESPACE, generation_of, ingress_name


def all_actors() -> list[str]:
    """Return the names of all deployments' actors."""
    return [
        actor["name"] for actor in ray.util.list_named_actors(all_namespaces=True) if actor["namespace"] == NAMESPACE
    ]


def parts(name: str) -> list[str]:
    """Return the names of a deployment's actors."""
    return sorted(actor for actor in all_actors() if actor.rpartition("/")[0] == name)


def end_generation(name: str, number: int) -> None:
    """End the stages and the store of a generation, and release its reservation."""
    for part in parts(name):
        if part != ingress_name(name) and generation_of(part) == number:
            kill(part)
    stage_nodes.remove(name, number)


def end_generations_before(name: str, number: int) -> None:
    """End all generations of a deployment before one."""
    for earlier in {generation_of(part) for part in parts(name) if part != ingress_name(name)}:
        if earlier < number:
            end_generation(name, earlier)


def abandoned_generations(name: str, number: int) -> set[int]:
    """Return the generations of a deployment after one whose stages were started by processes that have ended.

    A rollout's command starts them and then hands them over to the ingress.
    """
    ended = {job["JobID"] for job in ray._private.state.jobs() if job["IsDead"]}
    # Ray lists those that ended, too, and another rollout may use their names again.
    actors = ray._private.state.actors().values()
    started_by = {actor["Name"]: actor["JobID"] for actor in actors if actor["State"] != "DEAD"}
    later = [part for part in parts(name) if part != ingress_name(name) and generation_of(part) > number]
    return {generation_of(part) for part in later if started_by.get(part) in ended}


def kill(name: str) -> None:
    """End an actor for good, unless it is gone."""
    try:
        ray.kill(ray.get_actor(name, NAMESPACE), no_restart=True)
    except ValueError:
        return  # it has gone by itself
