"""The scheduler `sortinghat`: submodels at dominators, a program for each, merged (ICS 2025)."""

from __future__ import annotations

import time
from dataclasses import dataclass
from functools import partial

import msgspec

from tvm_sched_runtime.checks import require_at_least
from tvm_sched_runtime.errors import InfeasibleError, InputError
from tvm_sched_runtime.problem import Problem, Scenario, Workload
from tvm_sched_runtime.schedule import ENDED, INTERRUPTED, TIME_OVER, Schedule, ScheduleIndex, with_choice
from tvm_sched_runtime.search_budget import OutOfTime, check_time, despite_interrupt, ending_at, seconds_left

from ...progress import report_progress
from ...registry import NoOptions
from ..common.merging import ListedSchedule, PricedSchedule, merge_events
from ..common.milp import Effort, ProgramOptions
from ..common.native_methods import SCALES, fit_into_memory, list_order
from ..common.submodels import submodels_of
from ..heft import heft
from ..scheduler_registry import register
from .adjustments import Adjustments, Latencies
from .handover import State
from .heuristic import EVALUATIONS, best_assignment, improve
from .outcome import Outcome, notes_of
from .position_windows import tightened
from .repeats import Repeats
from .submodel import Submodel, evaluate


class SortingHatOptions(ProgramOptions, frozen=True, forbid_unknown_fields=True):
    """Options of `sortinghat`: those of `ProgramOptions`, adjustments (Section 3.4), ablations (Section 4.4).

    Parameters
    ----------
    q : int
        Subgraphs of a device in a submodel, an even number; every second one has direct host access.
    direct_contention : bool
        Latencies with direct host access count times twice the devices on the bus.
    link_contention : bool
        Copies over a link or switch count 1.5 times.
    path_contention : bool
        Copies over buses count times the number of devices.
    contention : bool
        False is an ablation: each device loads as if its bus were its own.
    topology_aware : bool
        False is an ablation: all speeds of devices and transfers are their averages.
    strengthened : bool
        Whether the programs have inequalities that change no solution and strengthen the solver's bound (`strengthening`,
        `symmetry`); false: as in the paper.
    alike : float
        Submodels with equal constants are solved once (`Repeats`) if the times at which their buses and devices are free
        differ by one amount, up to this fraction of the submodel's duration; 0: up to the solvers' own tolerance.
    """

    direct_contention: bool = True
    link_contention: bool = True
    path_contention: bool = True
    contention: bool = True
    topology_aware: bool = True
    strengthened: bool = True
    alike: float = 0.02

    def __post_init__(self) -> None:
        super().__post_init__()
        require_at_least(self, alike=0)
        if self.q % 2:
            raise InputError(f"q is {self.q}; an even number is allowed: each second subgraph has direct host access")


FIXED = 2.0
"""Time to place a submodel without search, relative to the time in which its constants are made."""

HEURISTIC_SHARE = 0.5
"""Part of a submodel's time after which the heuristic ends, and the solver begins."""

CUT_OFF = ("limit", "no solution")
"""Status of a program that its solver has not ended."""


@register("sortinghat", options=SortingHatOptions, answers_interrupt=True)
def sortinghat(problem: Problem, workload: Workload, options: SortingHatOptions) -> Schedule:
    """SortingHat (ICS 2025): submodels at the dominators, each a mixed-integer program over q subgraphs a device.

    Each program (Section 3.3, equations 1 to 23, in `constraints`) decides the subgraph of each operator, and of each
    parameter, which may be loaded through another device (parallel transmission) or stay in host memory (direct host
    access). It starts from the times and places at the end of the preceding program. The solver starts from the best
    assignment of a heuristic, and its answer is used if it is better. The merged schedule has all kernels and transfers in
    the order of the programs' times. If the problem has variants, list scheduling chooses among them first (`heft`).

    The latency is the simulator's. In the program a direct read uses the bus for free, and a device waits while copies
    arrive; a run does neither (`docs/model.md`). The schedule's notes have for each submodel the source of its assignment,
    the solver's bound and both latencies (`Outcome`).

    Each submodel gets an equal share of the time that is left, of which the heuristic uses up to half. After Ctrl-C or
    ``total_time_limit`` each remaining submodel gets the first assignment that is feasible; if HEFT's schedule is faster
    than the merged one, it is the answer.

    Raises
    ------
    InfeasibleError
        No schedule of the search fits into the devices' memory.
    """
    scenario = workload.scenario(problem)
    if scenario.variants is None:
        return _schedule_without_variants(scenario, options)
    begin = time.monotonic()
    choice: dict[str, str] = {}
    status = None
    try:
        choice = heft(scenario.problem, scenario.workload, NoOptions()).choice
    except InfeasibleError:
        pass  # the programs consider memory, and may have a solution
    except KeyboardInterrupt:
        status = INTERRUPTED
    left = 0.0 if status else options.total_time_limit - (time.monotonic() - begin)
    limited = msgspec.structs.replace(options, total_time_limit=max(left, 0.0))
    schedule = _schedule_without_variants(scenario.resolve(choice), limited)
    return with_choice(scenario.problem, schedule.replace(certificate=status or schedule.certificate), choice)


