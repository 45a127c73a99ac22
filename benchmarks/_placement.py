"""Placement workloads of Tarnawski et al. (NeurIPS 2020): their format, their latency, bounds and a search.

Their model is not ours: an accelerator runs its operators as one piece, which begins when the last input is in host memory,
copies its inputs in, computes, and copies its outputs out, all in turn; parameters are there from the start; CPUs are
unlimited. So workloads are no `Problem`, whose copies run beside kernels and whose parameters must be loaded.
"""

from __future__ import annotations

import math
import os
import random
import time
from dataclasses import dataclass
from functools import cached_property

import msgspec

from tvm_sched.errors import FormatError

CPU = -1
Placement = list[int]
"""Accelerator of each group of operators, `CPU` for none."""


class _Node(msgspec.Struct):
    id: int
    supportedOnFpga: bool | int  # noqa: N815 - the file's name
    cpuLatency: float  # noqa: N815
    fpgaLatency: float  # noqa: N815
    size: float
    colorClass: int | None = None  # noqa: N815


class _Edge(msgspec.Struct):
    sourceId: int  # noqa: N815
    destId: int  # noqa: N815
    cost: float


class _File(msgspec.Struct):
    maxSizePerFPGA: float  # noqa: N815
    maxFPGAs: int  # noqa: N815
    nodes: list[_Node]
    edges: list[_Edge]


@dataclass(frozen=True)
class Workload:
    """A workload in integers; times in milliseconds, sizes in bytes.

    Attributes
    ----------
    cpu, accelerated : list of float
        Time of each operator on a CPU and on an accelerator (infinite where it cannot run there).
    size : list of float
        Bytes on an accelerator.
    cost : list of float
        Time that an operator's output takes between an accelerator and host memory.
    before, after : list of list of int
        Neighbours of each operator.
    groups : list of list of int
        Operators that are placed together, in a topological order of their first ones.
    """

    name: str
    cpu: list[float]
    accelerated: list[float]
    size: list[float]
    cost: list[float]
    before: list[list[int]]
    after: list[list[int]]
    groups: list[list[int]]
    accelerators: int
    memory: float

    @cached_property
    def order(self) -> list[int]:
        """A topological order."""
        waiting = [len(sources) for sources in self.before]
        free, order = [v for v, count in enumerate(waiting) if not count], []
        while free:
            v = free.pop()
            order.append(v)
            for w in self.after[v]:
                waiting[w] -= 1
                if not waiting[w]:
                    free.append(w)
        return order

    @cached_property
    def group_of(self) -> list[int]:
        found = [0] * len(self.cpu)
        for g, members in enumerate(self.groups):
            for v in members:
                found[v] = g
        return found

    def critical_path(self) -> float:
        """Longest path with each operator on its best kind of device and no copies: a lower bound."""
        ends = [0.0] * len(self.cpu)
        for v in self.order:
            ends[v] = max((ends[u] for u in self.before[v]), default=0.0) + min(self.cpu[v], self.accelerated[v])
        return max(ends, default=0.0)


def read_workload(path: str | os.PathLike[str]) -> Workload:
    """Read a workload's JSON file; raises `FormatError` where it is none, or its graph has a cycle."""
    where = os.fspath(path)
    try:
        with open(where, "rb") as file:
            found = msgspec.json.decode(file.read(), type=_File)
    except (OSError, msgspec.MsgspecError) as error:
        raise FormatError(f"{where}: not a placement workload ({error})") from None
    number = {node.id: k for k, node in enumerate(found.nodes)}
    before: list[list[int]] = [[] for _ in found.nodes]
    after: list[list[int]] = [[] for _ in found.nodes]
    cost = [0.0] * len(found.nodes)
    for edge in found.edges:
        if edge.sourceId not in number or edge.destId not in number:
            raise FormatError(f"{where}: an edge names node {edge.sourceId} or {edge.destId}, which is not there")
        u, v = number[edge.sourceId], number[edge.destId]
        if v not in after[u]:
            after[u].append(v)
            before[v].append(u)
        cost[u] = max(cost[u], edge.cost)
    accelerated = [node.fpgaLatency if node.supportedOnFpga else math.inf for node in found.nodes]
    colours: dict[tuple[str, int], list[int]] = {}
    for k, node in enumerate(found.nodes):
        key = ("node", k) if node.colorClass is None else ("colour", node.colorClass)
        colours.setdefault(key, []).append(k)
    workload = Workload(
        os.path.splitext(os.path.basename(where))[0], [node.cpuLatency for node in found.nodes], accelerated,
        [node.size for node in found.nodes], cost, before, after, list(colours.values()), found.maxFPGAs,
        found.maxSizePerFPGA,
    )  # fmt: skip
    if len(workload.order) < len(found.nodes):
        raise FormatError(f"{where}: its graph has a cycle")
    return workload


