"""Allocators ``rampa`` and ``ncar``: ant colony optimisation of the allocation cost."""

from __future__ import annotations

import msgspec

from tvm_sched.errors import InputError

from .registry import register
from .search import Embedding
from .service import Service
from .state import ClusterState


class AntOptions(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Settings of the ants, by default those of RAMPA's Table VII.

    Parameters
    ----------
    agents, generations : int
    decrease, increase : float
        Pheromones are multiplied by the first after each generation; the second, over the cost of the best solution so far
        of this many stages, is added to those of its GPUs and links (Table II: of the current best solution).
    pheromone_weight, cost_weight, initial : float
    seed : int
    """

    agents: int = 20
    generations: int = 20
    decrease: float = 0.1
    increase: float = 100.0
    pheromone_weight: float = 2.0
    cost_weight: float = 1.0
    initial: float = 1000.0
    seed: int = 0

    def __post_init__(self) -> None:
        for name in AntOptions.__struct_fields__:
            value, least = getattr(self, name), 1 if name in ("agents", "generations") else 0
            if not least <= value < 2**31:
                raise InputError(f"option {name} is {value}; a number from {least} is allowed")


class FixedStagesOptions(AntOptions, frozen=True, forbid_unknown_fields=True):
    """The same with a number of stages for each service.

    Parameters
    ----------
    stages : dict of str to int
        By name of the service; for services that are not named, the least number that this cluster allows.
    """

    stages: dict[str, int] = {}


def fixed_stages(state: ClusterState, service: Service, stages: dict[str, int]) -> int:
    """The number of stages of a service: as given, or the least that can serve it."""
    given = stages.get(service.name)
    if given is not None:
        if not 1 <= given <= len(service.blocks):
            raise InputError(f"stages of {service.name!r} are {given}; 1 to {len(service.blocks)} are allowed")
        return given
    mixes = state.search.mixes(service).gpus
    return int(mixes.sum(axis=1).min()) if len(mixes) else 1


def _send(state: ClusterState, service: Service, options: AntOptions, least: int, most: int) -> Embedding | None:
    from .native import AntSettings  # loads the library

    # Each request has a seed of its own, so that the ants do not walk the same ways each time.
    seed = options.seed * 1_000_003 + state.asked.total()
    settings = AntSettings(
        agents=options.agents,
        generations=options.generations,
        least_stages=least,
        most_stages=most,
        seed=seed,
        decrease=options.decrease,
        increase=options.increase,
        pheromone_weight=options.pheromone_weight,
        cost_weight=options.cost_weight,
        initial=options.initial,
    )
    return state.search.ants(state.search.chain(service), state.gpus, state.fibres, settings)


@register("rampa", options=AntOptions)
def rampa(state: ClusterState, service: Service, options: AntOptions) -> Embedding | None:
    """RAMPA: the least allocation cost over all numbers of stages, by ants (IEEE TCC 2025, Section IV-C).

    The cost of a GPU is FLOP/s x memory x free GPUs of its rack (equation 4), that of a link its part of the shortest
    paths between GPUs that matter (equation 5).
    """
    return _send(state, service, options, 1, 0)


@register("ncar", options=FixedStagesOptions)
def ncar(state: ClusterState, service: Service, options: FixedStagesOptions) -> Embedding | None:
    """NCAR: RAMPA's cost and ants with a fixed number of stages (IEEE TCC 2025, Section V-A4b)."""
    stages = fixed_stages(state, service, options.stages)
    return _send(state, service, options, stages, stages)
