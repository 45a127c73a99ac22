"""Explain why a service cannot be placed: which requirement fails, by how much, on the best candidate."""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from ..problem.service import Service
from ..search.cluster_search import ClusterSearch, Mixes
from ..search.cluster_state import ClusterState

_NEVER = 2**62
_EXACT = 1000
"""The least feasible limit is found to one part in this many."""
_MOST_COMPARED = 100
"""Most blocks of a service for which the best candidate is searched: that takes some twenty searches for mixes."""


def explain(state: ClusterState, service: Service) -> str:
    """Return a sentence on the first requirement that no mix of free GPUs meets.

    The requirements are looked at in the order memory, throughput, latency, circuits.
    """
    free = {kind.name: int(count) for kind, count in zip(state.cluster.kinds, state.kind_gpus, strict=True) if count}
    if not free:
        return f"service {service.name!r} needs a GPU, and none is free"
    there = ", ".join(f"{count} {name}" for name, count in free.items())
    return f"service {service.name!r} does not fit on the free GPUs ({there}): {_reason(state, service)}"


def _reason(state: ClusterState, service: Service) -> str:
    limits = service.cycle_limit_ns, service.latency_limit_ns
    if not len(_mixes(state, service, (_NEVER, _NEVER)).gpus):
        return _memory(state, service)
    short = len(service.blocks) <= _MOST_COMPARED
    if not len(_mixes(state, service, (limits[0], _NEVER)).gpus):
        if not short:
            return f"throughput: no mix of these GPUs reaches the required cycle of {limits[0] / 1e6:.3f} ms"
        cycle, best = _least_feasible_limit(limits[0], lambda ns: _mixes(state, service, (ns, _NEVER)))
        return (
            f"throughput: at best a cycle of {cycle / 1e6:.3f} ms on {_format_smallest_mix(state, best)}, "
            f"{limits[0] / 1e6:.3f} ms are required: {(cycle - limits[0]) / 1e6:.3f} ms too long"
        )
    fitting = _mixes(state, service, limits)
    if not len(fitting.gpus):
        if not short:
            return f"latency: no mix of these GPUs reaches the {limits[1] / 1e6:.3f} ms that are allowed"
        latency, best = _least_feasible_limit(limits[1], lambda ns: _mixes(state, service, (limits[0], ns)))
        return (
            f"latency: at best {latency / 1e6:.3f} ms on {_format_smallest_mix(state, best)}, "
            f"{limits[1] / 1e6:.3f} ms are allowed: {(latency - limits[1]) / 1e6:.3f} ms too long"
        )
    return (
        f"circuits: {_format_smallest_mix(state, fitting)} would do, but the free fibres ({int(state.fibres.sum())} of "
        f"{sum(link.fibres for link in state.cluster.links)}) do not join such GPUs, or only by circuits that take too long"
    )


def _memory(state: ClusterState, service: Service) -> str:
    """Say how much more memory each GPU of the best candidate needs."""

    def mixes(more: int) -> Mixes:
        kinds = tuple(msgspec.structs.replace(kind, memory=kind.memory + more) for kind in state.cluster.kinds)
        search = ClusterSearch(msgspec.structs.replace(state.cluster, kinds=kinds))
        return search.mixes_of(search.chain(service, (_NEVER, _NEVER)), state.kind_gpus)

    needed, best = _least_feasible_limit(1 << 20, mixes)
    return (
        f"memory: it holds {service.memory / 1e9:.3f} GB; on {_format_smallest_mix(state, best)}, the best candidate, "
        f"each GPU lacks up to {needed / 1e9:.3f} GB"
    )


def _mixes(state: ClusterState, service: Service, limits: tuple[int, int]) -> Mixes:
    return state.search.mixes_of(state.search.chain(service, limits), state.kind_gpus)


def _least_feasible_limit(start: int, mixes: Callable[[int], Mixes]) -> tuple[int, Mixes]:
    """Return the least limit at which there are mixes, to one part in `_EXACT`, and these mixes."""
    low, high = start, 2 * max(start, 1)
    while not len((feasible := mixes(high)).gpus):
        low, high = high, 2 * high
    while high - low > max(high // _EXACT, 1):
        middle = (low + high) // 2
        tried = mixes(middle)
        if len(tried.gpus):
            high, feasible = middle, tried
        else:
            low = middle
    return high, feasible


def _format_smallest_mix(state: ClusterState, mixes: Mixes) -> str:
    smallest = min(mixes.gpus.tolist(), key=sum)
    return " + ".join(f"{n} {kind.name}" for n, kind in zip(smallest, state.cluster.kinds, strict=True) if n)
