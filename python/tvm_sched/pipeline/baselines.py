"""Baseline partitioners: equal split, PipeDream's chain program, the program over ideals of Tarnawski et al."""

from __future__ import annotations

from dataclasses import replace

import msgspec
import numpy as np

from tvm_sched_runtime.errors import InfeasibleError
from tvm_sched_runtime.problem.partition_problem import Floats, Integers, PartitionProblem

from ..registry import NoOptions
from .partitioner_registry import Partition, register
from .segments import least_bottleneck
from .slicegraph import cut


@register("equal-split", options=NoOptions)
def equal_split(problem: PartitionProblem, stages: int, options: NoOptions) -> Partition:
    """Cut one topological order into segments of about equal work; transfers are ignored."""
    order = problem.kahn(np.zeros(problem.size))
    middle = np.cumsum(problem.work[order]) - problem.work[order] / 2
    total = float(problem.work.sum())
    stage_of = np.zeros(problem.size, dtype=np.int64)
    if total > 0:
        stage_of[order] = np.minimum(middle * stages // total, stages - 1)
    return Partition(stage_of)


@register("pipedream", options=NoOptions)
def pipedream(problem: PartitionProblem, stages: int, options: NoOptions) -> Partition:
    """PipeDream's dynamic program over a chain of layers: stages and the transfers between them overlap.

    Narayanan et al., "PipeDream: Generalized Pipeline Parallelism for DNN Training" (SOSP 2019), Section 3.1, on one
    topological order; without replication of stages, and with transfers of one direction, since there is no backward
    pass. A stage costs the larger of its work and the transfers to later stages. O(nodes² stages).
    """
    order = problem.kahn(np.zeros(problem.size))
    work = np.concatenate([[0.0], np.cumsum(problem.work[order])])
    cost = np.maximum(work[None, :] - work[:, None], _crossing(problem, order)[None, :])
    cost[np.tril_indices(len(work), -1)] = np.inf
    np.fill_diagonal(cost, 0)
    ends = least_bottleneck([cost] * stages).ends
    return Partition(problem.stages_of(order, ends), order=order)


def _crossing(problem: PartitionProblem, order: Integers) -> Floats:
    """Return the transfer time of the tensors that cross each cut of an order, shape (nodes + 1,)."""
    position = np.empty(problem.size, dtype=np.int64)
    position[order] = np.arange(problem.size)
    change = np.zeros(problem.size + 2)
    for tensor in problem.tensors:
        if tensor.producer >= 0 and tensor.readers:
            change[position[tensor.producer] + 1] += tensor.transfer
            change[max(position[v] for v in tensor.readers) + 1] -= tensor.transfer
    return np.cumsum(change)[: problem.size + 1]


class TarnawskiOptions(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Options of `tarnawski-dp`.

    Parameters
    ----------
    most_ideals : int
        Graphs with more ideals are refused. Time grows with the square of their number, memory linearly.
    time_limit : float
        Seconds.
    """

    most_ideals: int = 20_000
    time_limit: float = float("inf")


@register("tarnawski-dp", options=TarnawskiOptions)
def tarnawski_dp(problem: PartitionProblem, stages: int, options: TarnawskiOptions) -> Partition:
    """Dynamic programming over ideals: the best partition, for graphs with few ideals.

    Tarnawski et al., "Efficient Algorithms for Device Placement of DNN Graph Operators" (NeurIPS 2020), Section 5.1:
    time per sample with contiguous stages, without replication. The program leaves out peak memory, which matters only
    if parameters overflow. If the whole graph fits into one stage, nothing overflows, and the cost is a lower bound.

    Raises
    ------
    InfeasibleError
        There are more ideals than allowed, or the time limit was met.
    """
    order = problem.kahn(np.zeros(problem.size))
    start = cut(problem, order, stages)
    cost = problem.bottleneck(start, order)
    count, stopped, optimum = problem.ideals(
        stages, most=options.most_ideals, limit=np.nextafter(cost, np.inf), seconds=options.time_limit
    )
    if count > options.most_ideals:
        raise InfeasibleError(
            f"the graph has more than {options.most_ideals} ideals, so the program over ideals would look at up to "
            f"{options.most_ideals**2 // 2:.2g} pairs or more; raise the option most_ideals, or use slicegraph"
        )
    if stopped:
        raise InfeasibleError(f"the time limit of {options.time_limit:g} s was over before all ideals were done")
    best = Partition(start, order=order) if optimum is None else Partition(optimum)
    if not problem.fits_anywhere:
        return best
    return replace(best, bound=problem.bottleneck(best.stage_of), bound_name="ideals")
