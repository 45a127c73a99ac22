"""Scheduler `auto`: every fast method, the search of `exact` from them, and annealing into stages."""

from __future__ import annotations

import time
from typing import Any

import msgspec

from ..errors import InfeasibleError, require_at_least
from ..problem import FORBIDDEN, Problem
from ..schedule import Schedule, ScheduleIndex
from ..schedule.simulator import price
from .common import native
from .exact.scheduler import ExactOptions, Search
from .registry import get, register

STARTS = ("single", "heft", "peft", "hios-lp", "hios-mr")
"""Methods that take milliseconds, in the order in which they are tried; of equal ones the first is kept."""

HIOS_SECONDS, HIOS_SHARE, HIOS_PLACES_SQUARED_PER_SECOND = 0.2, 0.1, 1.6e10
"""HIOS looks at each operator and device again for each other one: it is left out where it would take more than these
seconds and a larger share of the time, at (operators x devices)^2 a second on one core of a server."""

STAGED_SHARE, STAGED_SHARE_WITH_LOADS = 0.9, 0.4
"""Share of the time for annealing into stages, where the costs know operators together. Where parameters are loaded, the
search without stages knows more ways."""

STAGED_WORK = 0.9
"""Part of that time for which the work is made, so that the clock seldom decides."""

IMPROVE_SHARE, SUBMODELS_SHARE = 0.7, 0.15
"""Shares of the time of `exact` that its improvement and its submodels get, in work; the clock should seldom decide."""


class AutoOptions(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Options of `auto`.

    Parameters
    ----------
    time_limit : float
        Seconds in all. What is limited first is work, so that the same schedule comes out again; by the clock all ends when
        this time is over.
    stage : int
        Most operators that start together, where the costs know how long they take; 1: none.
    seed : int
    """

    time_limit: float = 10.0
    stage: int = 2
    seed: int = 0

    def __post_init__(self) -> None:
        require_at_least(self, time_limit=0, stage=1, seed=0)


@register("auto", options=AutoOptions, answers_interrupt=True)
def auto(problem: Problem, options: AutoOptions) -> Schedule:
    """The best of all: fast heuristics, the search of `exact` from these, and annealing into stages.

    The search is that of `exact` (`tvm_sched.schedulers.exact`), with work for the time limit. Where the costs know
    operators together, simulated annealing (``cpp/search/annealing.h``) goes on from the best schedule and moves
    operators into stages, too. The schedule's notes say what was tried. Never worse than any of the heuristics.

    Raises
    ------
    InfeasibleError
        No method found a schedule within the devices' memory.
    """
    search = _Portfolio(problem, options)
    try:
        for name in STARTS:
            if not name.startswith("hios"):
                search.call(name, {})
            elif search.has_time_for_hios:
                search.call(name, {"window": options.stage})
        search.exact()
        search.stages()
    except KeyboardInterrupt:
        if not search.found:
            raise
    return search.answer()


class _Portfolio:
    """What was found so far, and what was tried."""

    def __init__(self, problem: Problem, options: AutoOptions) -> None:
        self.problem, self.options = problem, options
        self.deadline = time.monotonic() + options.time_limit
        self.found: list[tuple[int, ScheduleIndex]] = []
        self.tried: dict[str, Any] = {}
        topology, index = problem.topology, problem.graph.index
        loads = any(index.host_inputs) and not all(device.shares_host_memory for device in topology.devices)
        share = STAGED_SHARE_WITH_LOADS if loads else STAGED_SHARE
        staged = problem.costs.concurrency is not None and options.stage > 1
        self.staged_seconds = share * options.time_limit if staged else 0.0
        seconds = options.time_limit - self.staged_seconds
        self.search = Search(
            problem,
            ExactOptions(
                submodels_time_limit=SUBMODELS_SHARE * seconds,
                improve_time_limit=IMPROVE_SHARE * seconds,
                time_limit=seconds,
                seed=options.seed,
            ),
        )

    @property
    def done(self) -> bool:
        """Whether nothing better can be found."""
        return min((latency for latency, _ in self.found), default=FORBIDDEN) <= self.search.goal

    @property
    def has_time_for_hios(self) -> bool:
        """Whether HIOS's methods take a small part of the time only."""
        places = len(self.problem.graph.operators) * len(self.problem.topology.devices)
        seconds = places**2 / HIOS_PLACES_SQUARED_PER_SECOND
        return seconds <= max(HIOS_SECONDS, HIOS_SHARE * self.options.time_limit)

    def call(self, name: str, options: dict[str, Any]) -> None:
        """Try a registered method."""
        if self.done:
            return
        scheduler = get(name)
        try:
            schedule = scheduler.function(self.problem, msgspec.convert(options, scheduler.options))
        except InfeasibleError as error:
            self.tried[name] = str(error)
            return
        self.take(name, ScheduleIndex.of(self.problem, schedule))

    def exact(self) -> None:
        """The search of `exact` from what was found."""
        if self.done:
            return
        for _, index in self.found:
            self.search.offer(index)
        try:
            self.search.run()
        finally:
            self.tried |= {f"exact: {part}": latency for part, latency in self.search.tried.items()}
            if self.search.best is not None:
                self.take("exact", self.search.best[1])

    def stages(self) -> None:
        """Annealing into stages from the best."""
        if not self.staged_seconds or self.done or not self.found:
            return
        _, start = min(self.found, key=lambda entry: entry[0])
        seconds, options = STAGED_WORK * self.staged_seconds, self.options
        effort = native.Effort.of(self.problem, seconds, self.deadline, options.seed, self.search.goal, options.stage)
        try:
            self.take("annealing", native.fit(self.problem, native.anneal(self.problem, start, effort)))
        except InfeasibleError as error:
            self.tried["annealing"] = str(error)

    def take(self, name: str, index: ScheduleIndex) -> None:
        """Remember a schedule."""
        latency = price(self.problem, index).latency_ns
        self.tried[name] = latency / 1e9
        self.found.append((latency, index))

    def answer(self) -> Schedule:
        """The best schedule."""
        if not self.found:
            return self.search.answer()  # which says why there is none
        _, best = min(self.found, key=lambda entry: entry[0])
        return best.to_schedule(self.problem, notes={"tried": self.tried})
