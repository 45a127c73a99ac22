"""Partitioners by name: each maps a PartitionProblem and a number of stages to a Partition."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import msgspec
import numpy as np

from ..anytime import Status, final_status
from ..errors import InputError, SchedulerError
from ..progress import Progress, report_to
from ..registry import Methods
from .partition_problem import Integers, PartitionProblem
from .programs import simple_bound

PROVED = 1e-6
"""Gap at which a partition counts as proved: the tolerance of the integer programs."""

PartitionerFunction = Callable[[PartitionProblem, int, Any], "Partition"]


@dataclass(frozen=True)
class Partition:
    """A partition into stages, with what is known of its quality.

    Attributes
    ----------
    stage_of : array of int
        Stage of each node; no edge leads to an earlier stage. Stages may be empty.
    bound : float
        No partition has a cheaper bottleneck; 0 where nothing is known.
    bound_name : str
        Which argument gave the bound.
    status : {"optimal", "no better found", "time limit", "interrupted"}
        How the search ended, see `tvm_sched.anytime.Status`; `partition` judges what is optimal.
    cost : float
        Cost of the dearest stage; set by `partition`.
    seconds : float
        Wall-clock time; set by `partition`.
    """

    stage_of: Integers
    bound: float = 0.0
    bound_name: str = ""
    status: Status = "no better found"
    cost: float = math.inf
    seconds: float = 0.0

    @property
    def gap(self) -> float:
        """By how much the cost can be above the best one, as a fraction of it."""
        return 0.0 if self.cost == 0 else 1 - self.bound / self.cost


PARTITIONERS: Methods[PartitionerFunction] = Methods(
    "partitioner",
    "tvm_sched.partitioners",
    {module: f"tvm_sched.pipeline.{module}" for module in ("baselines", "anytime", "slicegraph")},
)
register, names, get = PARTITIONERS.register, PARTITIONERS.names, PARTITIONERS.get


def partition(
    problem: PartitionProblem,
    stages: int,
    name: str = "anytime",
    options: Mapping[str, Any] | msgspec.Struct | None = None,
    progress: Progress | None = None,
) -> Partition:
    """Cut a graph into at most ``stages`` stages, price the answer, and add the strongest bound known.

    Raises
    ------
    InputError
        No such partitioner or option, or less than one stage.
    InfeasibleError
        The partitioner refuses the graph.
    SchedulerError
        The partitioner's answer is no partition, or its bound is above the cost.
    """
    if stages < 1:
        raise InputError(f"stages is {stages}; 1 or more are allowed")
    method = get(name)
    name = method.name
    chosen = method.read_options(options)
    begin = time.monotonic()
    with report_to(progress):
        found = method.function(problem, stages, chosen)
    seconds = time.monotonic() - begin
    _check(problem, stages, name, found)
    cost = problem.bottleneck(found.stage_of)
    simple = simple_bound(problem, stages)
    if simple >= found.bound:
        found = replace(found, bound=simple, bound_name="simple")
    if found.bound > cost * (1 + 1e-9):
        raise SchedulerError(
            f"bound {found.bound_name!r} of partitioner {name!r}, {found.bound}, exceeds a cost of {cost}: "
            "please report this"
        )
    # Above the cost it can be by the rounding of sums only, as was checked; so that a gap is never below 0.
    bound = min(found.bound, cost)
    status = final_status(found.status, bound >= cost * (1 - PROVED))
    return replace(found, bound=bound, cost=cost, seconds=seconds, status=status)


def _check(problem: PartitionProblem, stages: int, name: str, found: Any) -> None:
    if not isinstance(found, Partition):
        raise SchedulerError(f"partitioner {name!r} returned a {type(found).__name__}; a Partition is expected")
    stage_of = np.asarray(found.stage_of)
    if stage_of.shape != (problem.size,) or not ((stage_of >= 0) & (stage_of < stages)).all():
        raise SchedulerError(
            f"the answer of partitioner {name!r} does not give each node a stage from 0 to {stages - 1}"
        )
