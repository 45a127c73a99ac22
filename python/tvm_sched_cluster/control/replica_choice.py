"""Choose among the deployments of a service: its replicas, and both places while it moves."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from tvm_sched_runtime.errors import InputError, ServingError

from .store import Store


def least_busy(store: Store, name: str, status: Callable[[str], Mapping[str, Any]]) -> str:
    """Return the deployment of a service that has the fewest requests under way.

    Parameters
    ----------
    name : str
        Of the service, or of its replicas without their numbers.
    status : callable
        As `tvm_sched_cluster.serving.status`, which gives ``in_flight`` and ``waiting``; a deployment for which it raises
        `InputError` or `ServingError` is left out.

    Raises
    ------
    InputError
        No such service is wanted.
    ServingError
        None of its deployments answers.
    """
    busy: dict[str, int] = {}
    found = store.serving(name)
    for deployment in found:
        try:
            now = status(deployment)
        except (InputError, ServingError):
            continue
        busy[deployment] = now["in_flight"] + now["waiting"]
    if not busy:
        raise ServingError(
            f"no deployment of {name!r} answers; by the store {', '.join(found) or 'none'} should serve (see `tvm-sched "
            "cluster events`)"
        )
    return min(busy, key=busy.__getitem__)
