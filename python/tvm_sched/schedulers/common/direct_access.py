"""Fix which operators read host memory directly, for searches that do not decide it."""

from __future__ import annotations

import numpy as np

from tvm_sched_runtime.problem import FORBIDDEN, Problem, Scenario
from tvm_sched_runtime.schedule import ScheduleIndex


def with_direct_reads(scenario: Scenario, direct: frozenset[int]) -> Scenario:
    """Return the run in which these operators read directly wherever they can, and no others do.

    Concurrency is dropped: sequences have none, and a measured pair may no longer be able to run.
    """
    chosen = np.array([o in direct for o in range(len(scenario.graph.operators))])[:, None]
    can = scenario.costs.direct_ns != FORBIDDEN
    normal = np.where(chosen & can, FORBIDDEN, scenario.costs.operator_ns)
    only = np.where(chosen, scenario.costs.direct_ns, FORBIDDEN)
    left = ((normal != FORBIDDEN) | (only != FORBIDDEN)).any(axis=1)[
        :, None
    ]  # operators with one kind of access keep it
    costs = scenario.costs.replace(
        operator_ns=np.where(left, normal, scenario.costs.operator_ns),
        direct_ns=np.where(left, only, scenario.costs.direct_ns),
        concurrency=None,
        uncertainty=None,
    )
    return scenario.with_problem(Problem.derive(scenario.graph, scenario.topology, costs))


def keep_direct_reads(index: ScheduleIndex) -> ScheduleIndex:
    """Return a schedule in the run in which its operators that read directly do so wherever they can.

    A schedule without such operators, or whose costs have concurrency, stays in its run.
    """
    direct = frozenset(o for o, reads in zip(index.operator, index.direct, strict=True) if reads)
    if not direct or index.scenario.costs.concurrency is not None:
        return index
    return ScheduleIndex(with_direct_reads(index.scenario, direct), index.placements, index.transfers)
