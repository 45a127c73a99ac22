"""A lower bound from single nodes: the stage of a node costs at least as much as the cheapest set that contains it."""

from __future__ import annotations

from collections.abc import Callable
from itertools import chain

import numpy as np
import numpy.typing as npt

from ...problem.partition_problem import Floats, PartitionProblem
from .matrix_cuts import paths

_RESOLUTION = 1 << 40
"""Capacities are whole numbers: the total of all times is about this many units, rounded down."""

_MOST_CONVEX = 5000
"""Nodes above which it is not looked up which of them paths join: time and room for that grow with their square."""


def node_bound(problem: PartitionProblem, stop: Callable[[], bool] = lambda: False) -> float:
    """The largest over all nodes of the least work and transfers of any set of nodes that a stage with it can be.

    A stage holds all nodes on the paths between its nodes: with an ancestor of the given node all on the paths from
    there, with a descendant all on the paths to there. Work and transfers of a set are a submodular function, so its
    least value over such sets is a minimum cut: a tensor is a hyperedge that is cut unless producer and readers are on
    one side. At least the largest work of a node, the other half of Lemma 3.3 of Archer et al. (ICML 2024). Nodes are
    tried in the order of what they cost alone, and those that cost less than the bound found so far cannot raise it.
    Overflow is not counted. Of more than `_MOST_CONVEX` nodes any sets count, paths or not.
    """
    return dearest_node(problem, stop)[0]


def dearest_node(problem: PartitionProblem, stop: Callable[[], bool] = lambda: False) -> tuple[float, int]:
    """`node_bound`, and the node that gives it."""
    alone = _costs_alone(problem)
    best = 0.0, 0
    network = _Network(problem)
    before = paths(problem) if problem.size <= _MOST_CONVEX else None
    for v in np.argsort(-alone, kind="stable"):
        if alone[v] <= best[0] or stop():
            break
        best = max(best, (network.least_cost(int(v), before), int(v)))
    return best


def _costs_alone(problem: PartitionProblem) -> Floats:
    """Cost of each node alone in a stage, without overflow."""
    costs = problem.work.copy()
    for tensor in problem.tensors:
        costs[list(tensor.readers)] += tensor.transfer
        if tensor.producer >= 0 and (tensor.readers or tensor.leaves):
            costs[tensor.producer] += tensor.transfer
    return costs


class _Network:
    """The flow network: nodes, two for each tensor, and the outside as sink."""

    def __init__(self, problem: PartitionProblem) -> None:
        n, sink = problem.size, problem.size + 2 * len(problem.tensors)
        total = float(problem.work.sum()) + sum(t.transfer for t in problem.tensors)
        self.unit = max(total, 1e-300) / _RESOLUTION
        infinite = _RESOLUTION * 4
        arcs: list[tuple[int, int, int]] = [(v, sink, self._units(problem.work[v])) for v in range(n)]
        for t, tensor in enumerate(problem.tensors):
            inner, outer = n + 2 * t, n + 2 * t + 1
            arcs.append((inner, outer, self._units(tensor.transfer)))
            members = [*tensor.readers, *([tensor.producer] if tensor.producer >= 0 else [])]
            arcs += [(v, inner, infinite) for v in tensor.readers]
            if tensor.producer < 0:
                arcs.append((outer, sink, infinite))  # comes from outside: cut as soon as a reader is inside
                continue
            arcs.append((tensor.producer, inner, infinite))
            arcs += [(outer, v, infinite) for v in members]
            if tensor.leaves:
                arcs.append((outer, sink, infinite))
        self.sink, self.infinite = sink, infinite
        flat = np.array(list(chain.from_iterable(arcs)), dtype=np.int64).reshape(-1, 3)
        self.tails, self.heads, self.capacities = (np.ascontiguousarray(column) for column in flat.T)
        self.edges = np.array(problem.edges, dtype=np.int64).reshape(-1, 2)

    def _units(self, value: float) -> int:
        return int(float(value) / self.unit)

    def least_cost(self, v: int, before: npt.NDArray[np.bool_] | None) -> float:
        """Of sets with a node; where ``before`` says which paths there are, of those that a stage can be."""
        from ortools.graph.python import max_flow

        flow = max_flow.SimpleMaxFlow()
        flow.add_arcs_with_capacity(self.tails, self.heads, self.capacities)
        if before is not None:
            for beside, direction in ((before[:, v], 1), (before[v], -1)):
                near = beside | (np.arange(len(beside)) == v)
                first, second = self.edges[near[self.edges].all(axis=1)].T[::direction]
                flow.add_arcs_with_capacity(first, second, np.full(len(first), self.infinite))
        status = flow.solve(v, self.sink)
        return flow.optimal_flow() * self.unit if status == flow.OPTIMAL else 0.0
