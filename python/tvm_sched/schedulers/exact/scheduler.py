"""Scheduler `exact`: a portfolio of list schedules, submodels solved with CP-SAT, and local search from the best."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from typing import NamedTuple

import msgspec
import numpy as np

from ...errors import InfeasibleError, require_at_least
from ...problem import Problem
from ...progress import report_progress
from ...registry import NoOptions
from ...schedule import Schedule, ScheduleIndex
from ...schedule.bounds import MARGIN, lower_bound
from ...schedule.simulator import price
from ..common.blocks import BlockSearch, Found
from ..common.greedy import list_schedule, priorities
from ..common.native import Effort, anneal_several, fit, nothing_contends, shortfall
from ..common.partial import PartialSchedule
from ..common.portfolio import groups, starts
from ..common.search import MOVE, Array, Improvement, Searches, rows_of, schedule_index, sequence_of
from ..common.submodels import submodels_of
from ..deepplan import DeepPlanOptions, deepplan
from ..heft import heft, peft
from ..pipelined import PipelinedOptions, pipelined
from ..registry import register
from ..single import SingleOptions, single

WORK_PER_SECOND = 0.5
"""Deterministic seconds of CP-SAT in a second of the clock, roughly, on one core of a server."""

EVENTS_PER_SECOND = 15_000_000
"""Events that local search replays in a second of the clock, roughly, on one core of a server."""

SLICE = EVENTS_PER_SECOND // 100
"""Events that are replayed between two looks at the clock."""

LEAST_SUBMODEL_TIME = 0.5
"""Seconds below which solving a submodel finds nothing that local search does not."""

NEAR = 0.02
"""Gap of a list schedule at which submodels are not solved: local search gets the rest."""

BLOCKS = 0.7
"""Share of the local search that moves blocks of operators between groups of devices, where there are several groups."""

PLACES_PER_SECOND = 1_500_000
"""Operators times devices that list scheduling tries in a second of the clock, roughly, on one core of a server."""


class Shares(NamedTuple):
    """How the time for improvement is shared out: annealing, blocks and local search over events, windows."""

    annealing: float
    events: float
    windows: float


SHARES, FREE_SHARES = Shares(0.3, 0.5, 0.2), Shares(0.8, 0.0, 0.2)
"""Shares in general; and where nothing is loaded and no copy waits for another, which annealing times much faster."""

RACERS = 4
"""Schedules from which local search starts; the one that leads after a while goes on alone."""

RACE = 0.3
"""Share of the local search that is the race."""

APART = 0.02
"""Share of operators that two schedules have on different devices if annealing starts from both."""

WINDOW_WORK = 0.25
"""Deterministic seconds of CP-SAT for one window."""

SCALES = (1.0, 0.9, 0.75, 0.6)
"""Shares of the memory with which it is tried: the times at which memory is held are known only afterwards."""

BOLD_SCALES = (1.2, 1.6, 2.5)
"""Shares to try when those leave no schedule: what grows event by event counts more than is held at one time."""


class ExactOptions(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Options of `exact`.

    Parameters
    ----------
    dominators : int
        Dominators in a submodel; 0 puts them together up to ``operators``.
    operators : int
        Most operators in a submodel.
    submodel_time_limit : float
        Seconds for one submodel on an idle machine. What is limited is the solver's deterministic work, so that a busy
        machine takes longer and gives the same schedule; ten times as many seconds by the clock end it all the same.
    submodels_time_limit : float
        Seconds for all submodels together, on an idle machine: where there are many, each has less, or none is solved.
    improve_time_limit : float
        Seconds of local search over the whole schedule, on an idle machine; what is limited is again the work.
    time_limit : float
        Seconds in all, by the clock. The best schedule that was found by then is the answer, and so it is after Ctrl-C.
    workers : int
        Threads of the solver. Any number gives the same schedule again as long as no clock limit strikes.
    seed : int
    """

    dominators: int = 0
    operators: int = 24
    submodel_time_limit: float = 4.0
    submodels_time_limit: float = 8.0
    improve_time_limit: float = 15.0
    time_limit: float = 120.0
    workers: int = 1
    seed: int = 0

    def __post_init__(self) -> None:
        require_at_least(
            self,
            dominators=0,
            operators=1,
            workers=1,
            seed=0,
            submodel_time_limit=0,
            submodels_time_limit=0,
            improve_time_limit=0,
            time_limit=0,
        )