@register("sortinghat-cpsat", options=SortingHatOptions, answers_interrupt=True)
def sortinghat_cpsat(problem: Problem, workload: Workload, options: SortingHatOptions) -> Schedule:
    """Another name of `sortinghat`, whose programs were solved by CP-SAT under this name before version 0.3."""
    return sortinghat(problem, workload, options)


Decision = tuple[list[int], Outcome]
"""The assignment of a submodel, and its outcome."""


def _schedule_without_variants(scenario: Scenario, options: SortingHatOptions) -> Schedule:
    """Return the schedule of a problem without variants."""
    adjustments = Adjustments(
        options.direct_contention,
        options.link_contention,
        options.path_contention,
        options.contention,
        options.topology_aware,
    )
    latencies = Latencies(scenario, adjustments)
    groups = submodels_of(scenario, options.dominators, options.operators, options.model_weights)
    clock = _Clock(options, len(groups))
    schedule = _within_memory(scenario, options.q, latencies, groups, clock)
    return (schedule if clock.status is ENDED else _or_heft(scenario, schedule)).replace(certificate=clock.status)


def _within_memory(
    scenario: Scenario, q: int, latencies: Latencies, groups: list[list[int]], clock: _Clock
) -> Schedule:
    """Return the merged schedule of the submodels, placed in ever less memory until it fits, else a list schedule."""
    listed = ListedSchedule(scenario)
    for scale in SCALES:
        decided: list[Decision] = []

        def placed(scale: float = scale, decided: list[Decision] = decided) -> State | None:
            state = State(scenario, latencies, q, scale)
            return state if _place_submodels(state, groups, clock, decided) else None

        state, stopped = despite_interrupt(placed)
        if stopped:
            clock.stop()
        if state is not None:
            outcomes = [outcome for _, outcome in decided]
            merged, stopped = despite_interrupt(partial(_merged, scenario, state))
            if stopped:
                clock.stop()
            if merged.fits:
                submodel = {o: i for i, group in enumerate(groups) for o in group}
                numbers = [submodel[o] for o in range(len(submodel))]
                notes = notes_of(outcomes, groups, merged.index)
                return merged.index.to_schedule(numbers, notes=notes)
            listed.refuse(merged)
    return listed.schedule()


def _or_heft(scenario: Scenario, schedule: Schedule) -> Schedule:
    """Return the faster of HEFT's schedule and that of a search which was cut off."""
    try:
        quick = fit_into_memory(list_order(scenario, "heft"))
    except InfeasibleError:
        return schedule
    if ScheduleIndex.of(scenario, schedule).times.latency_ns <= quick.times.latency_ns:
        return schedule
    instead = "HEFT's schedule: that of the method, which was cut off, is slower"
    return quick.to_schedule(notes={"instead": instead, "cut_off": schedule.notes})


def heuristic_schedule(scenario: Scenario, memory_scale: float = 1.0) -> ScheduleIndex | None:
    """Schedule with the heuristic from which `sortinghat` starts its programs, without a solver.

    Parameters
    ----------
    scenario : Scenario
        A scenario without variants.
    memory_scale : float
        Fraction of each device's memory that submodels may use. The schedule may need more than the memory.

    Raises
    ------
    OutOfTime
        The deadline of the search around passed before the last submodel.
    """
    options = SortingHatOptions()
    groups = submodels_of(scenario, options.dominators, options.operators)
    state = State(scenario, Latencies(scenario, Adjustments()), options.q, memory_scale)
    if not _place_submodels(state, groups, _HeuristicAlone(options), []):
        return None
    return _merged(scenario, state).index


def _merged(scenario: Scenario, state: State) -> PricedSchedule:
    """Return the schedule of all placed submodels."""
    return merge_events(scenario, [planned.event for planned in sorted(state.planned)])


@dataclass
class _HeuristicAlone:
    """Places each submodel by the heuristic, without improvement, until the deadline of the search around."""

    options: SortingHatOptions

    def effort(self, begun: float) -> Effort | None:
        """Return None: no solver."""
        check_time()
        return None

    def assignment(self, s: Submodel, effort: Effort | None, before: list[int] | None) -> Decision | None:
        """Return the best of the heuristic's assignments."""
        return _started(s, 0, before)


