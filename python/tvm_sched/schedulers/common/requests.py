"""Schedules for warm runs, and for a mix of requests with weights (``docs/model.md``, "Cold and warm")."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from tvm_sched_runtime.errors import InfeasibleError, SchedulerError
from tvm_sched_runtime.problem import Problem, Scenario, Workload
from tvm_sched_runtime.schedule import INTERRUPTED, Schedule, ScheduleIndex, in_scenarios, objective_ns

from .native_methods import shortfall


@dataclass
class _Attempts:
    """Schedules for the requests of a workload, and the errors of requests without one."""

    schedules: list[Schedule] = field(default_factory=list)
    refusals: list[InfeasibleError] = field(default_factory=list)
    interrupted: bool = False

    def add(self, method: Callable[[], Schedule]) -> None:
        """Call a method, and keep what it returns."""
        try:
            schedule = method()
        except InfeasibleError as error:
            self.refusals.append(error)
            return
        if not isinstance(schedule, Schedule):
            raise SchedulerError(f"the method returned a {type(schedule).__name__}; a Schedule is expected")
        self.schedules.append(schedule)
        self.interrupted = self.interrupted or schedule.certificate == INTERRUPTED


def schedule_each_request(
    problem: Problem, workload: Workload, method: Callable[[Scenario], Schedule]
) -> list[Schedule]:
    """Return a method's schedules for the run of each request; Ctrl-C skips the remaining requests.

    Raises
    ------
    InfeasibleError
        The method has no schedule for any request.
    """
    attempts = _Attempts()
    for scenario in workload.scenarios(problem):
        if not attempts.interrupted:
            attempts.add(lambda scenario=scenario: method(scenario))  # type: ignore[misc]
    if not attempts.schedules:
        raise attempts.refusals[0]
    return attempts.schedules


def best_schedule(problem: Problem, workload: Workload, schedules: Sequence[Schedule]) -> Schedule | None:
    """Return the schedule of least objective that has memory for the runs of all requests and for a cold run."""
    fitting = [each for each in schedules if _fits(problem, each, workload)]
    return min(fitting, key=lambda schedule: objective_ns(problem, schedule, workload), default=None)


def schedule_for_requests(
    problem: Problem,
    workload: Workload,
    methods: Callable[[], Sequence[Schedule]],
    one_device: Callable[[Scenario], Schedule],
) -> Schedule:
    """Return the best schedule for all requests, among a method's schedules and those of one device.

    One device is the baseline: if nothing has to be loaded, several devices may only add copies, which a method for cold
    runs does not consider.

    Parameters
    ----------
    workload : Workload
        With one request or more.
    methods : callable
        Returns the method's schedules, one or more.
    one_device : callable
        The schedule of one device for a run; raises `InfeasibleError` if no device can run all operators.

    Raises
    ------
    InfeasibleError
        As ``methods``; or no schedule has memory for the runs of all requests.
    """
    schedules = list(methods())
    interrupted = any(each.certificate == INTERRUPTED for each in schedules)
    alone = _Attempts()
    for scenario in workload.scenarios(problem):
        alone.add(lambda scenario=scenario: one_device(scenario))  # type: ignore[misc]
    best = best_schedule(problem, workload, [*schedules, *alone.schedules])
    if best is None:
        raise InfeasibleError(
            "memory does not suffice for the runs of all requests in any schedule of the search; use devices with more "
            "memory, or make fewer parameters resident"
        )
    if not any(best is each for each in schedules):
        best = best.replace(notes={**best.notes, "instead": "one device, which is faster for these requests"})
    return best.replace(certificate=INTERRUPTED) if interrupted else best


def _fits(problem: Problem, schedule: Schedule, workload: Workload) -> bool:
    """Return whether the memory suffices in a run of each request, and in a cold one."""
    runs: list[ScheduleIndex] = in_scenarios(workload.scenarios(problem), schedule)
    return all(shortfall(run)[0] <= 0 for run in runs)
