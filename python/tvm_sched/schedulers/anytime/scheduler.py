"""The scheduler `anytime`: improvers take turns on the incumbent until it is proved optimal or the budget is used up."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from itertools import zip_longest

import msgspec

from tvm_sched_runtime.checks import require_at_least, require_seed
from tvm_sched_runtime.problem import FORBIDDEN, Problem, Request, Scenario, Workload
from tvm_sched_runtime.schedule import INTERRUPTED, Certificate, Schedule, with_choice
from tvm_sched_runtime.search_budget import Budget, SearchLimits, TimedOptions, Turn, budget_of, ending_at, improve

from ..common.native_methods import is_contention_free
from ..common.requests import best_schedule, schedule_each_request
from ..scheduler_registry import register
from .improver_registry import read_shares, turns_by_share
from .improvers import Enumerated
from .joined_loads import may_join
from .list_rules import FEW_PLACES, MOST_PLACES, device_groups
from .machine_parts import promising_machines
from .promising_variants import SHARE, promising_choices
from .race import Racer, race
from .search_state import ScheduleState
from .starts import (
    ALWAYS,
    SUBMODEL_SHARE,
    ListScheduling,
    LowerBound,
    QuickAnswer,
    QuickMethods,
    quick_answers,
    quick_methods,
    submodel_start,
)

TIME_LIMIT = 20.0
"""Default time limit in seconds, if neither time nor work is limited."""

WORK_SHARE = 0.8
"""Work as a fraction of the time limit, so that the clock seldom ends the search."""

WORK_OF_A_PLACE = 0.02
"""Default work in seconds for each operator and device, if that is less: small problems gain nothing from more."""

SHARES = {"annealing": 0.35, "blocks": 0.45, "local-search": 0.2}
"""Shares of the work; without groups of devices, local search also gets the share of blocks."""

BEFORE_JOINING = 0.5
"""Fraction of the work before parameters are joined anew, for the best schedule so far."""

DIRECT_SHARE = 0.2
"""Share of the search over sets of operators that read host memory directly, relative to the others."""

UNLOADED_SHARES = {"annealing": 0.6, "blocks": 0.1, "local-search": 0.3}
"""Shares if nothing is loaded, but copies wait for each other."""

FREE_SHARES = {"annealing": 1.0}
"""Shares if nothing is loaded and no copy waits for another; annealing is much faster then."""

STAGED_SHARE, STAGED_SHARE_WITH_LOADS = 0.9, 0.4
"""Fractions of the work for annealing into stages if the costs have concurrency: without loads, and with loads, for which
the search without stages has more kinds of moves."""


class AnytimeOptions(TimedOptions, frozen=True, forbid_unknown_fields=True):
    """Options of `anytime`.

    Parameters
    ----------
    time_limit : float, optional
        Seconds by the clock, after which the incumbent is the answer. Default: 20, or no limit with ``work``.
    work : float, optional
        Seconds of work on an idle core, after the quick methods, list scheduling and the lower bound, which are not counted.
        Default: four fifths of the time limit; if that is not given either, at most 0.02 for each operator (those of
        alternatives included) and device. The same work and seed give the same schedule on
        every machine, unless the time limit ends the search first.
    stage : int
        Largest number of operators that start together, if the costs have concurrency; 1: no stages.
    improvers : str
        Registered improvers and their shares of the work, in place of the method's own choice: ``NAME:SHARE,NAME:SHARE``,
        or a TOML file of the format ``tvm_sched.improvers``, whose shares are kept here.
    seed : int
    """

    time_limit: float | None = None
    work: float | None = None
    stage: int = 2
    improvers: str = ""
    seed: int = 0

    def __post_init__(self) -> None:
        require_at_least(self, stage=1)
        require_seed(self.seed)
        if self.improvers:
            shares = read_shares(self.improvers)
            msgspec.structs.force_setattr(
                self, "improvers", ",".join(f"{name}:{share!r}" for name, share in shares.items())
            )
        self.budget()

    def within(self, limits: SearchLimits) -> AnytimeOptions:
        """Return the options with these limits."""
        return msgspec.structs.replace(self, time_limit=limits.time_limit, work=limits.work)

    def scaled(self, places: int) -> AnytimeOptions:
        """Return the options, with less work than the default for few places if no limit is given."""
        if self.time_limit is not None or self.work is not None:
            return self
        work = min(WORK_SHARE * TIME_LIMIT, WORK_OF_A_PLACE * places)
        return msgspec.structs.replace(self, time_limit=TIME_LIMIT, work=work)

    def part(self, count: int) -> AnytimeOptions:
        """Return the options of one of several searches that share time and work."""
        limit = TIME_LIMIT if self.time_limit is None and self.work is None else self.time_limit
        changed = {"time_limit": limit, "work": self.work}
        return msgspec.structs.replace(self, **{k: v / count for k, v in changed.items() if v is not None})

    @property
    def seconds(self) -> float:
        """Time limit of the method with its certificate, in seconds; infinite if none was given."""
        return math.inf if self.time_limit is None else self.time_limit

    def budget(self) -> Budget:
        """Return the budget, counted from now."""
        return budget_of(self.time_limit, self.work, TIME_LIMIT, WORK_SHARE)


@register("anytime", options=AnytimeOptions, answers_interrupt=True, weighs_requests=True)
def anytime(problem: Problem, workload: Workload, options: AnytimeOptions) -> Schedule:
    """The best schedule that several methods find together within a budget, and how far it can be from the optimum.

    First the quick methods and list scheduling with many priority rules run, some of them with the direct-host-access
    operators fixed in advance (`direct_reads`). The answer is never worse than theirs. Then annealing, moves of blocks of
    operators and local search over events each get a share of the work; if the costs have concurrency, annealing into
    stages gets most of it. The schedule's notes have the latency that each improver reached.

    For a workload with several requests it searches in the run of each, with an equal part of the budget, for the schedule
    that is best for all of them.

    On a machine of more than 16 devices it searches on the parts of it that quick schedules find promising
    (`tvm_sched.schedulers.anytime.machine_parts`); the bound is that of the whole machine.

    If the problem has variants, quick schedules first choose among the alternatives, with a fifth of the work
    (`tvm_sched.schedulers.anytime.promising_variants`). A race of the most promising choices
    (`tvm_sched.schedulers.anytime.race`) then gets four tenths of the remaining work, and its winner
    gets the other six tenths.

    Raises
    ------
    InfeasibleError
        No schedule of the search fits into the devices' memory.
    """
    mix = workload.requests
    options = options.scaled(problem.places * max(len(mix), 1))
    if len(mix) < 2:
        return _search(workload.scenario(problem), (), options)
    part = options.part(len(mix))
    schedules = schedule_each_request(problem, workload, lambda scenario: _search(scenario, mix, part))
    best = best_schedule(problem, workload, schedules) or schedules[0]
    interrupted = any(each.certificate == INTERRUPTED for each in schedules)
    return best.replace(certificate=INTERRUPTED) if interrupted else best


def _search(scenario: Scenario, mix: Sequence[Request], options: AnytimeOptions) -> Schedule:
    """Search in one scenario for the best schedule for a mix of requests; without any, for the scenario's run."""
    budget = options.budget()
    machines = promising_machines(scenario, budget)
    answers: list[QuickAnswer] = []
    chosen: list[list[Racer]] = []
    interrupted = False
    if scenario.variants or may_join(scenario) or machines != [scenario]:
        answers, interrupted = quick_answers(scenario, mix, options.stage, budget.work)
    # The search holds the best of these from the start, whichever machines and choices it looks at.
    kept = _racers(scenario, [each.choice for each in answers[:1]], options.seed, mix, answers, interrupted)
    interrupted = interrupted or any(racer.interrupted for racer in kept)
    if interrupted:
        budget, machines = Budget(0.0, time.monotonic()), []
    share, work = SHARE / max(len(machines), 1), budget.left
    for machine in machines:
        choices, own = [dict[str, str]()], kept if machine is scenario else []
        if scenario.variants:
            choosing = budget.part(share * work)
            now = time.monotonic()
            # There is no limit by the clock without a time limit.
            choosing.deadline = now + share * (budget.deadline - now)
            choices, interrupted = promising_choices(machine, choosing, options.seed)
        others = [each for each in choices if all(each != racer.choice for racer in own)]
        others = others[: 1 - len(own)] if interrupted else others
        chosen.append([*own, *_racers(machine, others, options.seed, mix, (), interrupted)])
        interrupted = interrupted or any(racer.interrupted for racer in chosen[-1])
        if interrupted:
            budget = Budget(0.0, time.monotonic())
            break
    racers = [each for row in zip_longest(*chosen) for each in row if each is not None] or kept

    def turns_of(racer: Racer, work: float, number: int) -> list[Turn[ScheduleState]]:
        each = turns(racer.state.scenario, options, work, scenario, brief=number >= 0)
        return [turn for turn in each if number <= 0 or not math.isinf(turn.share)]

    first = budget.part(BEFORE_JOINING * budget.left) if may_join(scenario) else budget
    best, status = race(racers, first, turns_of)
    if best.state.best is None and best.choice:  # the graph as it is may fit
        best, status = race([Racer.of({}, scenario.resolve({}), options.seed, mix)], first, turns_of)
    if may_join(scenario) and not interrupted and status != "interrupted":
        try:
            best.join_anew()
            status = improve(best.state, turns_of(best, budget.left, 1), budget)
            if status != "interrupted":
                best.join_anew()
        except KeyboardInterrupt:
            if all(racer.state.best is None for racer in (best, *kept)):
                raise
            status = "interrupted"
    best = min((best, *kept), key=lambda racer: racer.cost)
    status = "interrupted" if interrupted else status
    certificate = INTERRUPTED if status == "interrupted" else Certificate.unchecked(status)
    schedule = best.state.answer().replace(problem=scenario.problem.digest, certificate=certificate)
    return with_choice(scenario.problem, schedule, best.choice, best.sets)


