"""Allocators by name: each maps a state and a service to an embedding in what is free; `place` calls one."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import msgspec

from ..errors import InfeasibleError, InputError
from ..schedulers.registry import NoOptions, read_options
from .placement import Placement
from .search import Embedding
from .service import Request, Service
from .state import ClusterState

AllocatorFunction = Callable[[ClusterState, Service, Any], "Embedding | None"]


@dataclass(frozen=True)
class Allocator:
    """An allocator as registered; ``options`` is a frozen struct with defaults."""

    name: str
    function: AllocatorFunction
    options: type[msgspec.Struct]
    summary: str


_registry: dict[str, Allocator] = {}


def register(name: str, options: type[msgspec.Struct] = NoOptions) -> Callable[[AllocatorFunction], AllocatorFunction]:
    """Decorator that makes a function ``(state, service, options) -> Embedding or None`` an allocator.

    It leaves the state as it is; None says that it found no place.
    """

    def add(function: AllocatorFunction) -> AllocatorFunction:
        summary = (function.__doc__ or "").strip().split("\n")[0]
        _registry[name] = Allocator(name, function, options, summary)
        return function

    return add


def names() -> list[str]:
    """Names of all allocators."""
    return sorted(_registry)


def get(name: str) -> Allocator:
    """The allocator of that name; raises `InputError` that lists those there are."""
    if name not in _registry:
        raise InputError(f"there is no allocator {name!r}; there are {', '.join(names())}")
    return _registry[name]


def try_place(
    state: ClusterState,
    request: Request,
    allocator: str = "cluster-exact",
    options: Mapping[str, Any] | msgspec.Struct | None = None,
) -> Placement | None:
    """As `place`, but None where the allocator finds no place."""
    method = get(allocator)
    chosen = read_options("allocator", allocator, method.options, options)
    service = state.service(request.service)
    if request.name in state.running:
        raise InputError(f"request {request.name!r} runs already; release it first, or give another name")
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
    allocator: str = "cluster-exact",
    options: Mapping[str, Any] | msgspec.Struct | None = None,
) -> Placement:
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
