"""Schedulers by name: functions from a problem and a workload to a schedule."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from tvm_sched_runtime.errors import InputError
from tvm_sched_runtime.problem import FORBIDDEN, Problem, Scenario, Workload
from tvm_sched_runtime.schedule import Schedule

from ..registry import Method, Methods


def critical_path(problem: Problem | Scenario) -> int:
    """Return the latency, in nanoseconds, that model parallelism alone could reach with enough devices.

    It is the longest path through the graph. Each operator takes the time on its fastest device: first the loads of the
    tensors that it is the first to read, then its kernel. Copies take no time. It is not a lower bound: methods that load
    ahead over several buses can be faster, as SortingHat notes in Section 4.2. For lower bounds see `tvm_sched.bounds`.
    O(operators x devices + edges).
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
"""Latencies in nanoseconds to show beside schedulers' latencies, by name; they have no schedule."""

SchedulerFunction = Callable[[Problem, Workload, Any], Schedule]
"""A method: a function of problem, workload and options; nothing else may change its answer.

The workload has one request, or none for a cold run, unless the method is registered with ``weighs_requests``.
`tvm_sched.schedulers.solve` computes the certificate. Its status is taken from the method's own certificate, if it has one
(`Certificate.unchecked`).
"""

SCHEDULERS: Methods[SchedulerFunction] = Methods(
    "scheduler", "tvm_sched.schedulers", own={"robust": "tvm_sched.robust"}
)
register = SCHEDULERS.register
names = SCHEDULERS.names


def get(name: str) -> Method[SchedulerFunction]:
    """Return the scheduler of that name; raises `InputError` that lists the registered ones.

    Examples
    --------
    >>> from tvm_sched.schedulers import get
    >>> get("heft").summary
    'HEFT: operators by upward rank, each where it ends first, in gaps between others where one is long enough.'
    """
    if isinstance(name, str) and name in REFERENCES:
        raise InputError(
            f"{name!r} is a latency to compare with, not a scheduler: `tvm-sched compare` shows it; there are the "
            f"schedulers {', '.join(names())}"
        )
    return SCHEDULERS.get(name)
