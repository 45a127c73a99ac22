"""Write the evidence of a partition's lower bound for ``tvm_sched_check.partitions`` (``docs/formats/evidence.md``)."""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Any, NamedTuple

from ...files import encode_document
from ...problem.partition_problem import PartitionProblem
from .node import dearest_node
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
    if multipliers is None or best.bound >= cost * (1 - 2 * _SAFETY):
        return best
    stored = semidefinite_evidence(problem, stages, cost, multipliers)
    return PartitionEvidence("semidefinite", *stored) if stored and stored.bound > best.bound else best


def _not_above(value: Fraction) -> float:
    """Return the largest number in double precision that is not above a fraction."""
    near = float(value)
    return near if near <= value else math.nextafter(near, -math.inf)
