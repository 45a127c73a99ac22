"""Allocator ``anytime``: take the mix of GPUs that leaves most room for the services expected next."""

from __future__ import annotations

from weakref import WeakKeyDictionary

import msgspec
import numpy as np

from tvm_sched.errors import InputError

from ..bounds.mix_bound import Future, MixProgram
from ..problem.service import Service
from ..search.cluster_search import ClusterSearch, Embedding
from ..search.cluster_state import ClusterState
from .allocator_registry import ALLOCATORS, register

_PRIOR = 6.0
"""Requests that a demand which was not given is taken to have been seen for, equally spread."""

_EQUAL = 1e-7
"""Mixes whose worths differ by less, in services, are equal to the program."""


class AnytimeOptions(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Options of `anytime`.

    Parameters
    ----------
    demand : dict of str to float
        How often each service will be asked for; empty: as often as so far, from equal parts at the start.
    """

    demand: dict[str, float] = {}

    def __post_init__(self) -> None:
        if any(not weight >= 0 for weight in self.demand.values()):
            raise InputError(f"option demand is {self.demand}; numbers from 0 are allowed")


_programs: WeakKeyDictionary[ClusterSearch, MixProgram] = WeakKeyDictionary()


def best_future_use(state: ClusterState, demand: dict[str, float]) -> Future:
    """The further services that fit into a state, for a given demand or that seen so far."""
    program = _programs.get(state.search)
    if program is None or program.services != state.services:
        program = _programs[state.search] = MixProgram(state.search, list(state.services.values()))
    return program.solve(demand or _demand_so_far(state), state.kind_gpus, state.fibres)


def _demand_so_far(state: ClusterState) -> dict[str, float]:
    return {name: state.asked[name] + _PRIOR / len(state.services) for name in state.services}


@register("anytime", options=AnytimeOptions)
def anytime(state: ClusterState, service: Service, options: AnytimeOptions) -> Embedding | None:
    """Take the mix that costs future services least, by the duals of a linear program over mixes and the demand.

    All smallest mixes of a service are known, with the best cut on each, by a dynamic program (`ClusterSearch.mixes`). The
    program (`MixProgram`) uses what is free for as many services of the demand as it can; its duals say what GPUs of each
    kind and ways between racks are worth, and among mixes of equal worth the one that it uses most is taken. It is solved
    again for each request, so it follows what has happened. Circuits and racks are then chosen by a second dynamic program,
    with the fewest fibres, so that GPUs and fibres run out together (``cpp/cluster/embed.h``).

    A service that will not fit if the demand is to be met still gets the cheapest mix for which there is room.
    """
    search = state.search
    mixes = search.mixes(service)
    fitting = np.flatnonzero((mixes.gpus <= state.kind_gpus).all(axis=1))
    if not fitting.size:
        return None
    known = best_future_use(state, options.demand)
    worth, share = known.worth[service.name][fitting], known.shares[service.name][fitting]
    order = fitting[np.lexsort((mixes.gpus[fitting].sum(axis=1), -share, np.round(worth / _EQUAL)))]
    found = search.embed(search.chain(service), mixes.gpus[order], state.gpus, state.fibres)
    return None if found is None else found[1]


ALLOCATORS.alias("cluster-exact", "anytime")
