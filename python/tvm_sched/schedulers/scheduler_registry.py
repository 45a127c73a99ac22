"""Schedulers by name: functions from a problem and a workload to a schedule."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from ..errors import InputError
from ..problem import FORBIDDEN, Problem, Scenario, Workload
from ..registry import Method, Methods
from ..schedule import Schedule


def critical_path(problem: Problem | Scenario) -> int:
    """Return the latency, in nanoseconds, that model parallelism alone could reach with enough devices.

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


REFERENCES: Mapping[str, Callable[[Problem | Scenario], int]] = {"critical-path": critical_path}
"""Latencies in nanoseconds to draw beside those of schedulers, by name: no schedule stands behind them."""

SchedulerFunction = Callable[[Problem, Workload, Any], Schedule]
"""A method: its arguments are the problem, the workload and its options, and nothing else may change its answer.

The workload has one request, or none for a cold run, unless the method is registered with ``weighs_requests``.
`tvm_sched.schedulers.solve` makes the certificate; its status is that of the method's own one, if there is any
(`Certificate.unchecked`).
"""

SCHEDULERS: Methods[SchedulerFunction] = Methods("scheduler", "tvm_sched.schedulers")
register = SCHEDULERS.register
names = SCHEDULERS.names


def get(name: str) -> Method[SchedulerFunction]:
    """Return the scheduler of that name; raises `InputError` that lists the registered ones."""
    if name in REFERENCES:
        raise InputError(
            f"{name!r} is a latency to compare with, not a scheduler: `tvm-sched compare` shows it; there are the "
            f"schedulers {', '.join(names())}"
        )
    return SCHEDULERS.get(name)
