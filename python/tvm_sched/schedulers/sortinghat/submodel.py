"""Constants of one program (SortingHat, Table 1), and evaluation of an assignment of its nodes to subgraphs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import inf

from tvm_sched_runtime.problem.graph import neighbours


@dataclass(frozen=True)
class Submodel:
    """Constants of one program. Times are nanoseconds, sizes bytes; infinity forbids.

    Nodes are numbered: operators in topological order, then placeholders (operators of earlier submodels whose results
    are read here), then parameters (graph inputs and parameters that are read here). Devices are numbered from 0,
    subgraphs from 1; device ``d`` has the subgraphs ``d q + 1`` to ``(d + 1) q``. Subgraphs of odd number run with direct
    host access. Subgraph 0 holds the parameters that stay in host memory.
    """

    operators: int
    placeholders: int
    parameters: int
    """Number of nodes of each sort."""
    edges: list[tuple[int, int]]
    q: int
    """Subgraphs of a device, an even number."""
    buses: list[list[int]]
    """Devices that take turns on a bus, in order. Each device is in one; one that shares host memory is alone."""
    memory: list[int]
    """Memory of each device (``M``)."""
    size: list[list[int]]
    """By node and device: bytes of the node if it is new there (``m``)."""
    kernel: list[list[float]]
    direct: list[list[float]]
    """Latency by node and device, without and with direct host access (``P^GPU``, ``P^DHA``); 0 for other nodes."""
    load: list[list[float]]
    """Load time by node and device (``m T_0``); 0 for nodes that are no parameters or are there already."""
    copy: list[list[list[float]]]
    """Copy time by node, source and target (``m T``); 0 if the target has the node already."""
    fixed: dict[int, int]
    """Nodes whose device is known (``FixedNodes``)."""
    memory_used: list[int]
    """Bytes in use on each device (``PrevM``)."""
    transfers_end: list[float]
    """Time at which each bus is free (``PrevDTFin``)."""
    device_end: list[float]
    """Time at which each device is free (``PrevSGFin``)."""

    @property
    def devices(self) -> range:
        """All devices."""
        return range(len(self.memory))

    @property
    def nodes(self) -> range:
        """All nodes."""
        return range(self.operators + self.placeholders + self.parameters)

    @property
    def parameter_nodes(self) -> range:
        """Nodes that are parameters or graph inputs (``W``)."""
        return range(self.operators + self.placeholders, len(self.nodes))

    @property
    def subgraphs(self) -> range:
        """All subgraphs of devices, from 1."""
        return range(1, len(self.devices) * self.q + 1)

    def device_of(self, j: int) -> int:
        """Return the device of subgraph ``j``."""
        return (j - 1) // self.q

    def of_device(self, d: int) -> range:
        """Return the subgraphs of a device."""
        return range(d * self.q + 1, (d + 1) * self.q + 1)

    def time(self, node: int, j: int) -> float:
        """Return the time of a node in subgraph ``j``; infinite if it cannot be there."""
        return (self.direct if j % 2 else self.kernel)[node][self.device_of(j)]

    @cached_property
    def turns(self) -> list[list[int]]:
        """For each bus, subgraphs in the order in which they load: devices take turns (Figure 7(d))."""
        return [[d * self.q + 1 + turn for turn in range(self.q) for d in devices] for devices in self.buses]

    @cached_property
    def readers(self) -> list[list[int]]:
        """The readers of each node."""
        return neighbours(len(self.nodes), self.edges)

    @cached_property
    def read(self) -> list[list[int]]:
        """The nodes that each node reads."""
        return neighbours(len(self.nodes), ((v, u) for u, v in self.edges))

    @cached_property
    def base(self) -> float:
        """The earliest time of this submodel."""
        return min([*self.transfers_end, *self.device_end])

    def places(self, node: int) -> list[int]:
        """Return the subgraphs that equations (3) and (4) and a node's latencies allow it."""
        if node in self.fixed:
            return [self.of_device(self.fixed[node])[0]]
        if node in self.parameter_nodes:
            return [0, *(j for j in self.subgraphs if self.load[node][self.device_of(j)] < inf)]
        return [j for j in self.subgraphs if self.time(node, j) < inf]


@dataclass(frozen=True)
class Times:
    """Times of loads and runs of an assignment's subgraphs (equations (12) to (23)); lists by subgraph, 0 unused."""

    load_start: list[float]
    load_end: list[float]
    start: list[float]
    end: list[float]
    total: float

    @property
    def rank(self) -> tuple[float, float]:
        """Sort key, lower is better: the total, then how early the work is done."""
        return self.total, sum(self.end) + sum(self.load_end)


def copies_into(s: Submodel, subgraph: Sequence[int], j: int, members: Sequence[int]) -> Iterator[tuple[int, int]]:
    """Yield (node, source) for each node that subgraph ``j`` reads from another device: ``CopyIn`` of equation (10)."""
    seen = set()
    for v in members:
        for u in s.read[v]:
            if u not in seen and subgraph[u] not in (0, j):
                seen.add(u)
                if s.device_of(subgraph[u]) != s.device_of(j):
                    yield u, s.device_of(subgraph[u])


