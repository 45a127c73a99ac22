"""The critical path of the papers: a latency to compare schedules with. It belongs to no schedule and is no lower bound."""

from __future__ import annotations

from ..problem import FORBIDDEN, Problem, Scenario


def critical_path(problem: Problem | Scenario) -> int:
    """What model parallelism alone could reach with enough devices, in nanoseconds.

    The longest path through the graph, each operator on the device where it is loaded and run fastest: first what it is
    the first to read from host memory, then its kernel. Copies take no time. Methods that load ahead of time, over
    several buses, can be faster (SortingHat, Section 4.2, says so of itself); so this is no lower bound. For those see
    `tvm_sched.bounds`. O(operators x devices + edges).
    """
    index, costs = problem.graph.index, problem.costs
    loaded: set[int] = set()
    ends = [0] * len(index.inputs)
    for o in index.order:
        new = [t for t in index.host_inputs[o] if t not in loaded]
        loaded.update(new)
        times = [int(ns) for ns in costs.direct_ns[o] if ns != FORBIDDEN]
        for d, ns in enumerate(costs.operator_ns[o].tolist()):
            if ns != FORBIDDEN:
                times.append(ns + sum(problem.load_ns(t, d) for t in new))
        ends[o] = max((ends[p] for p in index.predecessors[o]), default=0) + min(times)
    return max(ends, default=0)
