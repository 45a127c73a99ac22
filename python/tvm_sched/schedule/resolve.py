"""Resolve variants: the problem and the schedule that result from a choice, both without variants."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from ..errors import ProblemError, ScheduleError
from ..problem import Problem
from .indexed import ScheduleIndex
from .schedule import Certificate, Request, Schedule, weighted_mean


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


def in_requests(problem: Problem, schedule: Schedule, requests: Sequence[Request]) -> list[ScheduleIndex]:
    """The resolved schedule in a run of each request.

    Raises
    ------
    InputError
        A request names what is no parameter of the problem.
    ScheduleError
        As `resolved`.
    """
    runs = [resolved(problem.with_resident(request.resident), schedule) for request in requests]
    return [ScheduleIndex.of(*run) for run in runs]


def priced(problem: Problem, schedule: Schedule, requests: Sequence[Request]) -> tuple[int, tuple[Request, ...]]:
    """The latency of a schedule in nanoseconds, the mean over the requests; and the requests with theirs.

    Without requests it is that of a run of the problem as it is.

    Raises
    ------
    InputError, ScheduleError
        As `in_requests`; or the schedule breaks a rule.
    """
    if not requests:
        return ScheduleIndex.of(*resolved(problem, schedule)).times.latency_ns, ()
    latencies = [run.times.latency_ns for run in in_requests(problem, schedule, requests)]
    each = [msgspec.structs.replace(r, latency_ns=ns) for r, ns in zip(requests, latencies, strict=True)]
    return weighted_mean(requests, latencies), tuple(each)


def counted(problem: Problem, schedule: Schedule, requests: Sequence[Request]) -> int:
    """The objective of searches in nanoseconds: the latency as in `priced`, including the lags of models (`with_lags`)."""
    if not requests:
        return ScheduleIndex.of(*resolved(problem, schedule)).counted_ns
    return weighted_mean(requests, [run.counted_ns for run in in_requests(problem, schedule, requests)])


def with_choice(problem: Problem, schedule: Schedule, choice: dict[str, str]) -> Schedule:
    """Turn a schedule of the problem that ``choice`` results in into one of the problem itself; inverse of `resolved`."""
    assert problem.variants is not None
    first = {group.name: group.graph_way for group in problem.variants.groups}
    named = {group: way for group, way in choice.items() if way != first[group]}
    return schedule.replace(problem=problem.digest, choice=named)
