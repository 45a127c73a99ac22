"""The sequence of requests that is to be placed: from a file, random, or one for each named service."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from pathlib import Path

import msgspec

from tvm_sched_runtime.errors import InputError

from ..files.named_files import demand_of_services
from ..files.rampa_simulator_files import read_requests
from ..problem.service import ServiceRequest, requests_of
from .cluster_state import ClusterState


def request_sequence(
    state: ClusterState, file: Path | None, demand: str | None, services: Sequence[str], count: int, seed: int
) -> list[ServiceRequest]:
    """Make the requests of a file, of a random case or of named services, with names that no service has yet.

    Parameters
    ----------
    file : Path, optional
        Request sequence of RAMPA's simulator.
    demand : str, optional
        Case of random requests.
    services : sequence of str
        One request for each. ``SERVICE=REQUEST`` gives it a name.
    count, seed : int
        Of random requests.

    Raises
    ------
    InputError
        Not exactly one of ``file``, ``demand`` and ``services`` is given, a request is for an unknown service, or a name is
        empty or taken.
    """
    if (file is not None) + (demand is not None) + bool(services) != 1:
        raise InputError("give one of --requests FILE, --demand CASE and --service NAME")
    if count < 1:
        raise InputError(f"--count {count}: a number from 1 is allowed")
    if file is not None:
        requests = read_requests(file)
    elif demand is not None:
        requests = requests_of(demand_of_services(demand, list(state.services.values())), count, seed)
    else:
        parts = [one.partition("=") for one in services]
        requests = [ServiceRequest(name if separator else "", service) for service, separator, name in parts]
        if any(separator and not name for _, separator, name in parts):
            raise InputError("--service NAME=REQUEST: the request's name is empty")
    for request in requests:
        state.service(request.service)
    taken = {*state.running, *state.waiting}
    named = [request.name for request in requests if services and request.name]
    for position, name in enumerate(named):
        if name in taken or name in named[:position]:
            raise InputError(f"a request {name!r} runs or waits already; give another name")
    free = (name for i in itertools.count() if (name := f"r{i}") not in taken.union(named))
    return [
        request if services and request.name else msgspec.structs.replace(request, name=next(free))
        for request in requests
    ]
