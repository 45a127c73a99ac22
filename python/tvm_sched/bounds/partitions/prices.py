"""The bound ``prices``: prices of nodes such that no stage within a limit holds more than its share of them.

Proof: ``docs/proofs/partition_prices.md``.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from tvm_sched_runtime.problem.partition_problem import Floats, Integers, PartitionProblem

Chosen = npt.NDArray[np.bool_]

_TOTAL = 1 << 30
"""Largest sum of all prices, which are whole numbers."""
_MIX = 0.4
"""Share of the linear program's new prices in the mean with the old prices, which damps jumps."""
_RISE = 0.3
"""Position of the next limit between the bound and the least limit that was not proved."""
_NARROW = 1e-3
"""Least rise that is tried, relative to the limit."""
_MOST_STAGES = 4000
"""Largest number of stages in the linear program; above it, the least valuable ones are dropped."""

_STEPS = 5000
"""Steps of branch and bound between looks at the clock."""
_MOST_FOUND = 100
"""Largest number of stages that one search adds."""


class PriceBound:
    """Search for prices; stages and prices are kept from one limit to the next.

    Parameters
    ----------
    problem : PartitionProblem
    stages : int
        At least 1.
    """

    def __init__(self, problem: PartitionProblem, stages: int) -> None:
        self.problem, self.stages = problem, stages
        self.chosen: Chosen = np.eye(problem.size, dtype=bool)
        self.costs = np.array([problem.stage_cost([v]) for v in range(problem.size)])
        """Cost of each stage in `chosen`, at most the limit for which it was generated."""
        self.prices: Floats | None = None
        self.steps = 0
        """Steps so far; a linear program counts as many as it has stages."""

    def proves(self, limit: float, *, steps: int, seconds: Callable[[], float]) -> bool | None:
        """Return whether each partition has a stage that costs more than ``limit``; None if the search ended before.

        Column generation. False means that no prices prove the limit.

        Parameters
        ----------
        steps : int
            Most steps of branch and bound.
        seconds : callable
            Seconds that are left.
        """
        end = self.steps + steps
        while True:
            self.steps += len(self.chosen)
            value, prices = self._program(limit)
            if value <= self.stages * (1 + 1e-9):
                return False
            self.prices = prices if self.prices is None else (1 - _MIX) * self.prices + _MIX * prices
            stages = self._worth_more(whole(self.prices), limit, end, seconds)
            if not stages:
                return None if stages is None else True
            self._add(stages, limit)

    def _worth_more(
        self, values: Integers, limit: float, end: int, seconds: Callable[[], float]
    ) -> list[Integers] | None:
        """Return some stages within the limit that are worth more than their share; None if the search ended before."""
        if not values.any():
            return None
        target = (int(values.sum()) - 1) // self.stages
        looked, valuable = 0, list[Integers]()
        while looked < self.problem.size and len(valuable) < _MOST_FOUND:
            if self.steps >= end or (left := seconds()) <= 0:
                return valuable or None
            looked, taken, more = self.problem.valuable_stages(
                values, target, limit, first=looked, steps=_STEPS, most=end - self.steps, seconds=left
            )
            self.steps += taken
            valuable += more
        return valuable

    def _program(self, limit: float) -> tuple[float, Floats]:
        """Return the fewest stages within the limit that cover all nodes, in fractions, and the dual prices."""
        from scipy.optimize import linprog  # takes long to load
        from scipy.sparse import csc_matrix

        count, size = self.chosen.shape
        # A stage above the limit fills more than all stages together, so the program is feasible from the start.
        fills = np.where(self.costs > limit, float(size + self.stages), 1.0)
        result = linprog(fills, A_ub=csc_matrix(-self.chosen.T.astype(float)), b_ub=-np.ones(size), method="highs")
        if result.status != 0:  # nothing is known of this limit
            return math.inf, np.zeros(size)
        prices = np.maximum(-result.ineqlin.marginals, 0)
        if count > _MOST_STAGES:
            worth = np.where(self.costs > limit, 0, self.chosen @ prices)
            worth[:size] = np.inf  # a stage for each node alone stays
            kept = np.sort(np.argsort(-worth, kind="stable")[: _MOST_STAGES // 2])
            self.chosen, self.costs = self.chosen[kept], self.costs[kept]
        return float(result.fun), prices

    def _add(self, stages: list[Integers], limit: float) -> None:
        rows = np.zeros((len(stages), self.problem.size), dtype=bool)
        for row, nodes in zip(rows, stages, strict=True):
            row[nodes] = True
        costs = [min(self.problem.stage_cost(nodes), limit) for nodes in stages]
        self.chosen, self.costs = np.concatenate([self.chosen, rows]), np.concatenate([self.costs, costs])


def whole(prices: Floats) -> Integers:
    """Round prices to whole numbers of at most 2³⁰ together."""
    total = float(prices.sum())
    scaled = prices * ((_TOTAL - len(prices)) / total) if total > 0 else prices
    return np.floor(scaled).astype(np.int64)


def price_bound(
    problem: PartitionProblem,
    stages: int,
    *,
    bound: float = 0.0,
    cutoff: float,
    steps: int = 1_000_000,
    watch: Callable[[float], bool] = lambda bound: False,
    seconds: Callable[[], float] = lambda: math.inf,
) -> tuple[float, int]:
    """Bound the bottleneck of every partition into at most ``stages`` stages. Overflow of parameters is not counted.

    Limits between the bound and the cutoff are tried one after another. Good if a stage holds few nodes.

    Parameters
    ----------
    bound : float
        A bound known before.
    cutoff : float
        Cost of a partition.
    steps : int
        Most steps of branch and bound in all.
    watch : callable
        Told each new bound; the search ends where it returns true.
    seconds : callable
        Seconds that are left.

    Returns
    -------
    (float, int)
        The bound and the steps taken.
    """
    search = PriceBound(problem, stages)
    top = cutoff
    while problem.size and top - bound > _NARROW * top and search.steps < steps and seconds() > 0:
        limit = bound + _RISE * (top - bound)
        proved = search.proves(limit, steps=steps - search.steps, seconds=seconds)
        if proved is None:
            break
        if not proved:
            top = limit
            continue
        bound = limit
        if watch(bound):
            break
    return bound, search.steps
