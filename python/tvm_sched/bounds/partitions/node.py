"""The bound ``node``: the stage of a node costs at least as much as the cheapest set that contains it."""

from __future__ import annotations

from collections.abc import Callable
from itertools import chain

import numpy as np
import numpy.typing as npt

from tvm_sched_runtime.problem.partition_problem import Floats, PartitionProblem

from .matrix_cuts import paths

_RESOLUTION = 1 << 40
"""Capacities are whole numbers, rounded down; all times together are about this many units."""

MOST_CONVEX = 5000
"""Largest number of nodes for which the network knows paths: time and memory grow with its square."""


def node_bound(problem: PartitionProblem, stop: Callable[[], bool] = lambda: False) -> float:
    """Bound the bottleneck by the cheapest set that the stage of a node can be; the largest over all nodes.

    Proof: Lemmas 1 and 2 of ``docs/proofs/partition_node.md``. Overflow is not counted. One minimum cut for each node that
    could raise the bound; at least the largest work of a node (half of Lemma 3.3 of Archer et al., ICML 2024).
    """
    return dearest_node(problem, stop)[0]


def dearest_node(problem: PartitionProblem, stop: Callable[[], bool] = lambda: False) -> tuple[float, int]:
    """Return `node_bound` and the node that attains it."""
    alone = _costs_alone(problem)
    best = 0.0, 0
    network = _Network(problem)
    before = paths(problem) if problem.size <= MOST_CONVEX else None
    for v in np.argsort(-alone, kind="stable"):
        if alone[v] <= best[0] or stop():
            break
        best = max(best, (network.least_cost(int(v), before), int(v)))
    return best


def _costs_alone(problem: PartitionProblem) -> Floats:
    """Return the cost of each node alone in a stage, without overflow."""
    costs = problem.work.copy()
    for tensor in problem.tensors:
        costs[list(tensor.readers)] += tensor.transfer
        if tensor.producer >= 0 and (tensor.readers or tensor.leaves):
            costs[tensor.producer] += tensor.transfer
    return costs


class _Network:
    """The network of Lemma 2: nodes, two vertices for each tensor, and a sink."""

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
        """Return the least cost of a set with a node; of sets that a stage can be, if ``before`` gives the paths."""
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
