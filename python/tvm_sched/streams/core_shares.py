"""Number of threads that compute each operator on a CPU."""

from __future__ import annotations

from math import gcd

from tvm_sched_runtime.problem import Problem
from tvm_sched_runtime.schedule import Schedule, ScheduleIndex, resolved


def core_shares(problem: Problem, schedule: Schedule) -> dict[str, tuple[int, int]]:
    """Return for each operator the fraction of the machine's cores that compute it: ``(1, 2)`` is half of them.

    Logical devices have equal parts. A device whose costs name threads (`Concurrency`) gives them to the streams of a
    stage, the next one always to the stream that would take longest, and all of them to an operator outside of stages.

    Examples
    --------
    >>> from tvm_sched_runtime.problem import cpu_topology
    >>> from tvm_sched.streams import core_shares
    >>> halves = Problem(graph, cpu_topology(2), problem.costs)
    >>> core_shares(halves, solve(halves))
    {'left': (1, 2), 'right': (1, 2), 'join': (1, 2)}
    """
    problem, schedule = resolved(problem, schedule)
    index = ScheduleIndex.of(problem, schedule)
    together, count = problem.costs.concurrency, len(problem.topology.devices)
    of_device = together.threads if together is not None and together.threads else (0,) * count
    shares = {}
    for o, d, used in zip(index.operator, index.device, index.threads(), strict=True):
        part, whole = max(used, 1), max(of_device[d], 1) * count
        common = gcd(part, whole)
        shares[problem.graph.operators[o].name] = part // common, whole // common
    return shares
