"""Resolve variants and joined parameters: problem and schedule that result from a choice, both without these."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from ..errors import ProblemError, ScheduleError
from ..problem import COLD, Problem, Scenario, Workload
from .indexed import ScheduleIndex
from .schedule import Certificate, RequestLatency, Schedule, weighted_mean


def resolved(problem: Problem, schedule: Schedule) -> tuple[Problem, Schedule]:
    """Return the problem without variants that a schedule's choice results in, and the schedule of that problem.

    Parameters that the schedule joins are one tensor in it. A problem without variants is returned as it is if none are
    joined. The certificate stays: its bound holds for all choices and all ways to join parameters.

    Raises
    ------
    ScheduleError
        The choice names an unknown group or alternative; or `Problem.resolve` cannot join the parameters.

    Examples
    --------
    >>> from tvm_sched_runtime.schedule import resolved
    >>> chosen, of_chosen = resolved(varied, solve(varied))
    >>> [operator.name for operator in chosen.graph.operators], of_chosen.choice
    (['left', 'right', 'again'], {})
    """
    if problem.variants is None and not schedule.choice and not schedule.joined:
        return problem, schedule
    try:
        chosen = problem.resolve(schedule.choice, schedule.joined)
    except ProblemError as error:
        raise ScheduleError(str(error)) from None
    digest = chosen.digest if schedule.problem == problem.digest else schedule.problem
    return chosen, schedule.replace(
        problem=digest, choice={}, joined=(), certificate=_certificate_of_chosen(schedule.certificate, chosen)
    )


def _certificate_of_chosen(certificate: Certificate | None, chosen: Problem) -> Certificate | None:
    """Drop the parameters of other alternatives from the requests of a certificate."""
    if certificate is None or not certificate.requests:
        return certificate
    there = chosen.graph.index.tensor_id.keys()
    requests = tuple(
        msgspec.structs.replace(r, resident=tuple(name for name in r.resident if name in there))
        for r in certificate.requests
    )
    return msgspec.structs.replace(certificate, requests=requests)


def resolved_scenario(scenario: Scenario, schedule: Schedule) -> tuple[Scenario, Schedule]:
    """Return the same run of the resolved problem, and the resolved schedule.

    Raises
    ------
    ScheduleError
        As `resolved`.

    Examples
    --------
    >>> from tvm_sched_runtime.problem import Scenario
    >>> from tvm_sched_runtime.schedule import resolved_scenario, simulate
    >>> run, of_run = resolved_scenario(Scenario(varied, resident=frozenset({"w"})), solve(varied))
    >>> simulate(run.problem, of_run, ["w"]).latency_ns
    2750
    """
    if scenario.variants is None and not schedule.choice and not schedule.joined:
        return scenario, schedule
    _, chosen = resolved(scenario.problem, schedule)
    return scenario.resolve(schedule.choice, schedule.joined), chosen


def in_scenarios(scenarios: Sequence[Scenario], schedule: Schedule) -> list[ScheduleIndex]:
    """Return the resolved schedule in each of several runs.

    Raises
    ------
    ScheduleError
        As `resolved`.

    Examples
    --------
    >>> from tvm_sched_runtime.problem import Scenario
    >>> from tvm_sched_runtime.schedule import in_scenarios
    >>> runs = [Scenario(problem), Scenario(problem, resident=frozenset({"w"}))]
    >>> [index.times.latency_ns for index in in_scenarios(runs, schedule)]
    [3750, 3250]
    """
    return [ScheduleIndex.of(*resolved_scenario(scenario, schedule)) for scenario in scenarios]


def evaluate(problem: Problem, schedule: Schedule, workload: Workload = COLD) -> tuple[int, tuple[RequestLatency, ...]]:
    """Return the latency of a schedule (ns, mean over the requests) and of each request, if there are any.

    Raises
    ------
    InputError, ScheduleError
        A request does not fit the problem (`Workload.check`); the schedule cannot be `resolved`, or breaks a rule.

    Examples
    --------
    >>> from tvm_sched_runtime.schedule import evaluate
    >>> evaluate(problem, schedule)
    (3750, ())
    """
    latencies = [run.times.latency_ns for run in in_scenarios(workload.scenarios(problem), schedule)]
    each = [RequestLatency(r.resident, r.weight, ns) for r, ns in zip(workload.requests, latencies, strict=False)]
    return weighted_mean(workload.requests, latencies), tuple(each)


def objective_ns(problem: Problem, schedule: Schedule, workload: Workload = COLD) -> int:
    """Return the objective of searches (ns): the latency as in `evaluate`, plus the workload's lags.

    Examples
    --------
    >>> from tvm_sched_runtime.problem import Workload
    >>> from tvm_sched_runtime.schedule import objective_ns
    >>> objective_ns(problem, schedule), objective_ns(problem, schedule, Workload(lags_ns=(500,)))
    (3750, 4250)
    """
    runs = in_scenarios(workload.scenarios(problem), schedule)
    return weighted_mean(workload.requests, [run.objective_ns for run in runs])


def with_choice(
    problem: Problem, schedule: Schedule, choice: Mapping[str, str], joined: Sequence[Sequence[str]] = ()
) -> Schedule:
    """Turn a schedule of `Problem.resolve`'s problem into one of the problem itself; inverse of `resolved`.

    Examples
    --------
    >>> from tvm_sched_runtime.schedule import resolved, with_choice
    >>> best = solve(varied)
    >>> chosen, of_chosen = resolved(varied, best)
    >>> with_choice(varied, of_chosen, best.choice).choice
    {'join': 'again'}
    """
    groups = problem.variants.groups if problem.variants else ()
    first = {group.name: group.graph_alternative for group in groups}
    named = {group: name for group, name in choice.items() if name != first[group]}
    return schedule.replace(problem=problem.digest, choice=named, joined=tuple(map(tuple, joined)))
