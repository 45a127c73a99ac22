"""Allocators by name: each maps a state and a service to an embedding in what is free; `place` calls one."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from ..errors import InfeasibleError, InputError
from ..registry import Methods
from .placement import ServicePlacement
from .search import Embedding
from .service import Request, Service
from .state import ClusterState

AllocatorFunction = Callable[[ClusterState, Service, Any], "Embedding | None"]
"""It leaves the state as it is; None says that it found no place."""

ALLOCATORS: Methods[AllocatorFunction] = Methods("allocator", "tvm_sched.allocators")
register, names, get = ALLOCATORS.register, ALLOCATORS.names, ALLOCATORS.get


def try_place(
    state: ClusterState,
    request: Request,
    allocator: str = "anytime",
    options: Mapping[str, Any] | msgspec.Struct | None = None,
) -> ServicePlacement | None:
    """As `place`, but None where the allocator finds no place."""
    method = get(allocator)
    allocator = method.name
    chosen = method.read_options(options)
    service = state.service(request.service)
    if request.name in state.running or request.name in state.waiting:
        raise InputError(f"request {request.name!r} runs or waits already; release it first, or give another name")
    state.asked[service.name] += 1
    begin = time.perf_counter()
    found = method.function(state, service, chosen)
    seconds = time.perf_counter() - begin
    if found is None:
        return None
    placement = state.draft(request, found, allocator, seconds)
    state.hold(placement)
    return placement


def place(
    state: ClusterState,
    request: Request,
    allocator: str = "anytime",
    options: Mapping[str, Any] | msgspec.Struct | None = None,
) -> ServicePlacement:
    """Place a request on what is free, and check the answer by every rule.

    Raises
    ------
    InputError
        No such allocator, option or service, or the request runs already.
    InfeasibleError
        No place was found; says which requirement fails, by how much, on the best candidate.
    SchedulerError
        The allocator's answer breaks a rule.
    """
    placement = try_place(state, request, allocator, options)
    if placement is None:
        from .explain import explain

        raise InfeasibleError(f"request {request.name!r}: {explain(state, state.service(request.service))}")
    return placement
