"""Reserve nodes for the stages of a deployment: a Ray placement group with a bundle of resources for each stage."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Mapping

import ray
from ray.util.placement_group import (
    PlacementGroup,
    get_placement_group,
    placement_group,
    placement_group_table,
    remove_placement_group,
)

from tvm_sched_runtime.errors import InputError, ServingError

from .actor_names import group_name
from .deployment import Deployment

_SLICE_SECONDS = 0.25
"""Ray's own wait ignores Ctrl-C, so it is called for this long at a time."""
_PLACING_SECONDS = 5.0
"""Ray 2.60 loses the resources of a group that is removed while they are being reserved: `remove` waits this long."""


def place(deployment: Deployment, seconds: float, generation: int = 1) -> PlacementGroup:
    """Reserve the resources of the stages.

    Raises
    ------
    InputError
        The whole cluster has fewer resources than the stages need.
    ServingError
        Ray found no free nodes for the stages within ``seconds``. Then nothing is reserved.
    """
    needed: dict[str, float] = defaultdict(float)
    stages = [deployment.stages[number] for number, _ in deployment.processes]
    for stage in stages:
        for name, amount in stage.resources.items():
            needed[name] += amount
    _check("the cluster has", needed, ray.cluster_resources())
    bundles = [dict(stage.resources) for stage in stages]
    labels = [dict(stage.labels) for stage in stages]
    group = None
    try:
        group = placement_group(
            bundles,
            deployment.strategy,
            group_name(deployment.name, generation),
            lifetime="detached",
            bundle_label_selector=labels if any(labels) else None,
        )
        end = time.monotonic() + seconds
        while (left := end - time.monotonic()) > 0:
            if group.wait(min(left, _SLICE_SECONDS)):
                return group
        free = {name: ray.available_resources().get(name, 0.0) for name in needed}
        raise ServingError(
            f"deployment {deployment.name!r}: no place for its stages with strategy {deployment.strategy} in {seconds:g} s; "
            f"they need {_format_resources(needed)}, of which {_format_resources(free)} is free on the cluster as a whole"
            f"{_labels(deployment)}"
        )
    except KeyboardInterrupt:  # Ray may have the group while Python has not yet been told of it
        remove(deployment.name, generation)
        raise
    except BaseException:
        if group is not None:
            remove_placement_group(group)
        raise


def remove(name: str, generation: int = 1) -> bool:
    """Release the reservation of a deployment's stages; return False if there was none."""
    try:
        group = get_placement_group(group_name(name, generation))
    except ValueError:
        return False
    try:
        if placement_group_table(group)["stats"]["scheduling_state"] != "INFEASIBLE":
            group.wait(_PLACING_SECONDS)
    finally:
        remove_placement_group(group)
    return True


def node_of_process(name: str, process: int, generation: int = 1) -> str:
    """Return the node of one of `Deployment.processes`; empty if Ray is looking for one, or nothing is reserved.

    A node that has just died counts until Ray notices.
    """
    try:
        table = placement_group_table(get_placement_group(group_name(name, generation)))
    except ValueError:
        return ""
    return str(table["bundles_to_node_id"].get(process) or "")


def _check(who: str, needed: Mapping[str, float], there: Mapping[str, float]) -> None:
    short = {name: amount for name, amount in needed.items() if amount > there.get(name, 0.0)}
    if short:
        available = {name: there.get(name, 0.0) for name in short}
        raise InputError(
            f"the stages need {_format_resources(short)}; {who} {_format_resources(available)}. Nodes declare their "
            f"resources when they join: ray start --address=... --resources='{{\"{next(iter(short))}\": 1}}'"
        )


def _format_resources(resources: Mapping[str, float]) -> str:
    return ", ".join(f"{name} {amount:g}" for name, amount in sorted(resources.items()))


def _labels(deployment: Deployment) -> str:
    wanted = sorted({f"{name}={value}" for stage in deployment.stages for name, value in stage.labels.items()})
    return f", on nodes with the labels {', '.join(wanted)}" if wanted else ""
