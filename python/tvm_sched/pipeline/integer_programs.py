"""The bounds of Archer et al. (ICML 2024) for max-throughput partitioning by integer programs.

All programs are one over numbered blocks, `block_program`, with some blocks standing for one stage and others for several.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np

from ..bounds.partitions.simple import simple_bound
from ..problem.partition_problem import Integers, PartitionProblem
from ..worker_pool import distribute, have_workers
from .program_result import ProgramResult

if TYPE_CHECKING:
    from .block_program import BlockProgram


def bottleneck_bound(
    problem: PartitionProblem, stages: int, *, solver: str = "highs", seconds: float = 60, threads: int = 1
) -> ProgramResult:
    """Section 3.2: a stage with at least the simple bound's work, all earlier and all later stages free of charge.

    The paper prints the objective as the middle block's cost; overflow and transfers of that block are in it.
    """
    from .block_program import BlockProgram

    program = BlockProgram(problem, 3)
    program.model.add_linear_constraint(program.works[1] >= simple_bound(problem, stages))
    program.model.add_linear_constraint(program.bottleneck >= program.costs[1])
    return _no_stages(program.solve(solver, seconds, threads))


def bottleneck_guess_bound(
    problem: PartitionProblem,
    stages: int,
    *,
    solver: str = "highs",
    seconds: float = 60,
    threads: int = 1,
    stop: Callable[[], bool] = lambda: False,
) -> ProgramResult:
    """Section 3.3: guess which stage has the simple bound's work; the least bound of all guesses holds.

    Guesses share the time equally; what a guess leaves over, the later ones get. Where there are workers
    (`tvm_sched.worker_pool`), each guess is a part and has all the time; the bound is the same unless time ends one.
    """
    if have_workers():
        parts = [(problem, stages, j, solver, seconds, threads) for j in range(stages)]
        results = distribute(_solve_guess, parts)
        bound = max(min(result.bound for result in results), simple_bound(problem, stages))
        return ProgramResult(bound, proved=all(result.proved for result in results))
    least, proved = float("inf"), True
    left = seconds
    for j in range(stages):
        if stop():
            return ProgramResult(simple_bound(problem, stages))
        started = time.monotonic()
        result = _solve_guess(problem, stages, j, solver, left / (stages - j), threads)
        left = max(left - (time.monotonic() - started), 0.0)
        least, proved = min(least, result.bound), proved and result.proved
        if least <= simple_bound(problem, stages):
            break
    return ProgramResult(max(least, simple_bound(problem, stages)), proved=proved)


def _solve_guess(
    problem: PartitionProblem, stages: int, j: int, solver: str, seconds: float, threads: int
) -> ProgramResult:
    return _guess(problem, stages, j).solve(solver, seconds, threads)


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
    """Section 3.1, equations (5) to (12), and ranges of stages that are not in the paper.

    Parameters
    ----------
    hint : array of int, optional
        A partition to start from: the stage of each node.
    cutoff : float
        Cost of a partition. Cheaper ones only are looked for, in which each node has a range of stages (`stage_ranges`);
        where there are none, the bound is the cutoff.
    least : float
        A bound known before.
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
    before: list[list[int]] = [[] for _ in range(problem.size)]
    for u, v in problem.edges:
        before[v].append(u)
    for v in order:
        for u in before[v]:
            related[v] |= related[u]
    work, room = problem.work, max(cutoff, 1e-300) * (1 + 1e-9)
    first = np.maximum(np.ceil(related @ work / room) - 1, 0)
    last = stages - np.maximum(np.ceil(related.T @ work / room), 1)
    return first.astype(np.int64), last.astype(np.int64)


def _no_stages(result: ProgramResult) -> ProgramResult:
    """The blocks of a relaxation are no stages."""
    return ProgramResult(result.bound, None, result.proved)
