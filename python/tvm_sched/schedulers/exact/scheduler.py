"""Scheduler `exact`: a portfolio of list schedules, submodels solved with CP-SAT, and local search from the best."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

import msgspec

from ...errors import InfeasibleError, require_at_least
from ...problem import Problem
from ...progress import report_progress
from ...registry import NoOptions
from ...schedule import Schedule, ScheduleIndex
from ...schedule.bounds import MARGIN, lower_bound
from ...schedule.simulate import price
from ..blocks import BlockSearch, Found
from ..deepplan import DeepPlanOptions, deepplan
from ..greedy import list_schedule, priorities
from ..heft import heft, peft
from ..partial import PartialSchedule
from ..pipelined import PipelinedOptions, pipelined
from ..portfolio import groups, starts
from ..registry import register
from ..search import Array, Searches, rows_of, schedule_index, sequence_of
from ..single import SingleOptions, single
from .submodels import split

WORK_PER_SECOND = 0.5
"""Deterministic seconds of CP-SAT in a second of the clock, roughly, on one core of a server."""

EVENTS_PER_SECOND = 10_000_000
"""Events that local search replays in a second of the clock, roughly, on one core of a server."""

SLICE = EVENTS_PER_SECOND // 10
"""Events that are replayed between two looks at the clock."""

SUBMODELS_TIME = 8.0
"""Seconds for all submodels together on an idle machine."""

LEAST_SUBMODEL_TIME = 0.5
"""Seconds below which solving a submodel finds nothing that local search does not."""

NEAR = 0.02
"""Gap of a list schedule at which submodels are not solved: local search gets the rest."""

BLOCKS = 0.7
"""Share of the local search that moves blocks of operators between groups of devices, where there are several groups."""

PLACES_PER_SECOND = 1_500_000
"""Operators times devices that list scheduling tries in a second of the clock, roughly, on one core of a server."""

RACERS = 4
"""Schedules from which local search starts; the one that leads after a while goes on alone."""

RACE = 0.3
"""Share of the local search that is the race."""

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
        Where all submodels together would take more than `SUBMODELS_TIME`, each has less, or none is solved.
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
            improve_time_limit=0,
            time_limit=0,
        )


@register("exact", options=ExactOptions, answers_interrupt=True)
def exact(problem: Problem, options: ExactOptions) -> Schedule:
    """List schedules of many kinds, submodels at dominators solved by constraint programming, then local search.

    The list schedules differ in where operators may go (`tvm_sched.schedulers.portfolio`). Where none of them is near the
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
    search = _Search(problem, options)
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