class _Clock:
    """Shares the time between submodels, and each one's between the heuristic and the solver; after Ctrl-C none is left.

    Attributes
    ----------
    status : Certificate
        How the search ended.
    """

    def __init__(self, options: SortingHatOptions, submodels: int) -> None:
        self.options, self.left, self.status = options, submodels, ENDED
        self._deadline = time.monotonic() + min(options.total_time_limit, seconds_left())
        self._share = self._fixed = 0.0

    def effort(self, begun: float) -> Effort | None:
        """Return what the solver may spend on the next submodel; None if no time is left.

        The time that the remaining submodels need without search is kept for them. They are assumed to take as long as the
        slowest so far, whose constants are made from ``begun``, by `time.monotonic`, until now.
        """
        now = time.monotonic()
        self._fixed = max(self._fixed, FIXED * (now - begun))
        self._share = max((self._deadline - now) / max(self.left, 1) - self._fixed, 0.0)
        self.left -= 1
        if self._share > 0:
            return self.options.effort(self._share)
        if self.status is ENDED:
            self.status = TIME_OVER
        return None

    def assignment(self, s: Submodel, effort: Effort | None, before: list[int] | None) -> Decision | None:
        """Return the better assignment of the heuristic and the solver, and its source."""
        begin = time.monotonic()
        try:
            with ending_at(begin + HEURISTIC_SHARE * self._share):
                started = _started(s, EVALUATIONS if effort is not None else 0, before)
        except KeyboardInterrupt:
            self.stop()
            with ending_at(begin):
                started = _started(s, 0, before)
        if started is None or effort is None or self.status is INTERRUPTED:
            return started
        with ending_at(begin + self._share):
            return self._solved(s, *started, effort)

    def _solved(self, s: Submodel, start: list[int], outcome: Outcome, effort: Effort) -> Decision:
        """Return the solver's assignment if it is better, else the start, with the solver's part of the outcome."""
        from .program import ProgramResult, solve

        try:
            solved = solve(s, start, effort, self.options.strengthened)
        except OutOfTime:
            solved = ProgramResult(None, status="no solution")
        except KeyboardInterrupt:
            self.stop()
            solved = ProgramResult(None, status="interrupted")
        outcome.objective_ns, outcome.bound_ns = solved.objective_ns, solved.bound_ns
        outcome.status, outcome.seconds = solved.status, solved.seconds
        late = solved.seconds >= 0.9 * self._share  # else a limit of nodes ended it
        if self._share < self.options.time_limit and late and self.status is ENDED and solved.status in CUT_OFF:
            self.status = TIME_OVER
        if solved.assignment is not None:
            start, outcome.decided_by = improve(s, solved.assignment, EVALUATIONS), "solver"
        return start, outcome

    def stop(self) -> None:
        """End the time for heuristic and solver."""
        self._deadline, self.status = 0.0, INTERRUPTED


def _place_submodels(
    state: State, groups: list[list[int]], clock: _Clock | _HeuristicAlone, decided: list[Decision]
) -> bool:
    """Place the submodels one after another; return False if one has no assignment.

    The first ones get the assignments of ``decided``, which other ones join.
    """
    repeats, known = Repeats(clock.options.alike), iter(list(decided))
    for i, operators in enumerate(groups):
        report_progress("submodels", i, len(groups))
        if not operators:
            continue
        begun = time.monotonic()
        s, nodes = state.submodel(operators)
        if (before := next(known, None)) is not None:
            times = evaluate(s, before[0])
            assert times is not None
            state.accept(s, nodes, before[0], times)
            continue
        program = tightened(s)
        effort = clock.effort(begun)
        repeated = repeats.find(program, effort)
        solution = repeated or clock.assignment(program, effort, repeats.start(program))
        times = evaluate(s, solution[0]) if solution else None
        if solution is None or times is None:
            return False
        assignment, outcome = solution
        outcome.total_ns = round(times.total)
        if repeated is None:
            repeats.add(len(decided), program, assignment, outcome, effort)
        decided.append((assignment, outcome))
        state.accept(s, nodes, assignment, times)
    report_progress("submodels", len(groups), len(groups))
    return True


def _started(s: Submodel, evaluations: int, before: list[int] | None) -> Decision | None:
    """Return the heuristic's assignment, and the outcome of a submodel without a solver; None if there is no assignment.

    The heuristic starts from ``before``, the answer to a program that differs in times alone.
    """
    start = best_assignment(s, evaluations if before is None else 0)
    if start is None:
        return None
    if before is not None:
        start = improve(s, _better(s, start, before), evaluations)
    known = evaluate(s, start)
    assert known is not None
    return start, Outcome(s.operators, round(known.total))


def _better(s: Submodel, first: list[int], second: list[int]) -> list[int]:
    """Return the better of an assignment that is a solution and one that may be infeasible."""
    times, other = evaluate(s, first), evaluate(s, second)
    return second if times is not None and other is not None and other.rank < times.rank else first
