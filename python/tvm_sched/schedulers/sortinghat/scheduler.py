"""The schedulers `sortinghat` and `sortinghat-cpsat`: submodels at dominators, a program for each, merged (ICS 2025)."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING

import msgspec

from ...checks import require_at_least
from ...errors import InfeasibleError, InputError
from ...problem import Problem, Scenario, Workload
from ...progress import report_progress
from ...registry import NoOptions
from ...schedule import ENDED, INTERRUPTED, Schedule, ScheduleIndex, with_choice
from ..common.merging import ListedSchedule, merge_events
from ..common.milp import Effort, SubmodelOptions, check_solver
from ..common.native_methods import SCALES
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

if TYPE_CHECKING:
    from .program import ProgramResult


class SortingHatCpSatOptions(SubmodelOptions, frozen=True, forbid_unknown_fields=True):
    """Options of `sortinghat-cpsat`: those of `SubmodelOptions`, adjustments (Section 3.4), ablations (Section 4.4).

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


class SortingHatOptions(SortingHatCpSatOptions, frozen=True, forbid_unknown_fields=True):
    """Options of `sortinghat`: those of `SortingHatCpSatOptions`, and `node_limit` and `solver` of `ProgramOptions`."""

    node_limit: int = 0
    solver: str = "highs"

    def __post_init__(self) -> None:
        super().__post_init__()
        check_solver(self.solver, self.node_limit)

    def effort(self, seconds: float) -> Effort:
        """Return the effort of a solver that has this many seconds."""
        return super().effort(seconds)._replace(solver=self.solver, node_limit=self.node_limit)


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

    After Ctrl-C or ``total_time_limit`` the heuristic places the remaining submodels.

    Raises
    ------
    InfeasibleError
        No schedule of the search fits into the devices' memory.
    """
    from .program import solve

    return _schedule(workload.scenario(problem), options, solve)


@register("sortinghat-cpsat", options=SortingHatCpSatOptions, answers_interrupt=True)
def sortinghat_cpsat(problem: Problem, workload: Workload, options: SortingHatCpSatOptions) -> Schedule:
    """`sortinghat`, each program solved by CP-SAT: times in whole nanoseconds, operators on a device in some order.

    Submodels, equations, heuristic, notes and limits are those of `sortinghat`.

    Raises
    ------
    InfeasibleError
        No schedule of the search fits into the devices' memory.
    """
    from .cpsat import solve

    return _schedule(workload.scenario(problem), options, solve)


Solver = Callable[[Submodel, list[int], Effort, bool], "ProgramResult"]


def _schedule(scenario: Scenario, options: SortingHatCpSatOptions, solve: Solver) -> Schedule:
    """Schedule a problem; if it has variants, with the alternatives that `heft` chooses."""
    if scenario.variants is None:
        return _schedule_without_variants(scenario, options, solve)
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
    schedule = _schedule_without_variants(scenario.resolve(choice), limited, solve)
    return with_choice(scenario.problem, schedule.replace(certificate=status or schedule.certificate), choice)


def _schedule_without_variants(scenario: Scenario, options: SortingHatCpSatOptions, solve: Solver) -> Schedule:
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
    clock = _Clock(options, len(groups), solve)
    listed = ListedSchedule(scenario)
    for scale in SCALES:
        state = State(scenario, latencies, options.q, scale)
        outcomes: list[Outcome] = []
        if _place_submodels(state, groups, clock, outcomes):
            merged = merge_events(scenario, [planned.event for planned in sorted(state.planned)])
            if merged.fits:
                submodel = {o: i for i, group in enumerate(groups) for o in group}
                numbers = [submodel[o] for o in range(len(submodel))]
                notes = notes_of(outcomes, groups, merged.index)
                return merged.index.to_schedule(numbers, certificate=clock.status, notes=notes)
            listed.refuse(merged)
    return listed.schedule()


def heuristic_schedule(
    scenario: Scenario, memory_scale: float = 1.0, late: Callable[[], bool] = lambda: False
) -> ScheduleIndex | None:
    """Schedule with the heuristic from which `sortinghat` starts its programs, without a solver.

    Parameters
    ----------
    scenario : Scenario
        A scenario without variants.
    memory_scale : float
        Fraction of each device's memory that submodels may use. The schedule may need more than the memory.
    late : callable
        Called before each submodel; if it returns true, the result is None.
    """
    options = SortingHatOptions(total_time_limit=0.0)
    groups = submodels_of(scenario, options.dominators, options.operators)
    state = State(scenario, Latencies(scenario, Adjustments()), options.q, memory_scale)
    if not _place_submodels(state, groups, _Clock(options, len(groups), _unsolved, late), []):
        return None
    return merge_events(scenario, [planned.event for planned in sorted(state.planned)]).index


def _unsolved(*_: object) -> ProgramResult:
    raise AssertionError("no program is solved where no time is left")


class _Clock:
    """Shares the total time between submodels; after Ctrl-C none is left. If ``late`` returns true, there is no schedule."""

    def __init__(
        self,
        options: SortingHatCpSatOptions,
        submodels: int,
        solve: Solver,
        late: Callable[[], bool] = lambda: False,
    ) -> None:
        self.options, self.solve, self.left, self.status, self.late = options, solve, submodels, ENDED, late
        self.deadline = time.monotonic() + options.total_time_limit

    def effort(self) -> Effort | None:
        """Return what the next submodel's solver may spend; None if no time is left."""
        seconds = (self.deadline - time.monotonic()) / max(self.left, 1)
        self.left -= 1
        return self.options.effort(seconds) if seconds > 0 else None

    def stop(self) -> None:
        """End the time for solvers."""
        self.deadline, self.status = 0.0, INTERRUPTED


