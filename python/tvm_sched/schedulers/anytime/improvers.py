"""Improvers of whole schedules: annealing, blocks of operators, local search over events."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from typing import TYPE_CHECKING

import numpy as np

from tvm_sched_runtime.errors import InfeasibleError
from tvm_sched_runtime.problem import HOST
from tvm_sched_runtime.schedule import ScheduleIndex
from tvm_sched_runtime.search_budget import Budget

from ...bounds.enumeration import enumerated_schedule
from ...progress import report_progress
from ..common.direct_access import keep_direct_reads
from ..common.events import MOVE, RUN
from ..common.native_methods import Effort, anneal_several, fit_into_memory
from ..common.search import Improvement
from .device_group_moves import BlockSearch
from .search_state import ScheduleState, Start

if TYPE_CHECKING:
    from .scheduler import AnytimeOptions

EVENTS_PER_SECOND = 15_000_000
"""Events that local search replays in a second, roughly, on one core of a server."""

SLICE = EVENTS_PER_SECOND // 100
"""Events of a step."""

PLACES_PER_SECOND = 1_500_000
"""Operators times devices that list scheduling tries in a second, roughly, on one core of a server."""

STARTS = 4
"""Schedules from which annealing and local search start."""

RACE = 0.3
"""Fraction of the local search that is a race of its starts; then the leader continues alone."""


class Annealing:
    """Simulated annealing over devices and order (``cpp/search/annealing.h``).

    It begins from several starts and eliminates them by successive halving.
    """

    name = "annealing"

    def __init__(self, options: AnytimeOptions) -> None:
        self._stage = 1

    def step(self, state: ScheduleState, budget: Budget) -> bool:
        """Use the whole budget: annealing that stops while the temperature is high gains nothing."""
        starts = self._starts(state)
        if not starts:
            return False
        seconds = budget.left
        budget.spend(seconds)
        effort = Effort.of(state.scenario, seconds, budget.deadline, state.seed, state.run_goal, self._stage)
        with suppress(InfeasibleError):
            best = anneal_several([keep_direct_reads(start) for start in starts], effort)
            state.offer_index(fit_into_memory(ScheduleIndex(state.scenario, best.placements, best.transfers)))
        return True

    def _starts(self, state: ScheduleState) -> list[ScheduleIndex]:
        """Return schedules without evictions, if any."""
        return [ScheduleIndex.of_sequence(state.scenario, start.sequence) for start in state.diverse_starts(STARTS)]


class AnnealingIntoStages(Annealing):
    """Annealing from the best schedule alone, in which operators also move into stages if the costs have concurrency."""

    name = "annealing into stages"

    def __init__(self, options: AnytimeOptions) -> None:
        self._stage = options.stage

    def _starts(self, state: ScheduleState) -> list[ScheduleIndex]:
        return super()._starts(state) if state.best is None else [state.best]


class Enumerated:
    """The schedule that the bound `enumeration` found, if it looked for one."""

    name = ""

    def step(self, state: ScheduleState, budget: Budget) -> bool:
        """Offer it; copies go from the device that makes a tensor to each that reads it."""
        found = enumerated_schedule(state.scenario.problem)
        if found is None:
            return False
        index, on = state.scenario.graph.index, dict(zip(found.operators, found.devices, strict=True))
        rows: dict[tuple[int, ...], None] = {}
        for o in found.operators:
            for t in index.inputs[o]:
                if (maker := index.producer[t]) >= 0 and on[maker] != on[o]:
                    rows[MOVE, t, on[maker], on[o]] = None
            rows[RUN, o, HOST, on[o]] = None
        state.tried["enumeration"] = state.offer_index(ScheduleIndex.of_sequence(state.scenario, np.array(list(rows))))
        return False


class Blocks:
    """Moves of blocks of operators between distant groups of devices (`BlockSearch`)."""

    name = "blocks"

    def __init__(self, options: AnytimeOptions) -> None:
        self._search: BlockSearch | None = None

    def step(self, state: ScheduleState, budget: Budget) -> bool:
        """Try one list schedule with a changed rule."""
        if self._search is None:
            if state.listed is None:
                return False
            scale = state.memory_scale
            self._search = BlockSearch(state.scenario, state.searches, state.listed, scale, state.seed)
        budget.spend(len(state.scenario.graph.operators) * len(state.scenario.topology.devices) / PLACES_PER_SECOND)
        report_progress(self.name, int(budget.spent * 1000), int(budget.work * 1000))
        if self._search.step():
            state.offer_sequence(self._search.best.sequence, state.memory_scale)
        return True


class LocalSearch:
    """Local search over sequences of events (``cpp/search/local_search.h``).

    First the best starts race, then the leader continues alone. If it is stuck, it begins again from the best known schedule
    with another seed.
    """

    name = "local search"

    def __init__(self, options: AnytimeOptions) -> None:
        self._steps: Iterator[bool] | None = None

    def step(self, state: ScheduleState, budget: Budget) -> bool:
        """Replay some thousand events."""
        self._steps = self._steps or self._all(state, budget)
        return next(self._steps, False)

    def _all(self, state: ScheduleState, budget: Budget) -> Iterator[bool]:
        starts = state.starts()[:STARTS]
        share = RACE * budget.left / max(len(starts), 1)
        racers: list[tuple[int, int, Improvement, Start]] = []
        for i, start in enumerate(starts):
            racer = self._search(state, start, state.seed + i)
            yield from self._run(state, budget, racer, start, max(budget.left - share, 0.0))
            if len(racer.best):  # counted by the order of events, a start may seem to need too much memory
                racers.append((racer.latency_ns, i, racer, start))
        if not racers:
            return
        _, _, leader, start = min(racers, key=lambda entry: entry[:2])
        seed = state.seed + len(starts)
        while True:
            yield from self._run(state, budget, leader, start, 0.0)
            start = state.starts()[0]
            leader, seed = self._search(state, start, seed), seed + 1
            # Counts the construction, so that the loop ends even if every search is stuck at once.
            budget.spend(len(start.sequence) / EVENTS_PER_SECOND)
            yield True

    @staticmethod
    def _search(state: ScheduleState, start: Start, seed: int) -> Improvement:
        return state.searches.improve(start.sequence, start.memory_scale, seed, state.goal, state.other_runs)

    def _run(
        self, state: ScheduleState, budget: Budget, search: Improvement, start: Start, until: float
    ) -> Iterator[bool]:
        """Continue until only ``until`` of the budget is left, or the search is stuck."""
        best = start.latency_ns
        while budget.left > until:
            report_progress(self.name, int(budget.spent * 1000), int(budget.work * 1000))
            portion = max(1, min(SLICE, int((budget.left - until) * EVENTS_PER_SECOND)))
            budget.spend(portion / EVENTS_PER_SECOND)
            useful = search.step(portion)
            if len(search.best) and search.latency_ns < best:
                best = search.latency_ns
                state.offer_sequence(search.best, start.memory_scale)
            yield True
            if not useful:
                return