def evaluate(s: Submodel, subgraph: Sequence[int]) -> Times | None:
    """Return the times of an assignment by the program's equations, without a solver; None if it breaks one.

    Parameters
    ----------
    subgraph : sequence of int
        Subgraph of each node. O(subgraphs + edges).
    """
    if not (_modes_agree(s, subgraph) and _memory_suffices(s, subgraph) and _nothing_comes_back(s, subgraph)):
        return None
    count = len(s.subgraphs) + 1
    members: list[list[int]] = [[] for _ in range(count)]
    for v in range(s.operators + s.placeholders):
        members[subgraph[v]].append(v)
    load_start, load_end = _loads(s, subgraph, count)
    start, end = [0.0] * count, [0.0] * count
    order = _order(s, subgraph, members)
    if order is None:
        return None
    for j in order:
        d = s.device_of(j)
        begin = s.device_end[d] if j % s.q == 1 else end[j - 1]
        busy = 0.0
        for v in members[j]:
            busy += s.time(v, j)
            for u in s.read[v]:
                if u in s.parameter_nodes:
                    begin = max(begin, load_end[subgraph[u]] if subgraph[u] else 0.0)
                elif subgraph[u] != j:
                    begin = max(begin, end[subgraph[u]])
        busy += sum(s.copy[u][source][d] for u, source in copies_into(s, subgraph, j, members[j]))
        if busy == inf:
            return None
        start[j], end[j] = begin, begin + busy
    return Times(load_start, load_end, start, end, max(end[s.of_device(d)[-1]] for d in s.devices))


def _loads(s: Submodel, subgraph: Sequence[int], count: int) -> tuple[list[float], list[float]]:
    """Equations (12) to (14)."""
    busy = [0.0] * count
    for w in s.parameter_nodes:
        if subgraph[w] and w not in s.fixed:
            busy[subgraph[w]] += s.load[w][s.device_of(subgraph[w])]
    start, end = [0.0] * count, [0.0] * count
    for before, turns in zip(s.transfers_end, s.turns, strict=True):
        at = before
        for j in turns:
            start[j], at = at, at + busy[j]
            end[j] = at
    return start, end


def _order(s: Submodel, subgraph: Sequence[int], members: list[list[int]]) -> list[int] | None:
    """Sort the subgraphs topologically; return None if some wait for each other."""
    after: list[set[int]] = [set() for _ in members]
    waiting = [0] * len(members)
    for j in s.subgraphs:
        before = {subgraph[u] for v in members[j] for u in s.read[v] if u not in s.parameter_nodes} - {j}
        if j % s.q != 1:
            before.add(j - 1)
        waiting[j] = len(before)
        for i in before:
            after[i].add(j)
    free = [j for j in s.subgraphs if not waiting[j]]
    order = []
    while free:
        j = free.pop()
        order.append(j)
        for i in after[j]:
            waiting[i] -= 1
            if not waiting[i]:
                free.append(i)
    return order if len(order) == len(s.subgraphs) else None


def _modes_agree(s: Submodel, subgraph: Sequence[int]) -> bool:
    """Equations (3) to (5)."""
    for node, d in s.fixed.items():
        if subgraph[node] != s.of_device(d)[0]:
            return False
    for v in range(s.operators):
        if subgraph[v] == 0 or s.time(v, subgraph[v]) == inf:
            return False
    return all((subgraph[w] == 0) == (subgraph[v] % 2 == 1) for w in s.parameter_nodes for v in s.readers[w])


def _nothing_comes_back(s: Submodel, subgraph: Sequence[int]) -> bool:
    """Equations (6) to (8) for parameters, which count as members of their subgraphs; for operators see `_order`."""
    for w in s.parameter_nodes:
        if subgraph[w]:
            stack = [v for v in s.readers[w] if subgraph[v] != subgraph[w]]
            seen = set(stack)
            while stack:
                v = stack.pop()
                if subgraph[v] == subgraph[w]:
                    return False
                ahead = [r for r in s.readers[v] if r not in seen]
                seen.update(ahead)
                stack += ahead
    return True


def _memory_suffices(s: Submodel, subgraph: Sequence[int]) -> bool:
    """Equation (11)."""
    held = list(s.memory_used)
    into: set[tuple[int, int]] = set()
    for v in s.nodes:
        if subgraph[v]:
            held[s.device_of(subgraph[v])] += s.size[v][s.device_of(subgraph[v])]
            for r in s.readers[v]:
                if subgraph[r] != subgraph[v] and (v, subgraph[r]) not in into:
                    into.add((v, subgraph[r]))
                    if s.device_of(subgraph[r]) != s.device_of(subgraph[v]):
                        held[s.device_of(subgraph[r])] += s.size[v][s.device_of(subgraph[r])]
    return all(h <= m for h, m in zip(held, s.memory, strict=True))
