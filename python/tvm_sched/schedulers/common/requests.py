"""Schedules for warm runs, and for a mix of requests with weights (``docs/model.md``, "Cold and warm")."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextvars import ContextVar

from ...errors import InfeasibleError, SchedulerError
from ...problem import Problem
from ...schedule import INTERRUPTED, Certificate, Request, Schedule, counted, in_requests
from .compiled_methods import shortfall

Method = Callable[[Problem], Schedule]


_requests_to_serve: ContextVar[tuple[Problem, tuple[Request, ...]] | None] = ContextVar(
    "tvm_sched_requests", default=None
)


def requests_in_mix(problem: Problem) -> tuple[Request, ...]:
    """The requests that a schedule should serve where `schedule_for_requests` calls the method for one of them; else none.

    A method may leave the others out of account; what it finds is judged by all of them.
    """
    given = _requests_to_serve.get()
    return given[1] if given is not None and given[0] is problem.cold and len(given[1]) > 1 else ()


def schedule_for_requests(
    problem: Problem, requests: Sequence[Request], method: Method, one_device: Method
) -> Schedule:
    """A method's schedule for requests: the best of those that it finds for each request and of one device's.

    One device is the one to beat: where nothing is left to load, several only have copies to add, which a method that was
    made for cold runs need not see.

    Parameters
    ----------
    problem : Problem
    requests : sequence of Request
        One or more.
    method, one_device : callable
        The second raises `InfeasibleError` where no device can run all operators.

    Raises
    ------
    InfeasibleError
        As ``method``; or nothing that was found has memory for the runs of all requests.
    """
    found: list[Schedule] = []
    refusals: list[InfeasibleError] = []
    interrupted = False
    token = _requests_to_serve.set((problem.cold, tuple(requests)))
    try:
        for request in requests:
            if not interrupted:
                interrupted = _try(method, problem, request, found, refusals) == INTERRUPTED
    finally:
        _requests_to_serve.reset(token)
    if not found:
        raise refusals[0]
    alone: list[Schedule] = []
    for request in requests:
        _try(one_device, problem, request, alone, refusals)
    fitting = [each for each in (*found, *alone) if _fits(problem, each, requests)]
    if not fitting:
        raise InfeasibleError(
            "memory does not suffice for the runs of all requests in any schedule that was found; use devices with more "
            "memory, or leave parameters out of what is resident"
        )
    best = min(fitting, key=lambda schedule: counted(problem, schedule, requests))
    if not any(best is each for each in found):
        best = best.replace(notes={**best.notes, "instead": "one device, which is faster for these requests"})
    return best.replace(certificate=INTERRUPTED) if interrupted else best


def _try(
    method: Method, problem: Problem, request: Request, found: list[Schedule], refusals: list[InfeasibleError]
) -> Certificate | None:
    """Add what a method finds for a request; how its search ended."""
    try:
        schedule = method(problem.with_resident(request.resident))
    except InfeasibleError as error:
        refusals.append(error)
        return None
    if not isinstance(schedule, Schedule):
        raise SchedulerError(f"the method returned a {type(schedule).__name__}; a Schedule is expected")
    found.append(schedule)
    return schedule.certificate


def _fits(problem: Problem, schedule: Schedule, requests: Sequence[Request]) -> bool:
    """Whether the memory suffices in a run of each request, and in a cold one."""
    return all(shortfall(run)[0] <= 0 for run in in_requests(problem, schedule, requests))
