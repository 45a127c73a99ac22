"""Small partitioning problems and their optima by exhaustive search."""

import itertools
from random import Random

import numpy as np

from tvm_sched.bounds.partitions.matrix_cuts import paths
from tvm_sched_runtime.pipeline import PartitionProblem, StageTensor


def small_problem(seed, nodes=6, limited=False):
    """A random graph with integer times: outside tensors, outputs, several tensors of a node."""
    random = Random(seed)
    tensors = []
    for v in range(nodes):
        for _ in range(random.choice([0, 1, 1, 1, 2])):
            later = range(v + 1, nodes)
            readers = tuple(w for w in later if random.random() < 0.4)
            tensors.append(StageTensor(v, readers, random.randint(0, 20), random.randint(0, 20), random.random() < 0.2))
    for _ in range(random.randint(0, 2)):
        readers = tuple(v for v in range(nodes) if random.random() < 0.4)
        tensors.append(StageTensor(-1, readers, random.randint(0, 20), random.randint(0, 20)))
    work = np.array([random.randint(0, 30) for _ in range(nodes)], dtype=float)
    parameters = np.array([random.randint(0, 30) for _ in range(nodes)], dtype=float)
    names = [f"n{v}" for v in range(nodes)]
    return PartitionProblem(names, work, parameters, tensors, 40.0 if limited else float("inf"), 1.5)


def stage_cost(problem, inside, peak=0.0):
    """Equation (3), written a second time and straight from the paper; overflow with a given peak memory."""
    inside = set(inside)
    cost = sum(problem.work[v] for v in inside)
    for tensor in problem.tensors:
        here = inside.intersection(tensor.readers)
        if tensor.producer in inside:
            cost += tensor.transfer if tensor.leaves or len(here) < len(tensor.readers) else 0
        elif here:
            cost += tensor.transfer
    over = sum(problem.parameters[v] for v in inside) + peak - problem.memory
    return cost + (max(over, 0) * problem.overflow_time if np.isfinite(problem.memory) else 0)


def optimum(problem, stages):
    """The least bottleneck over all assignments whose edges lead to no earlier stage, without peak memory."""
    best = float("inf")
    for stage_of in itertools.product(range(stages), repeat=problem.size):
        if all(stage_of[u] <= stage_of[v] for u, v in problem.edges):
            lists = [[v for v in range(problem.size) if stage_of[v] == s] for s in range(stages)]
            best = min(best, max(stage_cost(problem, nodes) for nodes in lists))
    return best


def possible_stages(problem):
    """All sets of nodes that hold those on the paths between their nodes."""
    before = paths(problem)
    for chosen in itertools.product((False, True), repeat=problem.size):
        inside = np.array(chosen)
        if not (before[inside].any(axis=0) & before[:, inside].any(axis=1) & ~inside).any():
            yield np.flatnonzero(inside)
