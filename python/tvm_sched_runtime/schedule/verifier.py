"""The verifier of schedules: it checks every rule of ``docs/model.md`` and describes violations."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice

import numpy as np

from ..checks import require_kind
from ..errors import InputError, ScheduleError
from ..problem import Problem, Workload
from .contiguity import contiguity_violations
from .indexed import ScheduleIndex
from .residency import Resident, resolved_in_run
from .resolve import in_scenarios, resolved
from .rules import RULES, Violation
from .schedule import Schedule, weighted_mean

__all__ = ["RULES", "Violation", "verify", "violations"]


def verify(
    problem: Problem,
    schedule: Schedule,
    contiguous: bool | int = False,
    resident: Resident = 0.0,
    workload: Workload | None = None,
) -> None:
    """Check that a schedule is feasible and that its certificate is true.

    Parameters
    ----------
    contiguous : bool or int
        Also check that the operators of a submodel on a device form one contiguous subgraph, or at most this many: no
        path leaves one and comes back (SortingHat, equations 6 to 8, where a device has several).
    resident : float or collection of str
        Also check that the memory suffices for warm runs, in which these parameters remain on the devices (see
        `simulate`). It is always checked for cold runs and for the requests of the certificate.
    workload : Workload, optional
        Also check that the schedule names this workload.

    Raises
    ------
    ScheduleError
        At the first broken rule; the message names the rule, the operator and the device.
    InputError
        ``resident`` is neither a fraction from 0 to 1 nor a list of parameters.

    Examples
    --------
    >>> from tvm_sched_runtime.schedule import verify
    >>> verify(problem, schedule)
    >>> verify(problem, schedule.replace(placements=schedule.placements[:2]))
    Traceback (most recent call last):
        ...
    tvm_sched_runtime.errors.ScheduleError: rule 'operator-missing': operator 'join' is placed on no ...
    """
    for violation in _find_violations(problem, schedule, contiguous, resident, workload, limit=1):
        raise ScheduleError(violation.message)


def violations(
    problem: Problem,
    schedule: Schedule,
    contiguous: bool | int = False,
    limit: int = 100,
    resident: Resident = 0.0,
    workload: Workload | None = None,
) -> list[Violation]:
    """List the broken rules, up to ``limit``; empty if `verify` accepts the schedule.

    Rules that need times (memory, the certificate) are checked only if the others hold.

    Examples
    --------
    >>> from tvm_sched_runtime.schedule import violations
    >>> violations(problem, schedule)
    []
    >>> violations(problem, schedule.replace(placements=schedule.placements[:2]))[0].message
    "rule 'operator-missing': operator 'join' is placed on no device; each operator is placed once"
    """
    return list(islice(_find_violations(problem, schedule, contiguous, resident, workload, limit), limit))


def _find_violations(
    problem: Problem,
    schedule: Schedule,
    contiguous: bool | int,
    resident: Resident,
    workload: Workload | None,
    limit: int,
) -> Iterator[Violation]:
    require_kind("problem", problem, Problem, "a Problem")
    require_kind("schedule", schedule, Schedule, "a Schedule")
    if schedule.problem != problem.digest:
        yield Violation(
            "problem",
            f"rule 'problem': the schedule was made for problem {schedule.problem!r}, this is {problem.digest!r}",
        )
    if workload is not None and schedule.workload != workload.digest:
        yield Violation(
            "workload",
            f"rule 'workload': the schedule was made for workload {schedule.workload!r}, this is {workload.digest!r}",
        )
    unresolved = problem, schedule
    try:
        problem, schedule = resolved(problem, schedule)
        index = ScheduleIndex.of(problem, schedule)
    except ScheduleError as error:
        yield Violation("problem", f"rule 'problem': {error}")
        return
    sets = {resolved_in_run(*unresolved, resident)[0].resident}
    broken = index.violations(limit)
    yield from broken
    yield from _evictions(problem, index)
    if contiguous:
        yield from contiguity_violations(problem, schedule, index, int(contiguous))
    if not broken:
        yield from _memory(problem, index)
        requests = schedule.certificate.requests if schedule.certificate else ()
        try:
            runs = in_scenarios(Workload(requests).scenarios(unresolved[0]), unresolved[1])
        except InputError as error:
            yield Violation("certificate", f"rule 'certificate': {error}")
            return
        yield from _certificate(schedule, [run.times.latency_ns for run in runs])
        sets |= {run.scenario.resident for run in runs}
        for names in sorted(sets - {frozenset()}, key=sorted):
            yield from _memory(problem, index.when_warm(names), f" of a warm run with {len(names)} parameters there")


def _evictions(problem: Problem, index: ScheduleIndex) -> Iterator[Violation]:
    """Check that only parameters that the model does not return are evicted."""
    for t, d in sorted(index.evicted):
        tensor, device = problem.graph.tensors[t], problem.topology.devices[d].name
        if tensor.kind != "parameter" or t in problem.graph.index.graph_outputs:
            what = f"of kind {tensor.kind!r}" if tensor.kind != "parameter" else "which the model returns"
            message = (
                f"rule 'evict': tensor {tensor.name!r}, {what}, is evicted from {device!r}; only other parameters are"
            )
            yield Violation("evict", message, "", device)


def _memory(problem: Problem, index: ScheduleIndex, run: str = "") -> Iterator[Violation]:
    """Check rule 5: report the first moment at which each device overflows; ``run`` describes the run."""
    over = [d for d, device in enumerate(problem.topology.devices) if index.times.peak_memory[d] > device.memory]
    if not over:
        return
    profile, holdings = index.memory_profile(), index.holdings()
    for d in over:
        device = problem.topology.devices[d]
        levels = profile[profile[:, 0] == d]
        _, moment, held = levels[np.argmax(levels[:, 2] > device.memory)].tolist()
        there = (holdings[:, 1] == d) & (holdings[:, 2] <= moment) & (holdings[:, 3] > moment)
        tensors = sorted(holdings[there, 0].tolist(), key=lambda t: -problem.graph.index.size[t])
        largest = ", ".join(f"{problem.graph.tensors[t].name!r} ({problem.graph.index.size[t]})" for t in tensors[:3])
        operator = _running(index, d, moment)
        during = f", while operator {operator!r} runs" if operator else ""
        message = (
            f"rule 'memory': device {device.name!r} holds {held} bytes at {moment} ns{run}{during}; "
            f"that is {held - device.memory} more than its memory of {device.memory} bytes. "
            f"It holds {len(tensors)} tensors, the largest are {largest}"
        )
        yield Violation("memory", message, operator, device.name)


def _running(index: ScheduleIndex, device: int, moment: int) -> str:
    """Return the operator that runs on a device at a moment; empty if there is none."""
    for p, (o, d) in enumerate(zip(index.operator, index.device, strict=True)):
        if d == device and index.times.start_ns[p] <= moment < index.times.end_ns[p]:
            return index.problem.graph.operators[o].name
    return ""


def _certificate(schedule: Schedule, latencies_ns: list[int]) -> Iterator[Violation]:
    """Check the latency of each request, or that of the cold run if there is no request."""
    certificate = schedule.certificate
    if certificate is None:
        return
    for k, (request, ns) in enumerate(zip(certificate.requests, latencies_ns, strict=False), 1):
        if request.latency_ns != ns:
            yield Violation(
                "certificate",
                f"rule 'certificate': it says {request.latency_ns} ns for request {k}, the simulation {ns} ns",
            )
    latency_ns = weighted_mean(certificate.requests, latencies_ns)
    if certificate.latency_ns != latency_ns:
        yield Violation(
            "certificate",
            f"rule 'certificate': it says {certificate.latency_ns} ns, the simulation {latency_ns} ns",
        )
    if not 0 <= certificate.lower_bound_ns <= certificate.latency_ns:
        yield Violation(
            "certificate",
            f"rule 'certificate': the lower bound is {certificate.lower_bound_ns} ns; "
            f"from 0 to the latency, {certificate.latency_ns} ns, is allowed",
        )
