"""Random graphs for throughput partitioning, like the REGAL set of Archer et al. (ICML 2024), Appendix C.2."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from tvm_sched_runtime.pipeline import PartitionProblem, StageTensor

EDGE_PROBABILITY = 0.05
"""Probability of an edge in the Erdős–Rényi graphs."""
ATTACHED = 2
"""Edges of each new node of the Barabási–Albert graphs."""
NEIGHBOURS, REWIRED = 4, 0.3
"""Degree of the ring and share of its edges that lead elsewhere, in the Watts–Strogatz graphs."""
SIZE_MEAN, SIZE_DEVIATION = 50.0, 10.0
"""Distribution of tensor sizes: N(50, 10), from the paper."""
WORK_DEVIATION = 0.1
"""Deviation of the random part of a node's cost, as a fraction of all tensors: N(0, 0.1), from the paper."""
LOCAL_READS, LOCAL_REACH, LOCAL_TRANSFER = 2, 6, 2.7
"""Tensors that a node of `regal_local` reads, nodes before it that may have made them, and the time of a tensor's transfer
over what it adds to the cost of a node."""
PARAMETER_SHARE, PARAMETER_SCALE = 0.5, 4.0
"""Share of the nodes that have parameters in `with_short_memory`, and their mean size over that of a tensor."""
FAMILIES = ("Erdős–Rényi", "Barabási–Albert", "Watts–Strogatz")
"""Families of the base graphs, by ``seed % 3``."""


def regal_like(seed: int, nodes: int | None = None, *, own_share: bool = False) -> PartitionProblem:
    """Return a graph of 50 to 200 nodes, made directed by a random order.

    The paper names the base graphs by reference only; here they are, by ``seed % 3``, those of `FAMILIES`, with the
    parameters above. A node costs what its tensors cost, in and out, and a random fraction of
    all tensors' sizes, negative fractions cut off at 0. Bandwidth is 1. The paper's filter, graphs on which its
    memory scheduler finds it hard to be good, is left out.

    A fraction of all tensors lets one node dominate 64 stages: there the simple bound over the best partition rises, where
    the paper's falls to 0.33. With ``own_share`` the fraction is of what the node's own tensors cost. No
    choice of these two matches the paper's row at all numbers of stages; the paper leaves the graphs' degrees open.
    """
    random = np.random.default_rng(seed)
    n = int(random.integers(50, 201)) if nodes is None else nodes
    kind = (_erdos_renyi, _barabasi_albert, _watts_strogatz)[seed % 3]
    order = random.permutation(n)
    readers: list[set[int]] = [set() for _ in range(n)]
    for a, b in kind(n, random):
        source, target = sorted((int(order[a]), int(order[b])))
        readers[source].add(target)
    size = np.maximum(random.normal(SIZE_MEAN, SIZE_DEVIATION, n), 0)
    fraction = np.maximum(random.normal(0, WORK_DEVIATION, n), 0)
    extra = fraction * size.sum()
    work = size.copy() if own_share else size + extra
    for source, targets in enumerate(readers):
        for target in targets:
            work[target] += size[source]
    if own_share:
        work += fraction * work
    tensors = [StageTensor(v, tuple(sorted(readers[v])), float(size[v]), float(size[v])) for v in range(n)]
    return PartitionProblem([str(v) for v in range(n)], work, np.zeros(n), tensors)


def regal_local(seed: int) -> PartitionProblem:
    """A graph whose simple bounds fit the row `simple` of the paper's Table 3: 50 to 200 nodes that read what is near.

    A node reads `LOCAL_READS` of the `LOCAL_REACH` nodes before it. It costs what its tensors cost, in and out, and a
    random fraction of that, as `regal_like` with ``own_share``; a transfer costs `LOCAL_TRANSFER` times what the tensor
    adds to a node. Reach, reads and that factor were fitted to the six figures of one row, so graphs of another kind may
    fit them as well: which kinds REGAL drew, how bytes become time, and what its filter kept cannot be known from the row.
    """
    random = np.random.default_rng(seed)
    n = int(random.integers(50, 201))
    readers: list[set[int]] = [set() for _ in range(n)]
    for v in range(1, n):
        near = np.arange(max(0, v - LOCAL_REACH), v)
        for u in random.choice(near, size=min(LOCAL_READS, len(near)), replace=False):
            readers[int(u)].add(v)
    size = np.maximum(random.normal(SIZE_MEAN, SIZE_DEVIATION, n), 0)
    work = size.copy()
    for source, targets in enumerate(readers):
        for target in targets:
            work[target] += size[source]
    work *= 1 + np.maximum(random.normal(0, WORK_DEVIATION, n), 0)
    times = LOCAL_TRANSFER * size
    tensors = [StageTensor(v, tuple(sorted(readers[v])), float(times[v]), float(size[v])) for v in range(n)]
    return PartitionProblem([str(v) for v in range(n)], work, np.zeros(n), tensors)


def with_short_memory(problem: PartitionProblem, seed: int, stages: int, share: float) -> PartitionProblem:
    """Return the graph with parameters, and a memory of ``share`` of what one of the stages has of them if all have as much.

    Each node has parameters with probability `PARAMETER_SHARE`, of N(50, 10) times `PARAMETER_SCALE` bytes. A byte of
    them streams in the time in which a byte of a tensor travels (one bandwidth, as in equations (1) and (2) of the paper).
    The paper says nothing of the parameters of its REGAL graphs: these two numbers are ours. Activations take their
    part of the memory, so that parameters overflow in part even at a share of 1. An infinite share: nothing overflows.
    """
    random = np.random.default_rng((seed, 1))
    size = PARAMETER_SCALE * np.maximum(random.normal(SIZE_MEAN, SIZE_DEVIATION, problem.size), 0)
    size[random.random(problem.size) >= PARAMETER_SHARE] = 0
    byte_time = max((tensor.transfer / tensor.size for tensor in problem.tensors if tensor.size), default=1.0)
    return replace(problem, parameters=size, memory=share * float(size.sum()) / stages, overflow_time=byte_time)


def _erdos_renyi(n: int, random: np.random.Generator) -> Iterator[tuple[int, int]]:
    first, second = np.triu_indices(n, 1)
    for i in np.flatnonzero(random.random(len(first)) < EDGE_PROBABILITY):
        yield int(first[i]), int(second[i])


def _barabasi_albert(n: int, random: np.random.Generator) -> Iterator[tuple[int, int]]:
    """Join each new node to others in proportion to their degrees."""
    ends = list(range(min(ATTACHED, n)))
    for v in range(ATTACHED, n):
        chosen: set[int] = set()
        while len(chosen) < ATTACHED:
            chosen.add(ends[int(random.integers(len(ends)))])
        for u in sorted(chosen):
            yield u, v
            ends += [u, v]


def _watts_strogatz(n: int, random: np.random.Generator) -> Iterator[tuple[int, int]]:
    for v in range(n):
        for distance in range(1, NEIGHBOURS // 2 + 1):
            other = (v + distance) % n
            if random.random() < REWIRED:
                other = int(random.integers(n))
            if other != v:
                yield v, other
