"""Partitioners `exact`, `bottleneck`, `bottleneck-guess`: the programs of Archer et al. (ICML 2024), as in Table 3."""

from __future__ import annotations

from typing import Literal

import msgspec

from tvm_sched_runtime.checks import require_at_least, require_seed
from tvm_sched_runtime.cores import cores
from tvm_sched_runtime.problem.partition_problem import Integers, PartitionProblem

from .integer_programs import bottleneck_bound, bottleneck_guess_bound, exact_program
from .partitioner_registry import Partition, register
from .slicegraph import SliceGraphOptions, slicegraph


class PartitionProgramOptions(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Options of `exact`, `bottleneck` and `bottleneck-guess`.

    Parameters
    ----------
    time_limit : float
        Seconds of the solver, by the clock. The paper gives `bottleneck` 15 minutes, the two others 60.
    solver : {"highs", "scip", "gurobi"}
    threads : int
        Threads of the solver; 0: all cores. HiGHS and the guesses of `bottleneck-guess` have one.
    evaluations : int
        Orders of the search (`slicegraph`) that gives the partition, and for `exact` the start.
    seed : int
        Seed of that search.
    """

    time_limit: float = 3600.0
    solver: Literal["highs", "scip", "gurobi"] = "highs"
    threads: int = 0
    evaluations: int = 100
    seed: int = 0

    def __post_init__(self) -> None:
        require_at_least(self, time_limit=0, threads=0, evaluations=1)
        require_seed(self.seed)

    def start(self, problem: PartitionProblem, stages: int) -> Partition:
        """Return the partition of a short search."""
        return slicegraph(problem, stages, SliceGraphOptions(evaluations=self.evaluations, seed=self.seed))


@register("exact", options=PartitionProgramOptions)
def exact(problem: PartitionProblem, stages: int, options: PartitionProgramOptions) -> Partition:
    """Solve the exact program (Section 3.1, equations (5) to (12)) from the partition of a short search.

    The answer is the cheaper of the start and the program's solution, and the bound is the program's.
    """
    found = options.start(problem, stages)
    solved = exact_program(
        problem,
        stages,
        solver=options.solver,
        seconds=options.time_limit,
        threads=options.threads or cores(),
        hint=found.stage_of,
    )
    stage_of, order = found.stage_of, found.order
    if _is_cheaper(problem, solved.stage_of, found):
        assert solved.stage_of is not None
        stage_of, order = solved.stage_of, None
    return Partition(stage_of, solved.bound, "exact", order=order)


@register("bottleneck", options=PartitionProgramOptions)
def bottleneck(problem: PartitionProblem, stages: int, options: PartitionProgramOptions) -> Partition:
    """Bound by the program with three blocks (Section 3.2, Lemma 3.3); the partition is that of a short search."""
    found = options.start(problem, stages)
    solved = bottleneck_bound(
        problem, stages, solver=options.solver, seconds=options.time_limit, threads=options.threads or cores()
    )
    return Partition(found.stage_of, solved.bound, "bottleneck", order=found.order)


@register("bottleneck-guess", options=PartitionProgramOptions)
def bottleneck_guess(problem: PartitionProblem, stages: int, options: PartitionProgramOptions) -> Partition:
    """Bound by the programs that guess the bottleneck's stage (Section 3.3); the partition is that of a short search."""
    found = options.start(problem, stages)
    solved = bottleneck_guess_bound(problem, stages, solver=options.solver, seconds=options.time_limit)
    return Partition(found.stage_of, solved.bound, "bottleneck-guess", order=found.order)


def _is_cheaper(problem: PartitionProblem, stage_of: Integers | None, found: Partition) -> bool:
    """Whether a program's solution costs less than the start."""
    return stage_of is not None and problem.bottleneck(stage_of, None) < problem.bottleneck(found.stage_of, found.order)
