"""Improvers that find start schedules: list scheduling by many rules, and every quick registered method."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import msgspec

from tvm_sched_runtime.errors import InfeasibleError
from tvm_sched_runtime.problem import FORBIDDEN, HOST, Request, Scenario
from tvm_sched_runtime.schedule import Schedule, ScheduleIndex, resolved_scenario
from tvm_sched_runtime.schedule.schedule import weighted_mean
from tvm_sched_runtime.search_budget import Budget, OutOfTime, ending_at, seconds_left

from ...bounds import lower_bound
from ...progress import report_progress
from ..common.greedy import list_schedule, priorities
from ..common.native_methods import SCALES
from ..common.partial import PartialSchedule
from ..common.submodels import submodels_of
from ..scheduler_registry import get
from ..sortinghat import SortingHatOptions, heuristic_schedule
from .device_group_moves import RuleSchedule
from .list_rules import MOST_PLACES, device_groups, list_schedules
from .search_state import ScheduleState

BOLD_SCALES = (1.2, 1.6, 2.5)
"""Factors above 1 on the memory to try if `SCALES` give no schedule: counting by events overestimates memory."""

ALWAYS = ("single", "heft", "peft")
"""Methods that take milliseconds and always run."""

QUICK = ("pipelined", "deepplan", "hios-lp", "hios-mr", "hios-mr-anywhere")
"""Methods that take milliseconds on small problems, in the order in which they are tried."""

QUICK_SECONDS, QUICK_SHARE = 0.5, 0.1
"""A method is left out if it would take more than these seconds and more than this fraction of the work."""

HIOS_PLACES_SQUARED_PER_SECOND, DEEPPLAN_EVENTS_PER_SECOND = 1.6e10, 1.5e5
"""Approximate speeds on one core of a server. HIOS considers all pairs of (operator, device). DeepPlan makes a whole
schedule for each device and number of buses from which parameters come, and about one for each operator that can read host
memory."""


SUBMODEL_SHARE, SUBMODEL_PLACES_PER_SECOND = 0.3, 1e5
"""The start from submodels is left out if it would take more than this fraction of the work. It considers each device for
each pair of operators of a submodel, and each pair of devices for each operator."""

LEAST_OPERATORS = 256
"""Least number of operators of a graph for a start from submodels."""

LIST_SHARE = 0.4
"""Part of a search's time by the clock after which no more list schedules are tried."""


class ListScheduling:
    """List schedules by one rule after another; if memory does not suffice, again with smaller fractions of it.

    If no rule fits into memory, a frugal list schedule is tried.

    Parameters
    ----------
    most_places : int
        Largest number of operators times devices over all rules but the first four.
    """

    name = "list scheduling"

    def __init__(self, most_places: int = MOST_PLACES) -> None:
        self._most_places = most_places
        self._attempts: Iterator[bool] | None = None
        self._seconds = math.inf

    def step(self, state: ScheduleState, budget: Budget) -> bool:
        """Try one list schedule, until `LIST_SHARE` of the time by the clock is over and there is a schedule."""
        report_progress(self.name, 0, 1)
        if self._attempts is None:
            self._attempts, self._seconds = self._all(state), (1 - LIST_SHARE) * seconds_left()
        if seconds_left() < self._seconds and state.best is not None:
            return False
        return next(self._attempts, False)

    def _all(self, state: ScheduleState) -> Iterator[bool]:
        for scale in (*SCALES, *BOLD_SCALES):
            state.memory_scale = scale
            for sequence, rule in list_schedules(state.scenario, state.searches, scale, self._most_places):
                latency = state.offer_sequence(sequence, scale)
                if latency is not None and (state.listed is None or latency < state.listed.latency_ns):
                    state.listed = RuleSchedule(latency, sequence, rule)
                yield True
            if state.listed is not None or _frugal(state, scale):
                return


def _frugal(state: ScheduleState, scale: float) -> bool:
    """Offer the list schedule that moves the fewest bytes; return whether it fits."""
    partial = PartialSchedule(state.scenario, scale)
    try:
        list_schedule(partial, range(len(partial.placed)), priorities(state.scenario), frugal=True)
    except InfeasibleError as error:
        state.refuse(error)
        return False
    return state.offer_sequence(partial.sequence, scale) is not None


class QuickMethods:
    """Run quick registered methods, so that the answer is never worse than theirs.

    Parameters
    ----------
    methods : sequence of str
        Methods in the order of their runs.
    stage : int
        Largest number of operators that start together.
    """

    name = "quick methods"

    def __init__(self, methods: Sequence[str], stage: int) -> None:
        self._all, self._left = methods, list(methods)
        self._stage = stage

    def step(self, state: ScheduleState, budget: Budget) -> bool:
        """Run one method; first all of `ALWAYS`, until the deadline of the search around if one of them has a schedule."""
        always = [name for name in self._left if name in ALWAYS]
        for name in always or self._left[:1]:
            if state.best is not None and seconds_left() <= 0:
                return False
            self._left.remove(name)
            self._try(name, state)
        return bool(self._left)

    def _try(self, name: str, state: ScheduleState) -> None:
        report_progress(self.name, len(self._all) - len(self._left), len(self._all))
        try:
            schedule = run_quick_method(name, state.scenario, self._stage)
            index = ScheduleIndex.of(state.scenario, schedule)
        except InfeasibleError as error:
            state.tried[name] = str(error)
            state.refuse(error)
        except OutOfTime:
            state.tried[name] = "the time limit came first"
        else:
            state.tried[name] = state.offer_index(index)
            if schedule.certificate is not None and schedule.certificate.status == "interrupted":
                raise KeyboardInterrupt  # the method handled Ctrl-C and returned its incumbent