@register("exact", options=ExactOptions, answers_interrupt=True)
def exact(problem: Problem, options: ExactOptions) -> Schedule:
    """List schedules of many kinds, submodels at dominators solved by constraint programming, then local search.

    The list schedules differ in where operators may go (`schedulers.common.portfolio`). Where none of them is near the
    bound and the model is small enough, each submodel decides with CP-SAT's interval variables the device and mode of each
    operator, the bus and transit device of each parameter (parallel transmission), the peer copies and the order on every
    device, bus and link, from the state that the submodels before left; after SortingHat, Sections 3.1 and 3.3, with times
    instead of slots: no limit ``q`` on subgraphs, no contiguity, and direct reads charged to the bus. Local search over the
    whole schedule then starts from the best few. So the answer is never worse than list scheduling or `single`.

    Raises
    ------
    InfeasibleError
        No schedule within the devices' memory was found.
    """
    search = Search(problem, options)
    try:
        search.run()
    except KeyboardInterrupt:
        if search.best is None:
            raise
    return search.answer()


_QUICK: tuple[Callable[[Problem], Schedule], ...] = (
    lambda problem: single(problem, SingleOptions()),
    lambda problem: pipelined(problem, PipelinedOptions()),
    lambda problem: deepplan(problem, DeepPlanOptions()),
    lambda problem: heft(problem, NoOptions()),
    lambda problem: peft(problem, NoOptions()),
)
"""Methods that answer in a moment, so that `exact` is never worse than these."""


