"""Find assignments without a solver, and improve them by moves of one node; the solver starts from the best."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from itertools import accumulate, chain
from math import inf

from tvm_sched_runtime.search_budget import OutOfTime, check_time, seconds_left

from .submodel import Submodel, Times, evaluate

EVALUATIONS = 3000
"""Largest number of evaluated assignments in one submodel."""


def best_assignment(s: Submodel, evaluations: int) -> list[int] | None:
    """Improve the best of some simple assignments: the subgraph of each node; None if none is feasible.

    - Everything on one device, in one subgraph or spread over several, so that loads and kernels overlap; with and without
      loads of parameters through a neighbour.
    - Each operator, in topological order, in the subgraph with which the submodel ends first.

    Past the deadline of the search around, it is everything in one subgraph of the best device, or what else is feasible.
    """
    solutions: list[tuple[tuple[float, float], list[int]]] = []
    with suppress(OutOfTime):
        for number, assignment in enumerate(chain(_on_one_device(s), _where_it_ends_first(s))):
            if solutions and number >= len(s.devices):
                check_time()
            times = evaluate(s, assignment)
            if times is not None:
                solutions.append((times.rank, assignment))
    return improve(s, min(solutions)[1], evaluations) if solutions else None


def improve(s: Submodel, assignment: list[int], evaluations: int) -> list[int]:
    """Improve an assignment by moving one node at a time: an operator with its parameters, or one parameter.

    It takes the first move that is better by `Times.rank`, until the deadline of the search around; without one the result
    is deterministic.
    """
    best, times = assignment, evaluate(s, assignment)
    if times is None:
        raise AssertionError("only an assignment that satisfies the program can be improved")
    moved = True
    while moved and evaluations > 0:
        moved = False
        for candidate in _neighbours(s, best):
            if seconds_left() <= 0:
                return best
            evaluations -= 1
            after = evaluate(s, candidate)
            if after is not None and after.rank < times.rank:
                best, times, moved = candidate, after, True
                break
            if evaluations <= 0:
                break
    return best


def _with_parameters(s: Submodel, assignment: list[int], v: int, j: int) -> list[int]:
    """Move operator ``v`` to subgraph ``j``, and its unshared parameters there or to host memory, by the mode of ``j``."""
    after = list(assignment)
    after[v] = j
    for w in s.read[v]:
        if w in s.parameter_nodes and w not in s.fixed:
            shared = after[w] and any(r != v and assignment[r] for r in s.readers[w])
            if j % 2:
                after[w] = 0
            elif not shared and s.load[w][s.device_of(j)] < inf:
                after[w] = j
    return after


def _neighbours(s: Submodel, assignment: list[int]) -> Iterator[list[int]]:
    """Yield each assignment with one operator or one parameter moved."""
    for v in range(s.operators):
        for j in s.subgraphs:
            if j != assignment[v] and s.time(v, j) < inf:
                yield _with_parameters(s, assignment, v, j)
    for w in s.parameter_nodes:
        if w not in s.fixed and assignment[w]:
            for j in s.subgraphs:
                if j != assignment[w] and s.load[w][s.device_of(j)] < inf:
                    yield [*assignment[:w], j, *assignment[w + 1 :]]


def _empty(s: Submodel) -> list[int]:
    """Assign the fixed nodes alone."""
    assignment = [0] * len(s.nodes)
    for node, d in s.fixed.items():
        assignment[node] = s.of_device(d)[0]
    return assignment


def _on_one_device(s: Submodel) -> Iterator[list[int]]:
    """Yield assignments to one device, the simplest first, then with each second parameter through a neighbour."""
    simplest = [_spread(s, d, 1) for d in s.devices]
    yield from simplest
    for d in s.devices:
        for parts in {1, s.q // 2}:
            alone = simplest[d] if parts == 1 else _spread(s, d, parts)
            if parts > 1:
                yield alone
            for other in s.devices:
                if other != d:
                    yield _with_parallel_transmission(s, alone, d, other)


def _spread(s: Submodel, d: int, parts: int) -> list[int]:
    """Spread the operators, in topological order, over subgraphs of device ``d`` with about equal times."""
    assignment = _empty(s)
    loads = [
        sum(s.load[w][d] for w in s.read[v] if w in s.parameter_nodes) + s.kernel[v][d] for v in range(s.operators)
    ]
    finite = [load if load < inf else 0.0 for load in loads]
    total = sum(finite) or 1.0
    for v, before in enumerate(accumulate(finite, initial=0.0)):
        if v < s.operators:
            part = min(int(before / total * parts), parts - 1)
            j = s.of_device(d)[2 * part + 1]
            if s.kernel[v][d] == inf:
                j = s.of_device(d)[2 * part]
            assignment = _with_parameters(s, assignment, v, j)
    return assignment


def _with_parallel_transmission(s: Submodel, alone: list[int], d: int, other: int) -> list[int]:
    """Load each second parameter through ``other`` (parallel transmission)."""
    assignment = list(alone)
    coming = [w for w in s.parameter_nodes if w not in s.fixed and alone[w] and s.load[w][other] < inf]
    for w in coming[1::2]:
        if s.copy[w][other][d] < inf:
            assignment[w] = alone[w] + (other - d) * s.q
    return assignment


def _where_it_ends_first(s: Submodel) -> Iterator[list[int]]:
    """Place each operator in turn where the submodel so far ends first, in or after its device's last used subgraph."""
    assignment = _empty(s)
    reached = {d: s.of_device(d)[0] for d in s.devices}
    for v in range(s.operators):
        best: tuple[Times, list[int], int] | None = None
        first, kept = _first_operators(s, v + 1), _nodes_of_first(s, v + 1)
        for d in s.devices:
            for j in range(reached[d], min(reached[d] + 3, s.of_device(d)[-1] + 1)):
                if s.time(v, j) == inf:
                    continue
                check_time()
                candidate = _with_parameters(s, assignment, v, j)
                times = evaluate(first, [candidate[node] for node in kept])
                if times is not None and (best is None or times.rank < best[0].rank):
                    best = times, candidate, j
        if best is None:
            return
        assignment = best[1]
        reached[s.device_of(best[2])] = best[2]
    yield assignment


def _nodes_of_first(s: Submodel, count: int) -> list[int]:
    """Return the nodes of the first ``count`` operators' part of a submodel."""
    held = {u for v in range(count) for u in s.read[v]}
    return [node for node in s.nodes if node < count or (node >= s.operators and (node in held or node in s.fixed))]


def _first_operators(s: Submodel, count: int) -> Submodel:
    """Return the submodel of the first ``count`` operators."""
    kept = _nodes_of_first(s, count)
    number = {node: i for i, node in enumerate(kept)}
    return Submodel(
        operators=count,
        placeholders=sum(s.operators <= node < s.operators + s.placeholders for node in kept),
        parameters=sum(node in s.parameter_nodes for node in kept),
        edges=[(number[u], number[v]) for u, v in s.edges if u in number and v < count],
        q=s.q,
        buses=s.buses,
        memory=s.memory,
        size=[s.size[node] for node in kept],
        kernel=[s.kernel[node] for node in kept],
        direct=[s.direct[node] for node in kept],
        load=[s.load[node] for node in kept],
        copy=[s.copy[node] for node in kept],
        fixed={number[node]: d for node, d in s.fixed.items()},
        memory_used=s.memory_used,
        transfers_end=s.transfers_end,
        device_end=s.device_end,
    )