class Evaluator:
    """Latency of placements. Makes the arrays once, for a search asks some ten thousand times."""

    def __init__(self, workload: Workload) -> None:
        self.workload = workload
        groups = range(len(workload.groups))
        self.group_time = [sum(workload.accelerated[v] for v in workload.groups[g]) for g in groups]
        self.group_size = [sum(workload.size[v] for v in workload.groups[g]) for g in groups]

    def latency(self, placement: Placement) -> float:
        """Milliseconds, by the paper's integer program with q = 1; infinite where the placement is not allowed.

        Each accelerator is one node of a graph in which operators on CPUs are the others. An accelerator's subgraph is
        contiguous, and no two wait for each other, where that graph has no cycle.
        """
        w = self.workload
        used = [0.0] * w.accelerators
        busy = [0.0] * w.accelerators
        for g, d in enumerate(placement):
            if d >= 0:
                used[d] += self.group_size[g]
                busy[d] += self.group_time[g]
        if max(used, default=0.0) > w.memory or max(busy, default=0.0) == math.inf:
            return math.inf
        count, group_of = w.accelerators, w.group_of
        node = [d if (d := placement[g]) >= 0 else count + v for v, g in enumerate(group_of)]
        after: list[list[int]] = [[] for _ in range(count + len(node))]
        waiting = [0] * (count + len(node))
        cost = w.cost
        for v, targets in enumerate(w.after):
            own, seen = node[v], set()
            for u in targets:
                other = node[u]
                if other != own and other not in seen:
                    seen.add(other)
                    after[own].append(other)
                    waiting[other] += 1
                    if other < count:
                        busy[other] += cost[v]
            if seen and own < count:
                busy[own] += cost[v]
        free = [n for n in {*node} if not waiting[n]]
        begin = [0.0] * (count + len(node))
        reached, latest = 0, 0.0
        while free:
            n = free.pop()
            reached += 1
            end = begin[n] + (busy[n] if n < count else w.cpu[n - count])
            latest = max(latest, end)
            for m in after[n]:
                begin[m] = max(begin[m], end)
                waiting[m] -= 1
                if not waiting[m]:
                    free.append(m)
        return latest if reached == len({*node}) else math.inf


def search(workload: Workload, seconds: float, seed: int = 0) -> tuple[float, Placement]:
    """The best placement found: cuts of linear orders by dynamic programming, then annealing from the best of them."""
    evaluator, generator = Evaluator(workload), random.Random(seed)
    deadline = time.monotonic() + seconds
    best: Placement = [CPU] * len(workload.groups)
    latency = evaluator.latency(best)
    starts: list[tuple[float, Placement]] = [(latency, best)]
    for n in range(40):
        cut = cut_order(workload, evaluator, linear_order(workload, generator, n))
        starts.append((evaluator.latency(cut), cut))
        if time.monotonic() > deadline - seconds * 0.6:
            break
    starts.sort(key=lambda start: start[0])
    latency, best = starts[0]
    rounds = 3
    for k in range(rounds):
        found = anneal(
            evaluator, starts[min(k, len(starts) - 1)], generator, (deadline - time.monotonic()) / (rounds - k)
        )
        if found[0] < latency:
            latency, best = found
    return latency, best


def linear_order(workload: Workload, generator: random.Random, n: int) -> list[int]:
    """A topological order of the groups: depth first for the first one, then with random priorities.

    Groups that wait for each other in a ring, and those after them, are in no order and left out.
    """
    group_of, count = workload.group_of, len(workload.groups)
    after = [
        sorted({group_of[w] for v in members for w in workload.after[v]} - {g})
        for g, members in enumerate(workload.groups)
    ]
    before = [
        {group_of[u] for v in members for u in workload.before[v]} - {g} for g, members in enumerate(workload.groups)
    ]
    waiting = [len(groups) for groups in before]
    free, order = [g for g in range(count) if not waiting[g]], list[int]()
    while free:
        g = free.pop(-1 if n == 0 or generator.random() < 0.8 else generator.randrange(len(free)))
        order.append(g)
        following = after[g][:]
        if n:
            generator.shuffle(following)
        for h in following:
            waiting[h] -= 1
            if not waiting[h]:
                free.append(h)
    return order


