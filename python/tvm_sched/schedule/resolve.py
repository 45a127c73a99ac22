"""Resolve variants: the problem and the schedule that result from a choice, both without variants."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from ..errors import ProblemError, ScheduleError
from ..problem import COLD, Problem, Scenario, Workload
from .indexed import ScheduleIndex
from .schedule import Certificate, RequestLatency, Schedule, weighted_mean


def resolved(problem: Problem, schedule: Schedule) -> tuple[Problem, Schedule]:
    """The problem that results from a schedule's choice of ways, and the schedule of that problem.

    Where the problem has no variants they are the two that were given. The schedule keeps its certificate, whose bound holds
    over all variants.

    Raises
    ------
    ScheduleError
        It chooses a group or a way that the problem does not have.
    """
    if problem.variants is None and not schedule.choice:
        return problem, schedule
    try:
        chosen = problem.resolve(schedule.choice)
    except ProblemError as error:
        raise ScheduleError(str(error)) from None
    digest = chosen.digest if schedule.problem == problem.digest else schedule.problem
    return chosen, schedule.replace(
        problem=digest, choice={}, certificate=_certificate_of_chosen(schedule.certificate, chosen)
    )


def _certificate_of_chosen(certificate: Certificate | None, chosen: Problem) -> Certificate | None:
    """The certificate, whose requests name no parameters of ways that were not chosen."""
    if certificate is None or not certificate.requests:
        return certificate
    there = chosen.graph.index.tensor_id.keys()
    requests = tuple(
        msgspec.structs.replace(r, resident=tuple(name for name in r.resident if name in there))
        for r in certificate.requests
    )
    return msgspec.structs.replace(certificate, requests=requests)


def resolved_scenario(scenario: Scenario, schedule: Schedule) -> tuple[Scenario, Schedule]:
    """The same run of the resolved problem, and the resolved schedule.

    Raises
    ------
    ScheduleError
        As `resolved`.
    """
    if scenario.variants is None and not schedule.choice:
        return scenario, schedule
    _, chosen = resolved(scenario.problem, schedule)
    return scenario.resolve(schedule.choice), chosen


def in_scenarios(scenarios: Sequence[Scenario], schedule: Schedule) -> list[ScheduleIndex]:
    """The resolved schedule in each of several runs.

    Raises
    ------
    ScheduleError
        As `resolved`.
    """
    return [ScheduleIndex.of(*resolved_scenario(scenario, schedule)) for scenario in scenarios]


def evaluate(problem: Problem, schedule: Schedule, workload: Workload = COLD) -> tuple[int, tuple[RequestLatency, ...]]:
    """The latency of a schedule in nanoseconds, the mean over the requests; and that of each request, if there are any.

    Raises
    ------
    InputError, ScheduleError
        A request does not fit the problem (`Workload.check`); the schedule cannot be `resolved`, or breaks a rule.
    """
    latencies = [run.times.latency_ns for run in in_scenarios(workload.scenarios(problem), schedule)]
    each = [RequestLatency(r.resident, r.weight, ns) for r, ns in zip(workload.requests, latencies, strict=False)]
    return weighted_mean(workload.requests, latencies), tuple(each)


def objective_ns(problem: Problem, schedule: Schedule, workload: Workload = COLD) -> int:
    """The objective of searches in nanoseconds: the latency as in `evaluate`, including the workload's lags."""
    runs = in_scenarios(workload.scenarios(problem), schedule)
    return weighted_mean(workload.requests, [run.objective_ns for run in runs])


def with_choice(problem: Problem, schedule: Schedule, choice: dict[str, str]) -> Schedule:
    """Turn a schedule of the problem that ``choice`` results in into one of the problem itself; inverse of `resolved`."""
    assert problem.variants is not None
    first = {group.name: group.graph_way for group in problem.variants.groups}
    named = {group: way for group, way in choice.items() if way != first[group]}
    return schedule.replace(problem=problem.digest, choice=named)
