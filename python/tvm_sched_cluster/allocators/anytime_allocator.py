"""Allocator ``anytime``: take the mix of GPUs that leaves most room for the services expected next."""

from __future__ import annotations

from weakref import WeakKeyDictionary

import msgspec
import numpy as np

from tvm_sched_runtime.errors import InputError

from ..bounds.mix_bound import Future, MixProgram
from ..problem.service import Service
from ..search.cluster_search import ClusterSearch, Embedding
from ..search.cluster_state import ClusterState
from .allocator_registry import register

_PRIOR = 6.0
"""Weight of the equal demand that is assumed before any request, in requests."""

_EQUAL = 1e-7
"""Mixes whose prices differ by less, in services, count as equally dear."""


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
    """Return how further services fit best into a state, for a given demand or the demand seen so far."""
    program = _programs.get(state.search)
    if program is None or program.services != state.services:
        program = _programs[state.search] = MixProgram(state.search, list(state.services.values()))
    return program.solve(demand or demand_so_far(state), state.kind_gpus, state.fibres)


def demand_so_far(state: ClusterState) -> dict[str, float]:
    """Return how often each service was asked for, with a prior of equal parts."""
    return {name: state.asked[name] + _PRIOR / len(state.services) for name in state.services}


@register("anytime", options=AnytimeOptions)
def anytime(state: ClusterState, service: Service, options: AnytimeOptions) -> Embedding | None:
    """Take the mix that costs future services least, by the duals of a linear program over mixes and the demand.

    A dynamic program finds all smallest mixes of the service, with the best cut for each (`ClusterSearch.mixes`). A linear
    program (`MixProgram`) fills the free resources with as many services of the demand as possible; its duals are prices of
    GPUs and fibres. The cheapest mix is taken, and among equal ones the mix that the linear program uses most. It is solved
    again for each request, so prices follow the state. A second dynamic program then chooses circuits and racks with the
    fewest fibres, so that GPUs and fibres run out together (``cpp/cluster/embed.h``).

    A service that is not in the demand's optimum still gets the cheapest mix that fits.
    """
    search = state.search
    mixes = search.mixes(service)
    fitting = np.flatnonzero((mixes.gpus <= state.kind_gpus).all(axis=1))
    if not fitting.size:
        return None
    known = best_future_use(state, options.demand)
    worth, share = known.worth[service.name][fitting], known.shares[service.name][fitting]
    order = fitting[np.lexsort((mixes.gpus[fitting].sum(axis=1), -share, np.round(worth / _EQUAL)))]
    placed = search.embed(search.chain(service), mixes.gpus[order], state.gpus, state.fibres)
    return None if placed is None else placed[1]
