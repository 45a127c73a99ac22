"""The registry of allocators, and `place`, which calls one and checks its answer."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from tvm_sched.certify import answer_of, run_method
from tvm_sched.registry import Methods
from tvm_sched_runtime.errors import InfeasibleError, InputError, ScheduleError

from ..problem.placement_rules import placement_violations
from ..problem.service import Service, ServiceRequest
from ..problem.service_placement import ServicePlacement
from ..search.cluster_search import Embedding
from ..search.cluster_state import ClusterState

AllocatorFunction = Callable[[ClusterState, Service, Any], "Embedding | None"]
"""Returns an embedding of a service in the free resources of a state, or None; it does not change the state."""

ALLOCATORS: Methods[AllocatorFunction] = Methods(
    "allocator",
    "tvm_sched.allocators",
    {
        name: f"{__package__}.{name}"
        for name in ("anytime_allocator", "best_fit", "fgd", "first_fit", "ncar", "pipeedge", "rampa")
    },
)
register, names, get = ALLOCATORS.register, ALLOCATORS.names, ALLOCATORS.get


def try_place(
    state: ClusterState,
    request: ServiceRequest,
    allocator: str = "anytime",
    options: Mapping[str, Any] | msgspec.Struct | None = None,
) -> ServicePlacement | None:
    """Place a request as `place` does, but return None if the allocator finds no place.

    Examples
    --------
    >>> from tvm_sched_cluster import try_place
    >>> [try_place(state, ServiceRequest(f"r{n}", "chat")) is None for n in (1, 2, 3, 4)]
    [False, True, True, True]
    """
    method = get(allocator)
    service = state.service(request.service)
    if request.name in state.running or request.name in state.waiting:
        raise InputError(f"request {request.name!r} runs or waits already; release it first, or give another name")
    method_options = method.read_options(options)
    state.asked[service.name] += 1

    kinds = (Embedding, type(None))
    result = run_method(method, method_options, kinds, lambda function, chosen: function(state, service, chosen))
    if result.answer is None:
        return None
    with answer_of(method):
        placement = state.draft(request, result.answer, result.method, result.seconds)
        for violation in placement_violations(state.cluster, service, placement):
            raise ScheduleError(violation.message)
    state.hold(placement)
    return placement


def place(
    state: ClusterState,
    request: ServiceRequest,
    allocator: str = "anytime",
    options: Mapping[str, Any] | msgspec.Struct | None = None,
) -> ServicePlacement:
    """Place a request on free GPUs and fibres, and check the answer by every rule.

    Raises
    ------
    InputError
        No such allocator, option or service, or the request runs already.
    InfeasibleError
        The allocator found no place. The message says which requirement fails, by how much, on the best candidate.
    SchedulerError
        The allocator's answer breaks a rule.

    Examples
    --------
    >>> placement = place(state, ServiceRequest("r1", "chat"))
    >>> placement.gpus, placement.throughput
    (('rack1-server0-gpu0', 'rack1-server0-gpu1'), 16.666666666666668)
    """
    placement = try_place(state, request, allocator, options)
    if placement is None:
        from .infeasibility import explain

        raise InfeasibleError(f"request {request.name!r}: {explain(state, state.service(request.service))}")
    return placement
