"""Schedulers by name: each maps a Problem to a Schedule; `solve` calls one, checks its answer and certifies it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec

from ..bounds import lower_bound, optimality_threshold
from ..certify import MethodResult, Proof, certify, final_status
from ..errors import InputError, ScheduleError, SchedulerError
from ..problem import Problem
from ..progress import Progress
from ..registry import Method, Methods
from ..schedule import Certificate, Request, Schedule, priced
from ..schedule._compiled import compiled
from ..schedule.critical_path import critical_path
from ..schedule.schedule import weighted_mean
from ..schedule.verifier import verify
from .common.requests import schedule_for_requests
from .common.submodels import use_submodels

REFERENCES: Mapping[str, Callable[[Problem], int]] = {"critical-path": critical_path}
"""Latencies in nanoseconds to draw beside those of schedulers, by name: no schedule stands behind them."""

SchedulerFunction = Callable[[Problem, Any], Schedule]
"""`solve` makes the certificate; its status is that of the method's own one, if there is any (`Certificate.unchecked`)."""

SCHEDULERS: Methods[SchedulerFunction] = Methods("scheduler", "tvm_sched.schedulers")
register = SCHEDULERS.register
names = SCHEDULERS.names


def get(name: str) -> Method[SchedulerFunction]:
    """The scheduler of that name; raises `InputError` that lists the registered ones."""
    if name in REFERENCES:
        raise InputError(
            f"{name!r} is a latency to compare with, not a scheduler: `tvm-sched compare` shows it; there are the "
            f"schedulers {', '.join(names())}"
        )
    return SCHEDULERS.get(name)


def solve(
    problem: Problem,
    name: str = "anytime",
    options: Mapping[str, Any] | msgspec.Struct | None = None,
    progress: Progress | None = None,
    submodels: Sequence[Sequence[str]] | None = None,
    requests: Sequence[Request] | None = None,
) -> Schedule:
    """Schedule a problem, check the answer and add its certificate.

    Parameters
    ----------
    problem : Problem
    name : str
    options : mapping or options struct, optional
        Strings are converted, so that command-line values can be given as they are.
    progress : callable, optional
    submodels : sequence of sequences of str, optional
        Operators of each submodel, in order, for schedulers that solve submodels; without it they split the graph at its
        dominators. Of a problem with variants those that choose among them split what they chose.
    requests : sequence of Request, optional
        The runs to schedule for, see `tvm_sched.schedule.requests_of`: the schedule is the best that is found for them, by
        the mean of their latencies, and no worse than `single`'s; its certificate says for which it is. None: cold runs.
        By default they are runs of the problem as it is, with what is resident there (`Problem.with_resident`).

    Raises
    ------
    InputError
        No such scheduler or option, ``submodels`` do not hold each operator once, after what it reads, or a request names
        what is no parameter.
    InfeasibleError
        No schedule obeys the memory limits, as far as the scheduler can tell.
    SchedulerError
        The scheduler's answer breaks a rule of ``docs/model.md``, or is no schedule.
    """
    scheduler = get(name)
    compiled(problem)  # loads the library, and PyTorch with it where that is installed: seconds that are no method's

    asked = _own_requests(problem) if requests is None else tuple(requests)

    def run(function: SchedulerFunction, chosen: msgspec.Struct) -> Schedule:
        with use_submodels(problem, submodels):
            if not asked:
                return function(problem.cold, chosen)
            part = chosen.part(len(asked)) if len(asked) > 1 and hasattr(chosen, "part") else chosen
            try:
                return schedule_for_requests(problem, asked, lambda warm: function(warm, part), _one_device)
            except ScheduleError as error:
                raise SchedulerError(f"the answer of scheduler {name!r} breaks a rule: {error}") from error

    def price(found: MethodResult[Schedule]) -> Schedule:
        return found.answer.replace(
            scheduler=found.method,
            options=msgspec.to_builtins(found.options),
            seconds=found.seconds,
            certificate=certificate(problem, found.answer, asked),
        )

    return certify(scheduler, options, Schedule, run, price, lambda schedule: verify(problem, schedule), progress)


def _own_requests(problem: Problem) -> tuple[Request, ...]:
    """A run of the problem as it is; none where nothing is resident."""
    return (Request(tuple(sorted(problem.resident))),) if problem.resident else ()


def _one_device(problem: Problem) -> Schedule:
    single = get("single")
    return single.function(problem, single.read_options(None))


def certificate(problem: Problem, schedule: Schedule, requests: Sequence[Request] | None = None) -> Certificate:
    """Compute a schedule's certificate; only the status of the search is taken from its own certificate.

    Parameters
    ----------
    problem : Problem
    schedule : Schedule
    requests : sequence of Request, optional
        The runs that it is to speak of; by default those of its own certificate, without which those of the problem.

    Raises
    ------
    ScheduleError
        The schedule breaks a rule.
    SchedulerError
        A lower bound is above its latency, which would be a fault of ours.
    """
    if requests is None:
        requests = (schedule.certificate.requests if schedule.certificate else ()) or _own_requests(problem)
    latency, each = priced(problem.cold, schedule, requests)
    bounds = [lower_bound(problem.with_resident(request.resident)) for request in each] or [lower_bound(problem.cold)]
    bound, name = weighted_mean(each, [b.ns for b in bounds]), ", ".join(dict.fromkeys(b.name for b in bounds))
    each = tuple(msgspec.structs.replace(r, lower_bound_ns=b.ns) for r, b in zip(each, bounds, strict=False))
    claimed = schedule.certificate.status if schedule.certificate else ""
    status = final_status(claimed, latency, Proof(bound, name, optimality_threshold(bound)))
    return Certificate(latency, bound, name, status, each)
