"""Find the regions of a graph: the operators between an operator and one that it dominates (``docs/proofs/regions.md``)."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping

import rustworkx as rx

from tvm_sched_runtime.problem import Problem
from tvm_sched_runtime.search_budget import check_time


def regions_between(
    problem: Problem, source: int, largest: int, total: float = math.inf
) -> Iterator[tuple[int, int, list[int]]]:
    """Yield the region of each operator with several predecessors that ``source`` reaches, in topological order.

    Yields
    ------
    (int, int, list of int)
        The immediate dominator on paths from ``source``; the operator; the operators on paths between the two, the second
        one included, in topological order. The list is empty if it would be longer than ``largest``, and once all lists
        together would be longer than ``total``.
    """
    index = problem.graph.index
    graph = rx.PyDiGraph()
    graph.add_nodes_from(range(len(index.inputs)))
    graph.add_edges_from_no_data([(p, o) for o, before in enumerate(index.predecessors) for p in before])
    dominator = rx.immediate_dominators(graph, source)
    position = {o: i for i, o in enumerate(index.order)}
    too_large = set[tuple[int, int]]()
    for v in sorted(dominator, key=position.__getitem__):
        check_time()
        u = dominator[v]
        if u != v and sum(p in dominator for p in index.predecessors[v]) > 1:
            members = _between(problem, u, v, dominator, largest, too_large) if total >= 0 else set()
            total -= len(members)
            yield u, v, sorted(members, key=position.__getitem__) if total >= 0 else []


def _between(
    problem: Problem, u: int, v: int, reached: Mapping[int, int], largest: int, too_large: set[tuple[int, int]]
) -> set[int]:
    """Return the operators on paths from ``u`` to ``v``, with ``v``; an empty set if they are more than ``largest``.

    Then the pair joins ``too_large``. A region with the same ``u`` that contains the ``v`` of a pair there is, too.
    """
    members, stack = {v}, [v]
    while stack:
        for p in problem.graph.index.predecessors[stack.pop()]:
            if p != u and p not in members and p in reached:
                members.add(p)
                stack.append(p)
        if len(members) > largest or (u, stack[-1] if stack else v) in too_large:
            too_large.add((u, v))
            return set()
    return members