def run_quick_method(name: str, scenario: Scenario, stage: int) -> Schedule:
    """Return the schedule of a quick method; ``stage`` is the largest number of operators that start together."""
    method = get(name)
    options: dict[str, Any] = {"window": stage} if name.startswith("hios") else {}
    return method.function(scenario.problem, scenario.workload, msgspec.convert(options, method.options))


@dataclass
class QuickAnswer:
    """The answer of a quick method on a whole problem: its choice among variants, and the schedule of what was chosen."""

    method: str
    choice: dict[str, str]
    at: ScheduleIndex


def quick_answers(
    scenario: Scenario, mix: Sequence[Request], stage: int, work: float
) -> tuple[list[QuickAnswer], bool]:
    """Return the answers of all quick methods as their users get them, the fastest first, and whether Ctrl-C came.

    HEFT and PEFT choose among variants by themselves; the others take the graph as it is.
    """

    def cost(answer: QuickAnswer) -> int:
        runs = [scenario.with_resident(request.resident).resolve(answer.choice) for request in mix]
        times = [answer.at.when_warm(run.resident).objective_ns for run in runs]
        return weighted_mean(mix, times) if mix else answer.at.objective_ns

    answers: list[QuickAnswer] = []
    interrupted = False
    for name in (*ALWAYS, *quick_methods(scenario, work)):
        if answers and seconds_left() <= 0:
            break
        with suppress(InfeasibleError, OutOfTime):
            try:
                schedule = run_quick_method(name, scenario, stage)
                answers.append(
                    QuickAnswer(name, schedule.choice, ScheduleIndex.of(*resolved_scenario(scenario, schedule)))
                )
            except KeyboardInterrupt:
                if not answers:
                    raise
                interrupted = True
                break
    return sorted(answers, key=cost), interrupted


class SubmodelStart:
    """Start from submodels between dominators: `sortinghat`'s heuristic places all operators of a submodel together.

    Parameters
    ----------
    seconds : float
        Work that the start counts as.
    """

    name = "submodels"

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds

    def step(self, state: ScheduleState, budget: Budget) -> bool:
        """Schedule all submodels; offer nothing if the deadline passes before the end."""
        budget.spend(self._seconds)
        with suppress(InfeasibleError, OutOfTime), ending_at(budget.deadline):
            index = heuristic_schedule(state.scenario, state.memory_scale)
            if index is not None:
                state.offer_index(index)
        return False


BOUND_SHARE = 0.5
"""Part of a search's time by the clock after which the lower bound is cut off."""


class LowerBound:
    """The lower bound. It follows the first schedules, since it takes seconds for thousands of operators.

    Parameters
    ----------
    bound_of : Scenario, optional
        The run with variants that the state's run resolves; its bound holds for both.
    """

    name = ""

    def __init__(self, bound_of: Scenario | None = None) -> None:
        self._bound_of = bound_of

    def step(self, state: ScheduleState, budget: Budget) -> bool:
        """Compute the whole bound, or what `BOUND_SHARE` of the time that is left suffices for."""
        scenario = self._bound_of or state.scenario
        runs = [scenario.with_resident(request.resident) for request in state.mix] or [scenario]
        with ending_at(time.monotonic() + BOUND_SHARE * seconds_left()):
            bounds = [lower_bound(run) for run in runs]
        state.raise_bound(weighted_mean(state.mix, [bound.ns for bound in bounds]), bounds[0].name)
        return False


def quick_methods(scenario: Scenario, work: float) -> list[str]:
    """Return the methods of `QUICK` that take a small share of ``work`` seconds."""
    operators, devices = len(scenario.graph.operators), len(scenario.topology.devices)
    readers = int((scenario.costs.direct_ns != FORBIDDEN).any(axis=1).sum())
    loads = len({t for read in scenario.graph.index.host_inputs for t in read})
    plans = sum(len(group) * len(_buses_of(scenario, group)) for group in device_groups(scenario))
    deepplan = (readers * operators + plans * (operators + loads)) / DEEPPLAN_EVENTS_PER_SECOND
    hios = (operators * devices) ** 2 / HIOS_PLACES_SQUARED_PER_SECOND
    seconds = {"deepplan": deepplan, "hios-lp": hios, "hios-mr": hios, "hios-mr-anywhere": hios}
    most = max(QUICK_SECONDS, QUICK_SHARE * work)
    return [name for name in QUICK if seconds.get(name, 0.0) <= most]


def _buses_of(scenario: Scenario, devices: Sequence[int]) -> set[int]:
    """Return the first channels by which the devices get parameters: buses, or the storage before them."""
    return {route.channels[0] for d in devices if (route := scenario.topology.route(HOST, d))}


def submodel_start(scenario: Scenario, work: float) -> SubmodelStart | None:
    """Return the start from submodels if the model is large and it takes a small share of ``work`` seconds.

    It pays for models of hundreds of operators, whose schedules the other searches cannot change in all parts.
    """
    operators, devices = len(scenario.graph.operators), len(scenario.topology.devices)
    most = SUBMODEL_SHARE * work * SUBMODEL_PLACES_PER_SECOND
    if operators < LEAST_OPERATORS or operators * devices * (devices + 1) > most:
        return None
    options = SortingHatOptions()
    groups = submodels_of(scenario, options.dominators, options.operators)
    places = sum(len(group) * devices * (devices + len(group)) for group in groups)
    return SubmodelStart(places / SUBMODEL_PLACES_PER_SECOND) if places <= most else None
