"""Find the regions of a graph: the operators between an operator and one that it dominates (``docs/proofs/regions.md``)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import rustworkx as rx

from ..problem import Problem


def regions_between(problem: Problem, source: int, largest: int) -> Iterator[tuple[int, int, list[int]]]:
    """Yield the region of each operator with several predecessors that ``source`` reaches, in topological order.

    Yields
    ------
    (int, int, list of int)
        The immediate dominator on paths from ``source``; the operator; the operators on paths between the two, the second
        one included, in topological order. The list is empty if it would be longer than ``largest``.
    """
    index = problem.graph.index
    graph = rx.PyDiGraph()
    graph.add_nodes_from(range(len(index.inputs)))
    graph.add_edges_from_no_data([(p, o) for o, before in enumerate(index.predecessors) for p in before])
    dominator = rx.immediate_dominators(graph, source)
    position = {o: i for i, o in enumerate(index.order)}
    for v in sorted(dominator, key=position.__getitem__):
        u = dominator[v]
        if u != v and sum(p in dominator for p in index.predecessors[v]) > 1:
            yield u, v, sorted(_between(problem, u, v, dominator, largest), key=position.__getitem__)


def _between(problem: Problem, u: int, v: int, reached: Mapping[int, int], largest: int) -> set[int]:
    """Return the operators on paths from ``u`` to ``v``, with ``v``; an empty set if they are more than ``largest``."""
    members, stack = {v}, [v]
    while stack:
        for p in problem.graph.index.predecessors[stack.pop()]:
            if p != u and p not in members and p in reached:
                members.add(p)
                stack.append(p)
        if len(members) > largest:
            return set()
    return members
