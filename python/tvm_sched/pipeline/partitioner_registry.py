"""Partitioners by name: functions from a `PartitionProblem` and a number of stages to a `Partition`."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import msgspec
import numpy as np

from tvm_sched_runtime.errors import InputError, ScheduleError
from tvm_sched_runtime.problem.partition_problem import Integers, PartitionProblem
from tvm_sched_runtime.search_budget import Status

from ..bounds.partitions.simple import simple_bound
from ..certify import Proof, answer_of, final_status, run_method
from ..progress import Progress
from ..registry import Methods

PROVED = 1e-6
"""Gap at which a partition counts as proved: the tolerance of the integer programs."""

PartitionerFunction = Callable[[PartitionProblem, int, Any], "Partition"]


@dataclass(frozen=True)
class Partition:
    """A partition into stages, with its bound and cost.

    Examples
    --------
    >>> import numpy
    >>> from tvm_sched.pipeline import PartitionProblem, StageTensor, partition
    >>> chain = PartitionProblem(["f", "g"], numpy.array([3.0, 4.0]), numpy.zeros(2), [StageTensor(0, (1,), 1.0)])
    >>> cut = partition(chain, 2)
    >>> cut.stage_of.tolist(), cut.cost, cut.gap
    ([0, 1], 5.0, 0.0)
    """

    stage_of: Integers
    """Stage of each node; no edge leads to an earlier stage. Stages may be empty."""
    bound: float = 0.0
    """No partition has a cheaper bottleneck; 0 if nothing is known."""
    bound_name: str = ""
    """Name of the bound's argument."""
    status: Status = "no better found"
    """How the search ended, see `tvm_sched_runtime.search_budget.Status`; `partition` decides on "optimal"."""
    order: Integers | None = None
    """All nodes in the order in which stages run them; None: Kahn's. It matters if memory is short."""
    cost: float = math.inf
    """Cost of the bottleneck stage; set by `partition`."""
    seconds: float = 0.0
    """Wall-clock time; set by `partition`."""

    @property
    def gap(self) -> float:
        """Largest possible distance of the cost from the best one, as a fraction of the cost."""
        return 0.0 if self.cost == 0 else 1 - self.bound / self.cost


PARTITIONERS: Methods[PartitionerFunction] = Methods(
    "partitioner",
    "tvm_sched.partitioners",
    {
        module: f"tvm_sched.pipeline.{module}"
        for module in ("baselines", "anytime_partitioner", "slicegraph", "program_partitioners")
    },
)
register, names, get = PARTITIONERS.register, PARTITIONERS.names, PARTITIONERS.get


def partition(
    problem: PartitionProblem,
    stages: int,
    name: str = "anytime",
    options: Mapping[str, Any] | msgspec.Struct | None = None,
    progress: Progress | None = None,
) -> Partition:
    """Cut a graph into at most ``stages`` stages, price the answer, and add the strongest known bound.

    Raises
    ------
    InputError
        Unknown partitioner or option, or less than one stage.
    InfeasibleError
        The partitioner refuses the graph.
    SchedulerError
        The partitioner's answer is not a partition, or its bound is above the cost.

    Examples
    --------
    >>> import numpy
    >>> from tvm_sched.pipeline import PartitionProblem, StageTensor, partition
    >>> chain = PartitionProblem(["f", "g"], numpy.array([3.0, 4.0]), numpy.zeros(2), [StageTensor(0, (1,), 1.0)])
    >>> partition(chain, 2).stage_of.tolist()
    [0, 1]
    """
    if stages < 1:
        raise InputError(f"stages is {stages}; 1 or more are allowed")
    method = get(name)
    run = run_method(method, options, Partition, lambda function, chosen: function(problem, stages, chosen), progress)
    answer = run.answer
    with answer_of(method):
        _check(problem, stages, answer)
        cost = problem.bottleneck(answer.stage_of, answer.order)
        bound, argument = answer.bound, answer.bound_name
        simple = simple_bound(problem, stages)
        if simple >= bound:
            bound, argument = simple, "simple"
        status = final_status(answer.status, cost, Proof(bound, argument, bound / (1 - PROVED), 1e-9))
    bound = min(bound, cost)  # rounding of sums may put it above the cost
    return replace(answer, bound=bound, bound_name=argument, cost=cost, seconds=run.seconds, status=status)


def _check(problem: PartitionProblem, stages: int, answer: Partition) -> None:
    stage_of = np.asarray(answer.stage_of)
    if stage_of.shape != (problem.size,) or not ((stage_of >= 0) & (stage_of < stages)).all():
        raise ScheduleError(f"it does not give each node a stage from 0 to {stages - 1}")
