"""The ant colony of the allocators ``rampa`` and ``ncar``: options, and the call of the search in C++."""

from __future__ import annotations

import msgspec

from tvm_sched_runtime.errors import InputError

from ..problem.service import Service
from ..search.cluster_search import Embedding
from ..search.cluster_state import ClusterState


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
    access_links : bool
        The link that joins a GPU to its rack's switch has a cost (5), too.
    free_walks : bool
        Ants walk to any switch that they have not passed. Without it they keep rules that the authors' program has and the
        text has not: at most 6 links, a step to the destination when it is next, and a second generation that stays in one
        rack if the first finds nothing.
    sub_agents : bool
        For each choice of GPUs a colony of its own seeks the links, with pheromones of its own.
    pool_links : bool
        A link's cost (5) sums over pairs of pools, not of GPUs, and the link of a pool to its switch costs, too.
    pool_choice : bool
        A pool attracts by pheromone and cost alone, however many GPUs are free in it.
    falling_costs : bool
        The free GPUs of a rack in (4) are counted anew after each stage.
    first_rise : bool
        No more stages are tried after the first number of them that is no cheaper.

    `TEXT` are the options that are on as the paper's text is read here, `PROGRAM` those of its authors' program.
    """

    agents: int = 20
    generations: int = 20
    decrease: float = 0.1
    increase: float = 100.0
    pheromone_weight: float = 2.0
    cost_weight: float = 1.0
    initial: float = 1000.0
    seed: int = 0
    access_links: bool = False
    free_walks: bool = False
    sub_agents: bool = False
    pool_links: bool = False
    pool_choice: bool = False
    falling_costs: bool = False
    first_rise: bool = False

    def __post_init__(self) -> None:
        for name in AntOptions.__struct_fields__:
            value, least = getattr(self, name), 1 if name in ("agents", "generations") else 0
            if not least <= value < 2**31:
                raise InputError(f"option {name} is {value}; a number from {least} is allowed")


TEXT = ("access_links", "free_walks")
PROGRAM = ("sub_agents", "pool_links", "pool_choice", "falling_costs", "first_rise")
"""Options that are on as the text has it, and in the authors' program."""


def send_ants(
    state: ClusterState, service: Service, options: AntOptions, least: int, most: int, fastest: bool = False
) -> Embedding | None:
    """Return what the ants find with ``least`` to ``most`` stages (0: any number), or None.

    They seek the least allocation cost, or with ``fastest`` the least cycle.
    """
    from ..search.native_search import AntSettings  # loads the library

    # Each request has a seed of its own, so that the ants do not walk the same paths each time.
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
        **{name: getattr(options, name) for name in TEXT + PROGRAM},
        fastest=fastest,
    )
    return state.search.ants(state.search.chain(service), state.gpus, state.fibres, settings)
