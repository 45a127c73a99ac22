"""`slicegraph`: the best cuts of topological orders, and the search over orders (Archer et al., ICML 2024, Section 4)."""

from __future__ import annotations

from typing import Literal

import msgspec

from tvm_sched_runtime.checks import require_at_least, require_seed
from tvm_sched_runtime.cores import cores
from tvm_sched_runtime.problem.partition_problem import Integers, PartitionProblem

from ..worker_pool import distribute
from .partitioner_registry import Partition, register

OrderSearch = Literal["brkga", "random", "mla", "mla-weighted"]
_OBJECTIVES = {"brkga": "slice", "random": "slice", "mla": "arrangement", "mla-weighted": "weighted-arrangement"}
_SEEDS_APART = 1_000_003
"""Distance between the seeds of two populations, so that neighbouring seeds of users share none."""


class SliceGraphOptions(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Options of `slicegraph`.

    Parameters
    ----------
    order : {"brkga", "random", "mla", "mla-weighted"}
        Search for orders: a biased random-key genetic algorithm on the cost itself, independent random keys, or the
        genetic algorithm on the minimum linear arrangement, whose best order is cut.
    evaluations : int
        Number of orders. The genetic algorithms have its square root as population and as number of generations.
    seed : int
    threads : int
        0: all cores. The answer does not depend on it.
    time_limit : float
        Seconds. If the limit ends the search, the answer depends on the machine.
    populations : int
        Number of separate genetic searches, each with its own seed; the best order of all is cut. Workers
        (`tvm_sched.worker_pool`) may share them, with the same answer.
    """

    order: OrderSearch = "brkga"
    evaluations: int = 10_000
    seed: int = 0
    threads: int = 0
    time_limit: float = float("inf")
    populations: int = 1


@register("slicegraph", options=SliceGraphOptions)
def slicegraph(problem: PartitionProblem, stages: int, options: SliceGraphOptions) -> Partition:
    """Search over topological orders, each cut optimally by dynamic programming (SliceGraph).

    Section 4 and Appendix C.1 of the paper: ``brkga-100`` and ``brkga-10000`` are ``evaluations`` 100 and 10,000.
    O(nodes² stages + edges) for each order at worst; about O(nodes²) with the pruning by the best cost so far.
    """
    require_at_least(options, evaluations=1, populations=1)
    require_seed(options.seed)
    seeds = [options.seed + _SEEDS_APART * i for i in range(options.populations)]
    orders = distribute(_population, [(problem, stages, options, seed) for seed in seeds])
    best = min(orders, key=lambda order: problem.slice(order, stages)[0])
    return Partition(cut(problem, best, stages), order=best)


def cut(problem: PartitionProblem, order: Integers, stages: int) -> Integers:
    """Return the stage of each node in the best cut of an order; stages run in that order."""
    _, ends = problem.slice(order, stages)
    return problem.stages_of(order, ends)


def _population(problem: PartitionProblem, stages: int, options: SliceGraphOptions, seed: int) -> Integers:
    """Return the best order of one genetic search; random keys are one generation of independent orders."""
    side = max(round(options.evaluations**0.5), 1)
    population, generations = (options.evaluations, 1) if options.order == "random" else (side, side)
    return problem.evolve(
        stages,
        objective=_OBJECTIVES[options.order],
        population=population,
        generations=generations,
        seed=seed,
        threads=options.threads or cores(),
        seconds=options.time_limit,
    )
