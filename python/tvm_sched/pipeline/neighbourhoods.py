"""Neighbourhood search for partitions: the exact program cuts a few neighbouring stages again."""

from __future__ import annotations

import time
from dataclasses import replace

import numpy as np

from tvm_sched_runtime.problem.partition_problem import Integers, PartitionProblem, StageTensor

from .integer_programs import exact_program

_WIDTHS = (2, 3)
"""Numbers of neighbouring stages that are cut again."""


def part_of(problem: PartitionProblem, nodes: Integers) -> PartitionProblem:
    """Return the problem of some nodes; a stage costs the same in it as in the whole problem.

    Tensors of other nodes come from outside; tensors that other nodes read leave.
    """
    number = {int(v): i for i, v in enumerate(nodes)}
    tensors: list[StageTensor] = []
    for tensor in problem.tensors:
        readers = tuple(number[v] for v in tensor.readers if v in number)
        if tensor.producer in number:
            leaves = tensor.leaves or len(readers) < len(tensor.readers)
            tensors.append(replace(tensor, producer=number[tensor.producer], readers=readers, leaves=leaves))
        elif readers:
            tensors.append(replace(tensor, producer=-1, readers=readers, leaves=False))
    return replace(
        problem,
        names=[problem.names[v] for v in nodes],
        work=problem.work[nodes],
        parameters=problem.parameters[nodes],
        tensors=tensors,
    )


def improve_neighbours(
    problem: PartitionProblem, stage_of: Integers, stages: int, *, solver: str = "highs", seconds: float = 10.0
) -> tuple[Integers, bool]:
    """Cut the bottleneck stage again with its neighbours until that helps no more; the cost never rises.

    Each program has at most a sixth of the time, so the answer depends on the machine if the time is short. The programs
    leave out peak memory; their partitions are priced with it.

    Returns
    -------
    (array of int, bool)
        Stage of each node, and whether the last programs, which did not help, were all solved to the end.
    """
    end = time.monotonic() + seconds
    best, cost = stage_of, problem.bottleneck(stage_of)
    improved = whole = True
    while improved:
        improved, whole = False, True
        for group in _groups(problem, best, stages):
            left = end - time.monotonic()
            if left <= 0:
                return best, False
            candidate, proved = _cut_anew(problem, best, group, solver, min(left, seconds / 6), cost)
            whole &= proved
            if candidate is not None and (lower := problem.bottleneck(candidate)) < cost:
                best, cost, improved = candidate, lower, True
                break
    return best, whole


def _groups(problem: PartitionProblem, stage_of: Integers, stages: int) -> list[range]:
    """Return the groups of neighbouring stages with the bottleneck; small groups first."""
    costs = [problem.stage_cost(np.flatnonzero(stage_of == s)) for s in range(stages)]
    dearest = int(np.argmax(costs))
    firsts = ((first, width) for width in _WIDTHS for first in range(dearest - width + 1, dearest + 1))
    return [range(first, first + width) for first, width in firsts if first >= 0 and first + width <= stages]


def _cut_anew(
    problem: PartitionProblem, stage_of: Integers, group: range, solver: str, seconds: float, cutoff: float
) -> tuple[Integers | None, bool]:
    nodes = np.flatnonzero((stage_of >= group.start) & (stage_of < group.stop))
    hint = stage_of[nodes] - group.start
    result = exact_program(
        part_of(problem, nodes), len(group), solver=solver, seconds=seconds, hint=hint, cutoff=cutoff
    )
    if result.stage_of is None:
        return None, result.proved
    candidate = stage_of.copy()
    candidate[nodes] = result.stage_of + group.start
    return candidate, result.proved
