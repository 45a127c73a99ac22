"""Schedulers by name: functions from a problem and a workload to a schedule."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from ..errors import InputError
from ..problem import Problem, Scenario, Workload
from ..registry import Method, Methods
from ..schedule import Schedule
from ..schedule.papers_critical_path import critical_path

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
    """The scheduler of that name; raises `InputError` that lists the registered ones."""
    if name in REFERENCES:
        raise InputError(
            f"{name!r} is a latency to compare with, not a scheduler: `tvm-sched compare` shows it; there are the "
            f"schedulers {', '.join(names())}"
        )
    return SCHEDULERS.get(name)
