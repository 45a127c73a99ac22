"""`solve`: schedule a problem for a workload by a registered method; `solve_many`: several problems in parallel."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tvm_sched_runtime.checks import require_kind
from tvm_sched_runtime.errors import InputError, TvmSchedError
from tvm_sched_runtime.problem import COLD, Problem, Workload
from tvm_sched_runtime.schedule import Schedule
from tvm_sched_runtime.search_budget import SearchLimits

from ..progress import Progress
from ..worker_pool import distribute
from .fairness import solve_fairly
from .solve_latency import Options, minimise_latency

SolveCall = tuple[Problem, Workload, str, Mapping[str, Any]]
"""Problem, workload, name of a scheduler and its options: the first arguments of `solve`."""


def solve(
    problem: Problem,
    workload: Workload | None = None,
    method: str = "anytime",
    options: Options = None,
    budget: SearchLimits | None = None,
    progress: Progress | None = None,
) -> Schedule:
    """Schedule a problem for a workload, check the answer and add its certificate.

    Parameters
    ----------
    workload : Workload, optional
        The runs to schedule for, the objective, and submodels for methods that solve submodels. With requests the schedule
        has the best mean latency over them, and is no worse than that of `single`. Without a
        workload: one cold run.
    method : str
        A registered scheduler.
    options : mapping or options struct, optional
        Options of the method; strings, such as values of the command line, are converted.
    budget : SearchLimits, optional
        Time and work; they replace the limits among the options. Methods without limits end by themselves.

    Raises
    ------
    InputError
        The scheduler or option is unknown, or the workload does not fit the problem (`Workload.check`).
    InfeasibleError
        No schedule obeys the memory limits, as far as the scheduler can tell.
    SchedulerError
        The scheduler's answer breaks a rule of ``docs/model.md``, or is not a schedule.

    Examples
    --------
    >>> solve(problem, method="heft").certificate
    Certificate(latency_ns=3750, lower_bound_ns=3750, bound='critical path', status='optimal', requests=())
    >>> solve(problem, method="anytime", options={"seed": 1}).certificate.latency_ns
    3750
    """
    workload = COLD if workload is None else workload
    require_kind("problem", problem, Problem, "a Problem (Problem.load reads one)")
    if budget is not None:
        require_kind("budget", budget, SearchLimits, "SearchLimits or None")
    if isinstance(workload, Workload) and workload.objective == "slowdown":
        return solve_fairly(problem, workload, method, options, budget, progress)[0]
    return minimise_latency(problem, workload, method, options, budget, progress)


def solve_many(calls: Sequence[SolveCall]) -> list[Schedule | TvmSchedError]:
    """Return the schedule or the error of each call, in order; equal to separate calls of `solve`.

    Raises
    ------
    InputError
        A call is wrong; the others are cancelled.
    """
    return distribute(solve_or_error, calls, "schedules")


def solve_or_error(
    problem: Problem, workload: Workload, method: str, options: Mapping[str, Any]
) -> Schedule | TvmSchedError:
    """Return the schedule of `solve`, or its error unless the input is wrong."""
    try:
        return solve(problem, workload, method, options)
    except InputError:
        raise
    except TvmSchedError as error:
        return error
