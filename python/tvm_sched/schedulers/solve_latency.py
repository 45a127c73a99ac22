"""Minimise latency: call a method for a workload, check its schedule and compute the certificate."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from tvm_sched_runtime.errors import InputError, ScheduleError, SchedulerError
from tvm_sched_runtime.problem import COLD, Problem, Scenario, Workload
from tvm_sched_runtime.schedule import INTERRUPTED, Certificate, Schedule, evaluate
from tvm_sched_runtime.schedule.native_objects import native_problem
from tvm_sched_runtime.schedule.schedule import weighted_mean
from tvm_sched_runtime.schedule.verifier import verify
from tvm_sched_runtime.search_budget import SearchLimits, TimedOptions, despite_interrupt, ending_at

from ..bounds import lower_bound, optimality_threshold
from ..certify import Proof, answer_of, final_status, run_method
from ..progress import Progress
from .common.requests import schedule_each_request, schedule_for_requests
from .scheduler_registry import SchedulerFunction, get

CERTIFICATE_SHARE, CERTIFICATE_SECONDS = 0.1, 0.5
"""Part of a time limit that is kept for the certificate, and the most seconds of it."""

UNLIMITED_SECONDS, UNLIMITED_PLACES = 5.0, 1000
"""Seconds for the certificate of methods without a time limit, which take milliseconds where bounds may take minutes; and
the operators times devices up to which bounds have all their time, so that they do not depend on the clock."""

Options = Mapping[str, Any] | msgspec.Struct | None
"""Options of a method: values by name, whose texts are converted, or its struct."""


def minimise_latency(
    problem: Problem,
    workload: Workload = COLD,
    method: str = "anytime",
    options: Options = None,
    budget: SearchLimits | None = None,
    progress: Progress | None = None,
) -> Schedule:
    """Solve with a method for a workload, then check and certify the schedule; see `tvm_sched.schedulers.solve`.

    Its objective is the mean latency over the requests, whatever the workload's objective is.
    """
    scheduler = get(method)
    if not isinstance(workload, Workload):
        raise InputError(f"workload is {workload!r}; a Workload or None is allowed (methods are named by method=...)")
    workload.check(problem)
    native_problem(problem)  # loads the library (and PyTorch, if installed) before the method's time is measured
    chosen = scheduler.read_options(options)
    if budget is not None and isinstance(chosen, TimedOptions):
        chosen = chosen.within(budget)
    limit = chosen.seconds if isinstance(chosen, TimedOptions) else math.inf
    deadline = time.monotonic() + limit

    def run(function: SchedulerFunction, options: Any) -> Schedule:
        if not workload.requests:
            return function(problem, workload, options)
        count = len(workload.requests)
        part = options.part(count) if count > 1 and isinstance(options, TimedOptions) else options

        def schedules() -> Sequence[Schedule]:
            if count == 1 or not scheduler.weighs_requests:
                return schedule_each_request(problem, workload, lambda one: function(problem, one.workload, part))
            return [function(problem, workload, options)]

        try:
            return schedule_for_requests(problem, workload, schedules, _one_device)
        except ScheduleError as error:
            raise SchedulerError(f"the answer of scheduler {method!r} breaks a rule: {error}") from error

    with ending_at(deadline - min(CERTIFICATE_SHARE * limit, CERTIFICATE_SECONDS) if limit < math.inf else deadline):
        result = run_method(scheduler, chosen, Schedule, run, progress)
    if not isinstance(chosen, TimedOptions) and problem.places > UNLIMITED_PLACES:
        deadline = time.monotonic() + UNLIMITED_SECONDS
    with answer_of(scheduler):
        schedule = result.answer.replace(
            scheduler=result.method,
            options=msgspec.to_builtins(result.options),
            seconds=result.seconds,
            certificate=_certificate_until(deadline, problem, result.answer, workload),
            workload=workload.digest,
        )
        despite_interrupt(lambda: verify(problem, schedule))
    return schedule


def _certificate_until(deadline: float, problem: Problem, schedule: Schedule, workload: Workload) -> Certificate:
    """Certify a schedule by the bounds that are done by the deadline, or by Ctrl-C, which may have come before."""
    with ending_at(time.monotonic() if schedule.certificate == INTERRUPTED else deadline):
        whole, interrupted = despite_interrupt(lambda: certificate(problem, schedule, workload))
    status = "interrupted" if interrupted and whole.status != "optimal" else whole.status
    return msgspec.structs.replace(whole, status=status)


def _one_device(scenario: Scenario) -> Schedule:
    single = get("single")
    return single.function(scenario.problem, scenario.workload, single.read_options(None))


def certificate(problem: Problem, schedule: Schedule, workload: Workload | None = None) -> Certificate:
    """Compute a schedule's certificate; only the status of the search is taken from its own certificate.

    Parameters
    ----------
    workload : Workload, optional
        Its requests; default: the requests of the schedule's own certificate.

    Raises
    ------
    ScheduleError
        The schedule breaks a rule.
    SchedulerError
        A lower bound is above the latency: an internal error.
    """
    if workload is None:
        workload = Workload(schedule.certificate.requests if schedule.certificate else ())
    latency, each = evaluate(problem, schedule, workload)
    bounds = [lower_bound(scenario) for scenario in workload.scenarios(problem)]
    bound, name = weighted_mean(each, [b.ns for b in bounds]), ", ".join(dict.fromkeys(b.name for b in bounds))
    each = tuple(msgspec.structs.replace(r, lower_bound_ns=b.ns) for r, b in zip(each, bounds, strict=False))
    claimed = schedule.certificate.status if schedule.certificate else ""
    status = final_status(claimed, latency, Proof(bound, name, optimality_threshold(bound)))
    return Certificate(latency, bound, name, status, each)
