"""Cut a partition problem into parts whose transfers together are at most those of the whole."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from tvm_sched_runtime.problem.partition_problem import Integers, PartitionProblem, StageTensor

from .minorants import members


def consecutive(order: Integers, most: int) -> list[Integers]:
    """Return an order of nodes cut into pieces of about equal length, each of at most ``most`` nodes, sorted."""
    return [np.sort(piece) for piece in np.array_split(order, -(-len(order) // most))]


def induced(problem: PartitionProblem, parts: list[Integers]) -> list[PartitionProblem]:
    """Return the problem of each part; transfers of all parts together are at most those of the whole.

    A tensor counts only for the part with most of its members. There its first member in topological order counts as the
    producer. That changes no cost, but adds edges: paths must be taken from the whole problem. Proof: Lemma 8 of
    ``docs/proofs/partition_semidefinite.md``.
    """
    place = np.empty(problem.size, dtype=np.int64)
    place[problem.kahn(np.zeros(problem.size))] = np.arange(problem.size)
    part_of, number = np.empty(problem.size, dtype=np.int64), np.empty(problem.size, dtype=np.int64)
    for p, nodes in enumerate(parts):
        part_of[nodes], number[nodes] = p, np.arange(len(nodes))
    tensors: list[list[StageTensor]] = [[] for _ in parts]
    for tensor in problem.tensors:
        nodes = members(tensor)
        if len(nodes) == 0:
            continue
        p = int(np.bincount(part_of[nodes]).argmax())
        inside = nodes[part_of[nodes] == p]
        inside = number[inside[np.argsort(place[inside])]]
        first, *others = (int(v) for v in inside)
        if tensor.producer < 0:
            tensors[p].append(replace(tensor, readers=(first, *others)))
        else:
            tensors[p].append(replace(tensor, producer=first, readers=tuple(others)))
    return [
        replace(
            problem,
            names=[problem.names[v] for v in nodes],
            work=problem.work[nodes],
            parameters=problem.parameters[nodes],
            tensors=tensors[p],
        )
        for p, nodes in enumerate(parts)
    ]
