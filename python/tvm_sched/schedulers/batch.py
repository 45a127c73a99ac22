"""Solve several problems in parallel on the available workers (`tvm_sched.worker_pool`)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ..errors import InputError, TvmSchedError
from ..problem import Problem
from ..schedule import Request, Schedule
from ..worker_pool import distribute
from .registry import solve

SolveRequest = tuple[Problem, str, Mapping[str, Any]] | tuple[Problem, str, Mapping[str, Any], Sequence[Request] | None]
"""A problem, the name of a scheduler, its options, and perhaps the requests to schedule for (`solve`)."""


def solve_many(requests: Sequence[SolveRequest]) -> list[Schedule | TvmSchedError]:
    """The schedule of each problem, or the error, in their order; equal to the results of separate calls of `solve`.

    Raises
    ------
    InputError
        A request is wrong; the others are cancelled.
    """
    return distribute(_solve, requests)


def _solve(
    problem: Problem, scheduler: str, options: Mapping[str, Any], requests: Sequence[Request] | None = None
) -> Schedule | TvmSchedError:
    try:
        return solve(problem, scheduler, options, requests=requests)
    except InputError:
        raise
    except TvmSchedError as error:
        return error
