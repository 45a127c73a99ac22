"""Allocator ``anytime``: the mix of GPUs that leaves most room for the services that are likely to come."""

from __future__ import annotations

from dataclasses import replace
from weakref import WeakKeyDictionary

import msgspec
import numpy as np

from ..anytime import Budget, Incumbent, Turn, improve
from ..errors import InputError
from .bound import Future, MixProgram
from .registry import ALLOCATORS, register
from .search import ClusterSearch, Embedding
from .service import Service
from .state import ClusterState

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


def future(state: ClusterState, demand: dict[str, float]) -> Future:
    """What else fits into a state, for a demand that is given or seen."""
    program = _programs.get(state.search)
    if program is None or program.services != state.services:
        program = _programs[state.search] = MixProgram(state.search, list(state.services.values()))
    return program.solve(demand or _seen(state), state.kind_gpus, state.fibres)


def _seen(state: ClusterState) -> dict[str, float]:
    return {name: state.asked[name] + _PRIOR / len(state.services) for name in state.services}


class AllocationState(Incumbent[Embedding]):
    """The best place for a service so far; costs are what it takes from the future, in services.

    Parameters
    ----------
    state : ClusterState
    service : Service
    demand : dict of str to float
        As `AnytimeOptions.demand`.
    """

    def __init__(self, state: ClusterState, service: Service, demand: dict[str, float]) -> None:
        super().__init__()
        self.state, self.service, self.demand = state, service, demand


class CheapestMix:
    """The cheapest mix of GPUs by the duals of the linear program, for which there are circuits."""

    name = "cheapest mix"

    def step(self, state: AllocationState, budget: Budget) -> bool:
        """All mixes in turn until one can be embedded."""
        search, free = state.state.search, state.state
        mixes = search.mixes(state.service)
        fitting = np.flatnonzero((mixes.gpus <= free.kind_gpus).all(axis=1))
        if not fitting.size:
            return False
        known = future(free, state.demand)
        worth, share = known.worth[state.service.name][fitting], known.shares[state.service.name][fitting]
        rank = np.lexsort((mixes.gpus[fitting].sum(axis=1), -share, np.round(worth / _EQUAL)))
        order = fitting[rank]
        found = search.embed(search.chain(state.service), mixes.gpus[order], free.gpus, free.fibres)
        if found is not None:
            state.offer(found[1], float(worth[rank][found[0]]))
        return False


@register("anytime", options=AnytimeOptions)
def anytime(state: ClusterState, service: Service, options: AnytimeOptions) -> Embedding | None:
    """The mix that costs the future least, by the duals of a linear program over mixes and the demand.

    All smallest mixes of a service are known, with the best cut on each, by a dynamic program (`ClusterSearch.mixes`). The
    program (`MixProgram`) uses what is free for as many services of the demand as it can; its duals say what GPUs of each
    kind and ways between racks are worth, and among mixes of equal worth the one that it uses most is taken. It is solved
    anew for each request, so it follows what has happened. Circuits and racks are then chosen by a second dynamic program,
    with the fewest fibres, so that GPUs and fibres run out together (``cpp/cluster/embed.h``).

    A service that will not fit if the demand is to be met still gets the cheapest mix for which there is room.
    """
    found = AllocationState(state, service, options.demand)
    status = improve(found, [Turn(CheapestMix())], Budget())
    return found.best and replace(found.best, status=status)


ALLOCATORS.alias("cluster-exact", "anytime")