class Search:
    """What has been found so far; the best of it is there at any moment."""

    def __init__(self, problem: Problem, options: ExactOptions) -> None:
        self.problem, self.options = problem, options
        self.deadline = time.monotonic() + options.time_limit
        self.searches = Searches(problem)
        self.bound = lower_bound(problem).ns
        # Bounds are rounded down by a margin; what is as near is optimal.
        self.goal = int(self.bound * (1 + 2 * MARGIN)) + 1
        self.best: tuple[int, ScheduleIndex] | None = None
        self.tried: dict[str, float] = {}
        self.groups = submodels_of(problem, options.dominators, options.operators)
        self._refusals: list[tuple[int, str]] = []
        self._refusal: InfeasibleError | None = None
        self._found: dict[bytes, tuple[int, Array, float]] = {}
        self._listed: Found | None = None

    def run(self) -> None:
        """Everything, in turn; may be interrupted."""
        for scale in SCALES + BOLD_SCALES:
            if self._start(scale):
                break
        self._whole(scale)
        self._say("list scheduling")
        self._roll(scale)
        self._say("submodels")
        seconds = self.options.improve_time_limit
        shares = FREE_SHARES if nothing_contends(self.problem) else SHARES
        self._anneal(scale, shares.annealing * seconds)
        self._say("annealing")
        used = self._move_blocks(scale, shares.events * seconds)
        self._say("blocks")
        self._improve(shares.events * seconds - used)
        self._say("local search")
        self._solve_windows(scale, shares.windows * seconds)
        self._say("windows")

    def offer(self, index: ScheduleIndex) -> None:
        """Count a schedule that is known among those to start from, where it has neither stages nor evictions."""
        if not index.evicted and not any(index.stage):
            self._add(sequence_of(self.problem, index), 1.0)

    def answer(self) -> Schedule:
        """The best schedule; raises `InfeasibleError` where there is none."""
        if self.best is not None:
            submodel = [0] * len(self.problem.graph.operators)
            for i, operators in enumerate(self.groups):
                for o in operators:
                    submodel[o] = i
            return self.best[1].to_schedule(self.problem, submodel, notes={"tried": self.tried})
        if self._refusals:
            short, device = min(self._refusals)
            raise InfeasibleError(
                f"memory does not suffice: device {device!r} is short of {short} bytes in the best schedule found; use "
                "devices with more memory, or more of them"
            )
        raise self._refusal or InfeasibleError("no schedule was found")

    def _say(self, method: str) -> None:
        """Remember to what latency a method brought the search."""
        if self.best is not None:
            self.tried[method] = self.best[0] / 1e9

    @property
    def done(self) -> bool:
        """Whether nothing better can be found."""
        return self.best is not None and self.best[0] <= self.goal

    def _late(self) -> bool:
        return time.monotonic() >= self.deadline

    def _add(self, sequence: Array, scale: float) -> int | None:
        """A schedule that was found, and its latency; None if it does not fit into memory and so does not count."""
        index = schedule_index(sequence)
        times = price(self.problem, index)
        short = shortfall(self.problem, times)
        if short[0] > 0:
            self._refusals.append(short)
            return None
        self._found.setdefault(sequence.tobytes(), (times.latency_ns, sequence, scale))
        if self.best is None or times.latency_ns < self.best[0]:
            self.best = times.latency_ns, index
        return times.latency_ns

    def _start(self, scale: float) -> bool:
        """The portfolio within a share of the memory; the frugal list schedule where memory suffices for none of it.

        Whether there is a schedule now that fits.
        """
        report_progress("list schedules", 0, 1)
        for sequence, rule in starts(self.problem, self.searches, scale):
            latency = self._add(sequence, scale)
            if latency is not None and (self._listed is None or latency < self._listed.latency_ns):
                self._listed = Found(latency, sequence, rule)
            if self._found and self._late():
                return True
        if self._listed is not None:
            return True
        state = PartialSchedule(self.problem, scale)
        try:
            list_schedule(state, range(len(state.placed)), priorities(self.problem), frugal=True)
        except InfeasibleError as error:
            self._refusal = self._refusal or error
            return False
        return self._add(rows_of(state.events), scale) is not None

    def _roll(self, scale: float) -> None:
        """One submodel after the other, where that can be expected to help."""
        seconds = min(self.options.submodel_time_limit, self.options.submodels_time_limit / max(len(self.groups), 1))
        least = min(LEAST_SUBMODEL_TIME, self.options.submodel_time_limit)
        near = self.best is not None and self.best[0] <= (1 + NEAR) * self.bound
        if near or seconds <= 0 or seconds < least or self._late():
            return
        from .model import Limits
        from .rolling import roll

        now = time.monotonic()
        # By the clock no more than half of the time, and no more than a busy machine takes for this work.
        until = now + min((self.deadline - now) / 2, 10 * seconds * len(self.groups))
        limits = Limits(seconds * WORK_PER_SECOND, until, self.options.workers, self.options.seed)
        try:
            self._add(rows_of(roll(self.problem, self.groups, scale, limits).events), scale)
        except InfeasibleError as error:
            self._refusal = self._refusal or error

    def _whole(self, scale: float) -> None:
        """What the quick methods answer; from what evicts nothing, and so is a sequence, local search may start."""
        for method in _QUICK:
            try:
                index = ScheduleIndex.of(self.problem, method(self.problem))
            except InfeasibleError as error:
                self._refusal = self._refusal or error
                continue
            if index.evicted:
                latency = price(self.problem, index).latency_ns
                if self.best is None or latency < self.best[0]:
                    self.best = latency, index
            else:
                self._add(sequence_of(self.problem, index), scale)
            if self._late():
                return

    def _anneal(self, scale: float, seconds: float) -> None:
        """Annealing from the best few schedules whose devices differ."""
        if not self._found or self.done or self._late():
            return
        starts = [schedule_index(sequence) for _, sequence, _ in self._diverse(RACERS)]
        effort = Effort.of(self.problem, seconds, self.deadline, self.options.seed, self.goal)
        with suppress(InfeasibleError):
            annealed = fit(self.problem, anneal_several(self.problem, starts, effort))
            self._add(sequence_of(self.problem, annealed), scale)

    def _diverse(self, most: int) -> list[tuple[int, Array, float]]:
        """The best schedules of which no two put nearly all operators on the same devices."""
        chosen: list[tuple[int, Array, float]] = []
        mappings: list[Array] = []
        for found in sorted(self._found.values(), key=lambda found: found[0]):
            runs = found[1][found[1][:, 0] != MOVE]
            mapping = runs[np.argsort(runs[:, 1]), 3]
            if all(np.mean(mapping != other) >= APART for other in mappings):
                chosen.append(found)
                mappings.append(mapping)
            if len(chosen) == most:
                break
        return chosen

    def _solve_windows(self, scale: float, seconds: float) -> None:
        """Windows of the best schedule, solved with CP-SAT."""
        if self.best is None or self.done or self.best[1].evicted or self._late():
            return
        from .model import Limits
        from .windows import WindowSearch

        latency, index = self.best
        start = sequence_of(self.problem, index)
        search = WindowSearch(self.problem, self.searches, start, latency, scale, self.options.seed)
        limits = Limits(WINDOW_WORK, self.deadline, self.options.workers, self.options.seed)
        budget = seconds * WORK_PER_SECOND
        try:
            while search.work < budget and search.latency_ns > self.goal and not self._late():
                report_progress("windows", int(search.work * 1000), int(budget * 1000))
                search.step(limits)
        finally:
            self._add(search.best, scale)

    def _move_blocks(self, scale: float, seconds: float) -> float:
        """Search over the parts of groups of devices, where there are several; returns the seconds that it may take."""
        if self._listed is None or len(groups(self.problem)) < 2 or self._listed.latency_ns <= self.goal:
            return 0.0
        seconds *= BLOCKS
        places = len(self.problem.graph.operators) * len(self.problem.topology.devices)
        tries = int(seconds * PLACES_PER_SECOND / max(places, 1))
        search = BlockSearch(self.problem, self.searches, self._listed, scale, self.options.seed)
        try:
            for i in range(tries):
                if self._late() or search.best.latency_ns <= self.goal:
                    break
                search.step()
                if i % 100 == 0:
                    report_progress("blocks", i, tries)
        finally:
            self._add(search.best.sequence, scale)
        return seconds

    def _improve(self, seconds: float) -> None:
        """A race from the best starts, then the leader alone; where it is stuck, others from the best that is known."""
        self._left = total = int(seconds * EVENTS_PER_SECOND)
        starting = sorted(self._found.values(), key=lambda found: found[0])[:RACERS]
        racers = []
        for i, (_, sequence, scale) in enumerate(starting):
            racer = self.searches.improve(sequence, scale, self.options.seed + i, self.goal)
            self._search_on(racer, scale, int(total * RACE / len(starting)), total)
            if len(racer.best):  # by the order of its events a start may seem to need more memory than it does
                racers.append((racer.latency_ns, i, racer, scale))
        if not racers:
            return
        _, _, leader, scale = min(racers, key=lambda entry: entry[:2])
        seed = self.options.seed + len(starting)
        while self._left > 0 and not self.done and not self._late():
            self._search_on(leader, scale, self._left, total)
            _, sequence, scale = min(self._found.values(), key=lambda found: found[0])
            leader, seed = self.searches.improve(sequence, scale, seed, self.goal), seed + 1
            self._left -= len(sequence)  # for its making, so that this ends where a search is stuck at once

    def _search_on(self, search: Improvement, scale: float, events: int, total: int) -> None:
        """Let a local search replay so many events more, or until it is stuck."""
        before = self._left
        try:
            while before - self._left < events and not self._late():
                report_progress("local search", total - self._left, total)
                portion = min(SLICE, events - (before - self._left))
                self._left -= portion
                if not search.step(portion):
                    break
        finally:
            if len(search.best):
                self._add(search.best, scale)
