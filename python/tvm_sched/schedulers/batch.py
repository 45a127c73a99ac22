"""Solve several problems in parallel on the available workers (`tvm_sched.worker_pool`)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ..errors import InputError, TvmSchedError
from ..problem import Problem, Workload
from ..schedule import Schedule
from ..worker_pool import distribute
from .solver import solve

SolveCall = tuple[Problem, Workload, str, Mapping[str, Any]]
"""Problem, workload, name of a scheduler and its options: the first arguments of `solve`."""


def solve_many(calls: Sequence[SolveCall]) -> list[Schedule | TvmSchedError]:
    """The schedule of each call, or the error, in their order; equal to the results of separate calls of `solve`.

    Raises
    ------
    InputError
        A call is wrong; the others are cancelled.
    """
    return distribute(_solve, calls)


def _solve(problem: Problem, workload: Workload, method: str, options: Mapping[str, Any]) -> Schedule | TvmSchedError:
    try:
        return solve(problem, workload, method, options)
    except InputError:
        raise
    except TvmSchedError as error:
        return error