def _place_submodels(state: State, groups: list[list[int]], clock: _Clock, outcomes: list[Outcome]) -> bool:
    """Place the submodels one after another; return False if one has no assignment or the clock is late."""
    repeats = Repeats(clock.options.alike)
    for i, operators in enumerate(groups):
        report_progress("submodels", i, len(groups))
        if clock.late():
            return False
        if not operators:
            continue
        s, nodes = state.submodel(operators)
        program, effort = tightened(s), clock.effort()
        repeated = repeats.find(program, effort)
        solution = repeated or _assignment(program, clock, effort, repeats.start(program))
        times = evaluate(s, solution[0]) if solution else None
        if solution is None or times is None:
            return False
        assignment, outcome = solution
        outcome.total_ns = round(times.total)
        if repeated is None:
            repeats.add(len(outcomes), program, assignment, outcome, effort)
        outcomes.append(outcome)
        state.accept(s, nodes, assignment, times)
    report_progress("submodels", len(groups), len(groups))
    return True


def _assignment(
    s: Submodel, clock: _Clock, effort: Effort | None, before: list[int] | None
) -> tuple[list[int], Outcome] | None:
    """Return the better assignment of the heuristic and the solver, and its source.

    The heuristic starts from ``before``, the answer to a program that differs in times alone.
    """
    evaluations = EVALUATIONS if effort is not None else 0
    start = best_assignment(s, evaluations if before is None else 0)
    if start is None:
        return None
    if before is not None:
        start = improve(s, _better(s, start, before), evaluations)
    known = evaluate(s, start)
    assert known is not None
    outcome = Outcome(s.operators, round(known.total))
    if effort is not None:
        from .program import ProgramResult

        try:
            solved = clock.solve(s, start, effort, clock.options.strengthened)
        except KeyboardInterrupt:
            clock.stop()
            solved = ProgramResult(None, status="interrupted")
        outcome.objective_ns, outcome.bound_ns = solved.objective_ns, solved.bound_ns
        outcome.status, outcome.seconds = solved.status, solved.seconds
        if solved.assignment is not None:
            start, outcome.decided_by = improve(s, solved.assignment, EVALUATIONS), "solver"
    return start, outcome


def _better(s: Submodel, first: list[int], second: list[int]) -> list[int]:
    """Return the better of an assignment that is a solution and one that may be infeasible."""
    times, other = evaluate(s, first), evaluate(s, second)
    return second if times is not None and other is not None and other.rank < times.rank else first