class _Search:
    """What has been found so far; the best of it is there at any moment."""

    def __init__(self, problem: Problem, options: ExactOptions) -> None:
        self.problem, self.options = problem, options
        self.deadline = time.monotonic() + options.time_limit
        self.searches = Searches(problem)
        self.bound = lower_bound(problem).ns
        # Bounds are rounded down by a margin; what is as near is optimal.
        self._goal = int(self.bound * (1 + 2 * MARGIN)) + 1
        self.best: tuple[int, ScheduleIndex] | None = None
        self.groups = split(problem, options.dominators, options.operators)
        self._refusals: list[tuple[int, str]] = []
        self._refusal: InfeasibleError | None = None
        self._found: dict[bytes, tuple[int, Array, float]] = {}
        self._listed: Found | None = None

    def run(self) -> None:
        """Everything, in turn; may be interrupted."""
        for scale in SCALES + BOLD_SCALES:
            self._start(scale)
            if self._found:
                break
        self._whole(scale)
        self._roll(scale)
        used = self._move_blocks(scale)
        self._improve(self.options.improve_time_limit - used)

    def answer(self) -> Schedule:
        """The best schedule; raises `InfeasibleError` where there is none."""
        if self.best is not None:
            submodel = [0] * len(self.problem.graph.operators)
            for i, operators in enumerate(self.groups):
                for o in operators:
                    submodel[o] = i
            return self.best[1].to_schedule(self.problem, submodel)
        if self._refusals:
            short, device = min(self._refusals)
            raise InfeasibleError(
                f"memory does not suffice: device {device!r} is short of {short} bytes in the best schedule found; use "
                "devices with more memory, or more of them"
            )
        raise self._refusal or InfeasibleError("no schedule was found")

    def _late(self) -> bool:
        return time.monotonic() >= self.deadline

    def _add(self, sequence: Array, scale: float) -> int | None:
        """A schedule that was found, and its latency; None if it does not fit into memory and so does not count."""
        index = schedule_index(sequence)
        times = price(self.problem, index)
        devices = self.problem.topology.devices
        short = max((int(p) - d.memory, d.name) for p, d in zip(times.peak_memory, devices, strict=True))
        if short[0] > 0:
            self._refusals.append(short)
            return None
        self._found.setdefault(sequence.tobytes(), (times.latency_ns, sequence, scale))
        if self.best is None or times.latency_ns < self.best[0]:
            self.best = times.latency_ns, index
        return times.latency_ns

    def _start(self, scale: float) -> None:
        """The portfolio within a share of the memory; the frugal list schedule where memory suffices for none of it."""
        report_progress("list schedules", 0, 1)
        for sequence, rule in starts(self.problem, self.searches, scale):
            latency = self._add(sequence, scale)
            if latency is not None and (self._listed is None or latency < self._listed.latency_ns):
                self._listed = Found(latency, sequence, rule)
            if self._found and self._late():
                return
        if not self._found:
            state = PartialSchedule(self.problem, scale)
            try:
                list_schedule(state, range(len(state.placed)), priorities(self.problem), frugal=True)
            except InfeasibleError as error:
                self._refusal = self._refusal or error
            else:
                self._add(rows_of(state.events), scale)

    def _roll(self, scale: float) -> None:
        """One submodel after the other, where that can be expected to help."""
        seconds = min(self.options.submodel_time_limit, SUBMODELS_TIME / max(len(self.groups), 1))
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

    def _move_blocks(self, scale: float) -> float:
        """Search over the parts of groups of devices, where there are several; returns the seconds that it may take."""
        if self._listed is None or len(groups(self.problem)) < 2 or self._listed.latency_ns <= self._goal:
            return 0.0
        seconds = BLOCKS * self.options.improve_time_limit
        places = len(self.problem.graph.operators) * len(self.problem.topology.devices)
        tries = int(seconds * PLACES_PER_SECOND / max(places, 1))
        search = BlockSearch(self.problem, self.searches, self._listed, scale, self.options.seed)
        try:
            for i in range(tries):
                if self._late() or search.best.latency_ns <= self._goal:
                    break
                search.step()
                if i % 100 == 0:
                    report_progress("blocks", i, tries)
        finally:
            self._add(search.best.sequence, scale)
        return seconds

    def _improve(self, seconds: float) -> None:
        """A race from the best starts, then the leader alone."""
        total = int(seconds * EVENTS_PER_SECOND)
        starting = sorted(self._found.values(), key=lambda found: found[0])[:RACERS]
        racers = []
        done = 0
        for i, (_, sequence, scale) in enumerate(starting):
            racer = self.searches.improve(sequence, scale, self.options.seed + i, self._goal)
            for events in self._slices(int(total * RACE / len(starting)), done, total):
                if not racer.step(events):
                    break
            done += int(total * RACE / len(starting))
            best = racer.best
            if len(best):  # by the order of its events a start may seem to need more memory than it does
                racers.append((racer.latency_ns, i, racer, scale))
                self._add(best, scale)
        if not racers:
            return
        _, _, leader, scale = min(racers, key=lambda entry: entry[:2])
        try:
            for events in self._slices(total - done, done, total):
                if not leader.step(events):
                    break
        finally:
            self._add(leader.best, scale)

    def _slices(self, events: int, done: int, total: int) -> Iterator[int]:
        """Portions of so many events until the time is over."""
        for first in range(0, events, SLICE):
            if self._late():
                return
            report_progress("local search", done + first, total)
            yield min(SLICE, events - first)
