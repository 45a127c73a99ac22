"""Prove lower bounds on the bottleneck of every partition into a given number of stages."""

from __future__ import annotations

from collections import deque
from fractions import Fraction
from math import ceil
from typing import Any

from ..document import Refused, count
from . import semidefinite
from .graph import Graph, Tensor
from .prices import can_be_worth_more

STEPS = 3_000_000
"""Largest number of sets of nodes that rule ``ideals`` looks at."""


def bound_of(graph: Graph, stages: int, evidence: dict[str, Any], claimed: Fraction) -> Fraction:
    """Return the bound that evidence proves; rules ``ideals`` and ``prices`` depend on the bound that is claimed."""
    rule = evidence["rule"]
    if not count(stages):
        raise Refused("a pipeline has at least one stage")
    if rule == "average":
        return Fraction(sum(graph.work), stages) * graph.unit
    if rule == "operator":
        return least_around(graph, count(evidence["operator"])) * graph.unit
    if rule == "ideals":
        return Fraction(0) if can_be_cut(graph, stages, ceil(claimed / graph.unit)) else claimed
    if rule == "semidefinite":
        return semidefinite.bound_of(graph, stages, evidence)
    if rule == "prices":
        worth = [count(price) for price in evidence["prices"]]
        if len(worth) != graph.size or not any(worth):
            raise Refused("the prices are not one for each node, or all are 0")
        more = can_be_worth_more(graph, worth, (sum(worth) - 1) // stages, claimed / graph.unit)
        return Fraction(0) if more else claimed
    raise Refused(f"there is no rule {rule!r}; 'average', 'operator', 'ideals', 'semidefinite' and 'prices' are")


def least_around(graph: Graph, node: int) -> int:
    """Return the least cost of a set that a stage with this node can be, as a minimum cut.

    Proof: Lemmas 1 and 2 of ``docs/proofs/partition_node.md``.
    """
    left = dict[Any, dict[Any, int]]()
    endless = sum(graph.work) + sum(tensor.transfer for tensor in graph.tensors) + 1

    def arc(a: Any, b: Any, capacity: int) -> None:
        left.setdefault(a, {})[b] = capacity
        left.setdefault(b, {}).setdefault(a, 0)

    for v, work in enumerate(graph.work):
        arc(v, "out", work)
    for t, tensor in enumerate(graph.tensors):
        arc(("in", t), ("cut", t), tensor.transfer)
        for v in tensor.members:
            arc(v, ("in", t), endless)
            arc(("cut", t), v, endless)
        if tensor.always:
            arc(("cut", t), "out", endless)
    after: list[set[int]] = [{w for w in range(graph.size) if v in graph.before[w]} for v in range(graph.size)]
    for beside, turned in ((_reached(graph.before, node), False), (_reached(after, node), True)):
        for w in beside:
            for v in beside & graph.before[w]:
                arc(*((w, v) if turned else (v, w)), endless)
    flow = 0
    while path := _path(left, node, "out"):
        amount = min(left[a][b] for a, b in path)
        for a, b in path:
            left[a][b] -= amount
            left[b][a] += amount
        flow += amount
    return flow


def _reached(following: list[set[int]], node: int) -> set[int]:
    """Return a node and all nodes that can be reached from it."""
    reached, left = {node}, [node]
    while left:
        new = following[left.pop()] - reached
        reached |= new
        left += new
    return reached


def _path(left: dict[Any, dict[Any, int]], source: Any, sink: Any) -> list[tuple[Any, Any]]:
    """Return the arcs of a shortest path with capacity left; none if there is no path."""
    came, queue = {source: source}, deque([source])
    while queue and sink not in came:
        at = queue.popleft()
        for b, capacity in left[at].items():
            if capacity and b not in came:
                came[b] = at
                queue.append(b)
    path = []
    while sink in came and sink != source:
        path.append((came[sink], sink))
        sink = came[sink]
    return path


def can_be_cut(graph: Graph, stages: int, limit: int) -> bool:
    """Return whether some partition into at most ``stages`` stages has none of cost ``limit`` or more.

    Proof: Theorem 2 of ``docs/proofs/partition_ideals.md``.
    """
    whole, steps = (1 << graph.size) - 1, STEPS
    before = [sum(1 << b for b in each) for each in graph.before]
    paying = [[t for t in graph.tensors if v in t.members] for v in range(graph.size)]
    reached, newest = {0}, {0}
    for _ in range(stages):
        further = set[int]()
        for ideal in newest:
            seen, left = {ideal}, [(ideal, 0, 0)]
            while left:
                now, work, cost = left.pop()
                for v in range(graph.size):
                    grown = now | 1 << v
                    if grown == now or before[v] & ~now or grown in seen or work + graph.work[v] >= limit:
                        continue
                    steps -= 1
                    if steps < 0:
                        raise Refused(f"more than {STEPS} sets of nodes to look at")
                    dearer = cost + graph.work[v] + sum(_added(t, v, now & ~ideal) for t in paying[v])
                    seen.add(grown)
                    left.append((grown, work + graph.work[v], dearer))
                    if dearer < limit and grown not in reached:
                        further.add(grown)
        if whole in further:
            return True
        if not further:
            break
        reached |= further
        newest = further
    return not whole


def _added(tensor: Tensor, v: int, stage: int) -> int:
    """Return by how much the cost of ``stage`` for a tensor grows if node ``v``, a member of the tensor, joins the stage."""
    inside = sum(stage >> u & 1 for u in tensor.members)
    if inside == 0:
        return tensor.transfer if tensor.always or len(tensor.members) > 1 else 0
    return 0 if tensor.always or inside + 1 < len(tensor.members) else -tensor.transfer
