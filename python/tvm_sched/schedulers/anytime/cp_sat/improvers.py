"""Improvers that solve parts of a schedule with CP-SAT."""

from __future__ import annotations

from ....anytime import Budget
from ....errors import InfeasibleError
from ...common.search import rows_of, sequence_of
from ...common.submodels import split
from ..state import ScheduleState
from .model import Limits
from .rolling import roll
from .windows import WindowSearch

WORK_PER_SECOND = 0.5
"""Deterministic seconds of CP-SAT in a second of the clock, roughly, on one core of a server."""

LEAST_SUBMODEL_TIME, MOST_SUBMODEL_TIME = 0.5, 4.0
"""Seconds for a submodel, below which solving it finds nothing that local search does not, and above which none is given."""

NEAR = 0.02
"""Gap of a list schedule at which submodels are not solved."""

WINDOW_WORK = 0.25
"""Deterministic seconds of CP-SAT for one window."""


class Submodels:
    """Submodels at dominators, one after another."""

    name = "submodels"

    def step(self, state: ScheduleState, budget: Budget) -> bool:
        """All of them."""
        groups = split(state.problem, 0, 24)
        seconds = min(MOST_SUBMODEL_TIME, budget.left / max(len(groups), 1))
        if seconds < LEAST_SUBMODEL_TIME or state.cost <= (1 + NEAR) * state.bound:
            return False
        budget.spend(seconds * len(groups))
        limits = Limits(seconds * WORK_PER_SECOND, budget.deadline, 1, state.seed)
        try:
            found = roll(state.problem, groups, state.memory_scale, limits)
            state.offer_sequence(rows_of(found.events), state.memory_scale)
        except InfeasibleError as error:
            state.refuse(error)
        return False


class Windows:
    """Large neighbourhoods of the best schedule."""

    name = "windows"

    def __init__(self) -> None:
        self._search: WindowSearch | None = None

    def step(self, state: ScheduleState, budget: Budget) -> bool:
        """One window."""
        if self._search is None:
            if state.best is None or state.best.evicted or any(state.best.stage):
                return False
            start, scale = sequence_of(state.problem, state.best), state.memory_scale
            self._search = WindowSearch(state.problem, state.searches, start, int(state.cost), scale, state.seed)
        before = self._search.work
        if self._search.step(Limits(WINDOW_WORK, budget.deadline, 1, state.seed)):
            state.offer_sequence(self._search.best, state.memory_scale)
        budget.spend((self._search.work - before) / WORK_PER_SECOND)
        return True
