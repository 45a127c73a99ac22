"""Keep services running: place them again after a failure, and move a few to make room."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

import msgspec

from tvm_sched.progress import report_progress
from tvm_sched_runtime.errors import InputError

from .allocators.allocator_registry import get, try_place
from .allocators.anytime_allocator import AnytimeOptions, best_future_use
from .problem.service import ServiceRequest
from .problem.service_placement import ServicePlacement
from .search.cluster_state import ClusterState


@dataclass(frozen=True)
class Recovery:
    """The services that `recover` placed again, and those that still wait.

    Attributes
    ----------
    replaced : tuple of ServicePlacement
        Services that run elsewhere now.
    waiting : tuple of ServiceRequest
        Requests without a place; they stay in `ClusterState.waiting`.

    Examples
    --------
    >>> from tvm_sched_cluster import fail
    >>> recovery = fail(state, placement.gpus[0])
    >>> [placement.request for placement in recovery.replaced], recovery.waiting
    (['r0'], ())
    """

    replaced: tuple[ServicePlacement, ...]
    waiting: tuple[ServiceRequest, ...]


@dataclass(frozen=True)
class Migration:
    """A move of a service to other GPUs.

    Attributes
    ----------
    before, after : ServicePlacement
    bytes : int
        Parameters that the new GPUs have to load.
    gain : float
        How many more services fit afterwards, by the linear program (`MixProgram`).

    Examples
    --------
    >>> from tvm_sched_cluster import Migration
    >>> Migration(placement, placement, bytes=chat.memory, gain=0.5).bytes
    24000000000
    """

    before: ServicePlacement
    after: ServicePlacement
    bytes: int
    gain: float


def fail(
    state: ClusterState,
    name: str,
    allocator: str = "anytime",
    options: Mapping[str, Any] | msgspec.Struct | None = None,
) -> Recovery:
    """Mark a GPU, server, rack or link as failed, and place its services again on the remaining ones.

    Raises
    ------
    InputError
        The cluster has no part of this name, or there is no such allocator or option.

    Examples
    --------
    >>> from tvm_sched_cluster import fail
    >>> recovery = fail(state, placement.gpus[0])
    >>> placement.gpus[0] in recovery.replaced[0].gpus
    False
    """
    get(allocator).read_options(options)
    state.fail(name)
    return recover(state, allocator, options)


def recover(
    state: ClusterState,
    allocator: str = "anytime",
    options: Mapping[str, Any] | msgspec.Struct | None = None,
) -> Recovery:
    """Place the waiting services, largest parameters first. They do not count as new requests.

    Call it after a release or a repair.

    Examples
    --------
    >>> from tvm_sched_cluster import fail, recover
    >>> fail(state, "rack1").waiting
    ()
    >>> [request.name for request in fail(state, "rack0").waiting]
    ['r0']
    >>> state.repair("rack1")
    >>> [placement.request for placement in recover(state).replaced]
    ['r0']
    """
    asked = state.asked.copy()
    replaced = []
    for request in sorted(state.waiting.values(), key=lambda request: -state.service(request.service).memory):
        del state.waiting[request.name]
        placement = try_place(state, request, allocator, options)
        if placement is None:
            state.waiting[request.name] = request
        else:
            replaced.append(placement)
    state.asked = asked
    return Recovery(tuple(replaced), tuple(state.waiting.values()))


def defragment(
    state: ClusterState, moves: int, options: AnytimeOptions | None = None, fixed: Collection[str] = ()
) -> list[Migration]:
    """Move at most ``moves`` services so that more services fit afterwards.

    A service is copied to free GPUs before its old ones are released, so it is never interrupted. Each step tries the
    services in the order of savings for each byte to move. The saving is the price of the present mix less that of the
    cheapest free one, at the prices of `MixProgram`. The first service whose move makes room is moved.

    Parameters
    ----------
    moves : int
        From 0.
    options : AnytimeOptions, optional
        Its ``demand`` says which services should fit afterwards.
    fixed : collection of str
        Requests whose services stay where they are.

    Raises
    ------
    InputError
        A negative number of moves.

    Examples
    --------
    >>> from tvm_sched_cluster import defragment
    >>> defragment(state, moves=2)
    []
    """
    if moves < 0:
        raise InputError(f"moves is {moves}; 0 or more are allowed")
    chosen = options or AnytimeOptions()
    done: list[Migration] = []
    while len(done) < moves:
        report_progress("moves", len(done), moves)
        move = _best_move(state, chosen, fixed)
        if move is None:
            break
        done.append(move)
    return done


_LEAST_GAIN = 1e-6
"""Least gain of a move, in services."""

_TRIES = 16
"""Most moves tried in a step."""


def _best_move(state: ClusterState, options: AnytimeOptions, fixed: Collection[str]) -> Migration | None:
    known = best_future_use(state, options.demand)
    hopes = []
    for placement in state.running.values():
        if placement.request in fixed:
            continue
        service = state.service(placement.service)
        mixes = state.search.mixes(service)
        mix = _mix(state, placement)
        rows = (mixes.gpus <= state.kind_gpus).all(axis=1)
        if not rows.any():
            continue
        now = _worth(state, known.worth[service.name], mixes.gpus, mix) + known.fibre * len(placement.hops)
        saving = now - float(known.worth[service.name][rows].min())
        if saving > _LEAST_GAIN:
            hopes.append((saving / max(service.memory, 1), placement))
    hopes.sort(key=lambda hope: (-hope[0], hope[1].request))
    for _, placement in hopes[:_TRIES]:
        if move := _try_move(state, placement, known.count, options):
            return move
    return None


def _worth(state: ClusterState, worths: Any, mixes: Any, mix: list[int]) -> float:
    """Return the price of the mix that a service runs on: that of the dearest smallest mix contained in it."""
    inside = (mixes <= mix).all(axis=1)
    return float(worths[inside].max()) if inside.any() else 0.0


def _mix(state: ClusterState, placement: ServicePlacement) -> list[int]:
    kinds = [state.cluster.gpus[state.cluster.gpu_id[gpu]].kind for gpu in placement.gpus]
    return [kinds.count(k) for k in range(len(state.cluster.kinds))]


def _try_move(state: ClusterState, before: ServicePlacement, room: float, options: AnytimeOptions) -> Migration | None:
    """Place a service a second time and release the first placement; undo both if no room is gained."""
    asked = state.asked.copy()
    after = try_place(state, ServiceRequest(f"{before.request} (moving)", before.service), "anytime", options)
    state.asked = asked
    if after is None:
        return None
    state.release(before.request)
    gain = best_future_use(state, options.demand).count - room
    state.release(after.request)
    if gain < _LEAST_GAIN:
        state.hold(before)
        return None
    named = msgspec.structs.replace(after, request=before.request)
    state.hold(named)
    return Migration(before, named, state.service(before.service).memory, gain)
