"""Cut a chain by the costs of its segments: least bottleneck, or least sum below a ceiling."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from tvm_sched_runtime.problem.partition_problem import Floats


@dataclass(frozen=True)
class Cut:
    """A chain in segments; some may be empty."""

    value: float
    """Objective of the cut; infinite if no cut is allowed."""
    ends: list[int]
    """End of each segment, ascending; empty if no cut is allowed."""


def least_bottleneck(costs: Sequence[Floats]) -> Cut:
    """Return the cut whose most expensive segment is cheapest.

    Parameters
    ----------
    costs : sequence of arrays of shape (n + 1, n + 1)
        One for each segment in order: ``[l, r]`` is the cost of the positions from l to r - 1; see
        `PartitionProblem.segment_costs`. O(n² segments).
    """
    return _cut(costs, np.maximum)


def least_sum(costs: Sequence[Floats], ceiling: float) -> Cut:
    """Return the cut with the least sum of costs among the cuts without a segment above ``ceiling``."""
    return _cut([np.where(cost <= ceiling, cost, np.inf) for cost in costs], np.add)


def _cut(costs: Sequence[Floats], join: Callable[[Floats, Floats], Floats]) -> Cut:
    n = costs[0].shape[0] - 1
    best = np.full(n + 1, np.inf)
    best[0] = 0
    choices = []
    for cost in costs:
        joined = join(best[:, None], cost)
        choice = joined.argmin(axis=0)
        choices.append(choice)
        best = joined[choice, np.arange(n + 1)]
    if not np.isfinite(best[n]):
        return Cut(float("inf"), [])
    ends = [n]
    for choice in reversed(choices[1:]):
        ends.append(int(choice[ends[-1]]))
    return Cut(float(best[n]), ends[::-1])
