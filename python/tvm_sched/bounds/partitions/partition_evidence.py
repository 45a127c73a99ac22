"""Write the evidence of a partition's lower bound for ``tvm_sched_check.partitions`` (``docs/formats/evidence.md``)."""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Any, NamedTuple

from tvm_sched_runtime.files import encode_document
from tvm_sched_runtime.problem.partition_problem import PartitionProblem

from .node import dearest_node
from .prices import PriceBound, whole
from .semidefinite_evidence import DEFAULT, Effort, semidefinite_evidence

FORMAT, VERSION = "tvm_sched.partition_evidence", 1

_SAFETY = 1e-9
"""Part by which a bound in floating point is lowered, so that it holds in exact arithmetic."""


class PartitionEvidence(NamedTuple):
    """An argument for a bound: its rule, the bound, and the further fields of the rule."""

    rule: str
    bound: float
    fields: dict[str, Any]

    def to_json(self, instance: str) -> bytes:
        """Return the evidence as a JSON document for the instance with this digest."""
        body = {"instance": instance, "rule": self.rule, "bound": float(self.bound), **self.fields}
        return encode_document(body, FORMAT, VERSION)


def partition_evidence(
    problem: PartitionProblem,
    stages: int,
    cost: float,
    *,
    ideals: float = 0.0,
    prices: float = 0.0,
    multipliers: Effort | None = DEFAULT,
) -> PartitionEvidence:
    """Return the strongest argument that can be stored.

    Parameters
    ----------
    stages : int
        Largest number of stages.
    cost : float
        Of a partition.
    ideals : float
        A bound by dynamic programming over all ideals; 0 without one.
    prices : float
        A bound by prices of nodes, which are found again; 0 without one.
    multipliers : Effort or None
        How long to search for multipliers if the other arguments leave a gap (`semidefinite_evidence`); None: no search.
    """
    exact = sum(map(Fraction, problem.work.tolist()), Fraction(0)) / stages
    average = PartitionEvidence("average", _not_above(exact), {})
    around, node = dearest_node(problem)
    candidates = [average, PartitionEvidence("operator", around * (1 - _SAFETY), {"operator": node})]
    if ideals > 0:
        # Sums of fractions in floating point may be above the exact ones, which the checker compares.
        candidates.append(PartitionEvidence("ideals", ideals if ideals == int(ideals) else ideals * (1 - _SAFETY), {}))
    best = max(candidates, key=lambda each: each.bound)
    if prices > best.bound and (found := priced(problem, stages, prices * (1 - _SAFETY))) is not None:
        return found
    if multipliers is None or best.bound >= cost * (1 - 2 * _SAFETY):
        return best
    stored = semidefinite_evidence(problem, stages, cost, multipliers)
    return PartitionEvidence("semidefinite", *stored) if stored and stored.bound > best.bound else best


_STEPS = 5_000_000
"""Most steps of the search for prices."""


def priced(problem: PartitionProblem, stages: int, limit: float) -> PartitionEvidence | None:
    """Return prices that prove a limit; None if none are found.

    Examples
    --------
    >>> import numpy as np
    >>> from tvm_sched.bounds.partitions.partition_evidence import priced
    >>> from tvm_sched.pipeline import PartitionProblem
    >>> nodes = [f"n{v}" for v in range(6)]
    >>> priced(PartitionProblem(nodes, np.full(6, 4.0), np.zeros(6), []), 4, 7.0).bound
    7.0
    """
    search = PriceBound(problem, stages)
    if not search.proves(limit, steps=_STEPS, seconds=lambda: math.inf) or search.prices is None:
        return None
    return PartitionEvidence("prices", limit, {"prices": whole(search.prices).tolist()})


def _not_above(value: Fraction) -> float:
    """Return the largest number in double precision that is not above a fraction."""
    near = float(value)
    return near if near <= value else math.nextafter(near, -math.inf)
