"""The bounds of Archer et al. (ICML 2024) for max-throughput partitioning by integer programs.

Each program is one over numbered blocks (`block_program`); a block stands for one stage or for several.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from tvm_sched_runtime.problem.graph import neighbours
from tvm_sched_runtime.problem.partition_problem import Integers, PartitionProblem

from ..bounds.partitions.simple import simple_bound
from ..worker_pool import distribute, have_workers

if TYPE_CHECKING:
    from .block_program import BlockProgram


@dataclass(frozen=True)
class ProgramResult:
    """Result of a solver on a program."""

    bound: float
    """No partition has a cheaper bottleneck."""
    stage_of: Integers | None = None
    """Block of each node in the best solution, if there is one."""
    proved: bool = False
    """Whether the program was solved to the end."""


def bottleneck_bound(
    problem: PartitionProblem, stages: int, *, solver: str = "highs", seconds: float = 60, threads: int = 1
) -> ProgramResult:
    """Bound by Section 3.2: one stage has at least the simple bound's work; all earlier and later stages cost nothing.

    The objective is the middle block's cost, with its overflow and transfers. Proof: Lemma 1 of
    ``docs/proofs/partition_programs.md``.
    """
    from .block_program import BlockProgram

    program = BlockProgram(problem, 3)
    program.model.add_linear_constraint(program.works[1] >= simple_bound(problem, stages))
    program.model.add_linear_constraint(program.bottleneck >= program.costs[1])
    result = program.solve(solver, seconds, threads)
    return ProgramResult(result.bound, None, result.proved)  # blocks are not stages


def bottleneck_guess_bound(
    problem: PartitionProblem,
    stages: int,
    *,
    solver: str = "highs",
    seconds: float = 60,
    stop: Callable[[], bool] = lambda: False,
) -> ProgramResult:
    """Bound by Section 3.3: guess which stage has the simple bound's work; the least bound of all guesses holds.

    The guesses share the time equally, and later ones get the time left over. With workers (`tvm_sched.worker_pool`)
    each guess has all the time; the bound is the same unless the time ends a guess. Proof: Lemma 2 of
    ``docs/proofs/partition_programs.md``.
    """
    if have_workers():
        parts = [(problem, stages, j, solver, seconds) for j in range(stages)]
        results = distribute(_solve_guess, parts)
        bound = max(min(result.bound for result in results), simple_bound(problem, stages))
        return ProgramResult(bound, proved=all(result.proved for result in results))
    least, proved = float("inf"), True
    left = seconds
    for j in range(stages):
        if stop():
            return ProgramResult(simple_bound(problem, stages))
        started = time.monotonic()
        result = _solve_guess(problem, stages, j, solver, left / (stages - j))
        left = max(left - (time.monotonic() - started), 0.0)
        least, proved = min(least, result.bound), proved and result.proved
        if least <= simple_bound(problem, stages):
            break
    return ProgramResult(max(least, simple_bound(problem, stages)), proved=proved)


def _solve_guess(problem: PartitionProblem, stages: int, j: int, solver: str, seconds: float) -> ProgramResult:
    return _guess(problem, stages, j).solve(solver, seconds, 1)


def _guess(problem: PartitionProblem, stages: int, j: int) -> BlockProgram:
    from .block_program import BlockProgram

    program = BlockProgram(problem, 3, (j, 1, stages - 1 - j))
    model = program.model
    model.add_linear_constraint(program.works[1] >= simple_bound(problem, stages))
    model.add_linear_constraint(program.bottleneck >= program.costs[1])
    for block, count in ((0, j), (2, stages - 1 - j)):
        if count:
            model.add_linear_constraint(count * program.bottleneck >= program.costs[block])
        else:
            for v in range(problem.size):
                model.add_linear_constraint(program.x(v, block) == 0)
    return program


def exact_program(
    problem: PartitionProblem,
    stages: int,
    *,
    solver: str = "highs",
    seconds: float = 60,
    threads: int = 1,
    hint: Integers | None = None,
    cutoff: float = math.inf,
    least: float = 0.0,
) -> ProgramResult:
    """Solve Section 3.1, equations (5) to (12), with ranges of stages that are not in the paper.

    Parameters
    ----------
    hint : array of int, optional
        Stage of each node in the partition to start from.
    cutoff : float
        Cost of a partition. The program looks only for cheaper ones, with ranges of stages (`stage_ranges`); if there
        are none, the bound is the cutoff.
    least : float
        A known bound.
    """
    from .block_program import BlockProgram

    program = BlockProgram(problem, stages)
    for cost in program.costs:
        program.model.add_linear_constraint(program.bottleneck >= cost)
    program.bottleneck.lower_bound = max(simple_bound(problem, stages), least)
    if math.isfinite(cutoff):
        first, last = stage_ranges(problem, stages, cutoff)
        if (first > last).any():
            return ProgramResult(cutoff, proved=True)
        program.restrict(first, last)
    result = program.solve(solver, seconds, threads, hint)
    if math.isinf(result.bound):  # no partition is within its ranges, so none is cheaper than the cutoff
        return ProgramResult(cutoff, proved=True)
    return ProgramResult(max(result.bound, simple_bound(problem, stages), least), result.stage_of, result.proved)


def stage_ranges(problem: PartitionProblem, stages: int, cutoff: float) -> tuple[Integers, Integers]:
    """Return the first and last stage of each node in any partition that costs at most ``cutoff``.

    Proof: Lemma 3 of ``docs/proofs/partition_programs.md``.
    """
    related = np.eye(problem.size, dtype=bool)  # [v, u]: u is v or before it
    order = problem.kahn(np.zeros(problem.size))
    before = neighbours(problem.size, ((v, u) for u, v in problem.edges))
    for v in order:
        for u in before[v]:
            related[v] |= related[u]
    work, room = problem.work, max(cutoff, 1e-300) * (1 + 1e-9)
    first = np.maximum(np.ceil(related @ work / room) - 1, 0)
    last = stages - np.maximum(np.ceil(related.T @ work / room), 1)
    return first.astype(np.int64), last.astype(np.int64)