def _racers(
    scenario: Scenario,
    choices: Sequence[dict[str, str]],
    seed: int,
    mix: Sequence[Request],
    answers: Sequence[QuickAnswer],
    interrupted: bool,
) -> list[Racer]:
    """Return searches on these choices, the last the one at which Ctrl-C came; after an earlier one nothing is joined."""
    racers: list[Racer] = []
    with ending_at(time.monotonic() if interrupted else math.inf):
        for choice in choices:
            racers.append(Racer.of(choice, scenario.resolve(choice), seed, mix, answers))
            if racers[-1].interrupted:
                break
    return racers


def turns(
    scenario: Scenario, options: AnytimeOptions, work: float, bound_of: Scenario | None = None, brief: bool = False
) -> list[Turn[ScheduleState]]:
    """Return the improvers for a problem, with their shares of the work.

    The bound is that of ``bound_of``, by default of ``scenario``. ``brief`` leaves out most improvers whose work is not
    counted.
    """
    index, topology = scenario.graph.index, scenario.topology
    loads = any(index.host_inputs) and not all(map(scenario.reads_host_in_place, range(len(topology.devices))))
    stages = scenario.costs.concurrency is not None and options.stage > 1
    staged = 0.0 if not stages else STAGED_SHARE_WITH_LOADS if loads else STAGED_SHARE
    shares = dict(FREE_SHARES if is_contention_free(scenario) else SHARES if loads else UNLOADED_SHARES)
    if "blocks" in shares and len(device_groups(scenario)) < 2:
        shares["local-search"] = shares.get("local-search", 0.0) + shares.pop("blocks")
    chosen: list[Turn[ScheduleState]] = [
        Turn(QuickMethods(ALWAYS, options.stage)),
        Turn(ListScheduling(FEW_PLACES if brief else MOST_PLACES)),
        Turn(LowerBound(bound_of)),
        Turn(Enumerated()),
    ]
    if not brief:
        chosen.append(Turn(QuickMethods(quick_methods(scenario, work), options.stage)))
        start = submodel_start(scenario, work) if loads else None
        if start is not None:
            chosen.append(Turn(start, SUBMODEL_SHARE))
    if options.improvers:
        return chosen + turns_by_share(read_shares(options.improvers), options)
    turns = {"direct-reads": DIRECT_SHARE} if loads and (scenario.costs.direct_ns != FORBIDDEN).any() else {}
    turns |= {name: (1 - staged) * share for name, share in shares.items()}
    turns |= {"annealing-into-stages": staged} if staged else {}
    return chosen + turns_by_share(turns, options)