def cut_order(workload: Workload, evaluator: Evaluator, order: list[int]) -> Placement:
    """Cut an order into stretches, each on an accelerator or on CPUs, so that their times one after another are least.

    O(n^2 accelerators) for n groups: the best way to end at each place with each number of accelerators used.
    """
    count, most = len(order), workload.accelerators
    least = [[math.inf] * (most + 1) for _ in range(count + 1)]
    via: list[list[tuple[int, bool] | None]] = [[None] * (most + 1) for _ in range(count + 1)]
    least[0] = [0.0] * (most + 1)
    for end in range(1, count + 1):
        group = order[end - 1]
        alone = sum(workload.cpu[v] for v in workload.groups[group])
        for a in range(most + 1):
            least[end][a], via[end][a] = least[end - 1][a] + alone, (end - 1, False)
        for begin, time_there in _stretches(workload, evaluator, order, end):
            for a in range(1, most + 1):
                candidate = least[begin][a - 1] + time_there
                if candidate < least[end][a]:
                    least[end][a], via[end][a] = candidate, (begin, True)
    placement = [CPU] * len(workload.groups)
    end, a = count, most
    while end:
        step = via[end][a]
        assert step is not None
        begin, accelerated = step
        if accelerated:
            a -= 1
            for k in range(begin, end):
                placement[order[k]] = a
        end = begin
    return placement


def _stretches(workload: Workload, evaluator: Evaluator, order: list[int], end: int) -> list[tuple[int, float]]:
    """Beginnings of stretches that end before ``end`` and fit an accelerator, with the time that each takes there."""
    found, inside, inputs = [], set[int](), set[int]()
    size = busy = copies = 0.0
    for begin in range(end - 1, -1, -1):
        group = order[begin]
        size += evaluator.group_size[group]
        busy += evaluator.group_time[group]
        if size > workload.memory or busy == math.inf:
            break
        for v in workload.groups[group]:
            inside.add(v)
            if v in inputs:
                inputs.discard(v)
                copies -= workload.cost[v]
        for v in workload.groups[group]:
            for u in workload.before[v]:
                if u not in inside and u not in inputs:
                    inputs.add(u)
                    copies += workload.cost[u]
            copies += workload.cost[v] if any(w not in inside for w in workload.after[v]) else 0.0
        found.append((begin, busy + copies))
    return found


def anneal(
    evaluator: Evaluator, start: tuple[float, Placement], generator: random.Random, seconds: float
) -> tuple[float, Placement]:
    """Simulated annealing: groups and stretches of neighbours change their device."""
    latency, placement = start[0], list(start[1])
    best = (latency, list(placement))
    begin, deadline = time.monotonic(), time.monotonic() + max(seconds, 0.0)
    hot = 0.02 * latency
    neighbours = _neighbours(evaluator.workload)
    while (now := time.monotonic()) < deadline:
        heat = hot * (1 - (now - begin) / (deadline - begin)) ** 2 + 1e-9
        for _ in range(20):
            candidate = _changed(evaluator.workload, placement, neighbours, generator)
            value = evaluator.latency(candidate)
            if value <= latency or (value < math.inf and generator.random() < math.exp((latency - value) / heat)):
                latency, placement = value, candidate
                if latency < best[0]:
                    best = (latency, list(placement))
    return best


def _neighbours(workload: Workload) -> list[list[int]]:
    group_of = workload.group_of
    return [
        sorted({group_of[u] for v in members for u in (*workload.before[v], *workload.after[v])} - {g})
        for g, members in enumerate(workload.groups)
    ]


def _changed(
    workload: Workload, placement: Placement, neighbours: list[list[int]], generator: random.Random
) -> Placement:
    """A placement with some groups elsewhere: where a neighbour is, mostly."""
    result = list(placement)
    group = generator.randrange(len(result))
    kind = generator.random()
    near = [result[n] for n in neighbours[group]]
    target = generator.choice(near) if near and kind < 0.8 else generator.randrange(-1, workload.accelerators)
    if kind < 0.1 and target != result[group]:  # two devices become one, or all of one goes to another
        source = result[group]
        if source >= 0:
            return [target if d == source else d for d in result]
    result[group] = target
    for _ in range(generator.choice((0, 0, 0, 1, 2, 4, 8, 16))):  # a walk drags its way along
        if not neighbours[group]:
            break
        group = generator.choice(neighbours[group])
        result[group] = target
    return result
