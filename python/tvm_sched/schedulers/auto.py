"""Scheduler `auto`: every fast method, annealing from the best of them, and `exact` where it can do more."""

from __future__ import annotations

import time
from typing import Any

import msgspec

from ..errors import InfeasibleError, InputError
from ..problem import FORBIDDEN, Problem
from ..schedule import Schedule, ScheduleIndex
from ..schedule.bounds import MARGIN, lower_bound
from ..schedule.simulate import price
from . import native
from .registry import get, register

STARTS = ("single", "heft", "peft", "hios-lp", "hios-mr")
"""Methods that take milliseconds, in the order in which they are tried; of equal ones the first is kept."""

EXACT_SHARE = 0.7
"""Share of the time for `exact`, where it knows ways that annealing does not."""

WORK_SHARE = 0.8
"""Share of the time limit that annealing's work is made for, so that the clock seldom decides."""

FREE_PER_SECOND, QUEUED_PER_SECOND = 15_000_000, 2_000_000
"""Operators that annealing times in a second on one core of a server: where copies wait for nothing, and elsewhere."""


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
        if not self.time_limit >= 0:
            raise InputError(f"time_limit is {self.time_limit}; 0 or more seconds are allowed")
        for name, least in (("stage", 1), ("seed", 0)):
            if getattr(self, name) < least:
                raise InputError(f"{name} is {getattr(self, name)}; {least} or more is allowed")


@register("auto", options=AutoOptions)
def auto(problem: Problem, options: AutoOptions) -> Schedule:
    """The best of all: fast heuristics, simulated annealing from the best of these, and `exact` where parameters are loaded.

    Annealing (``cpp/search/annealing.h``) moves operators between devices, in their order, and into stages where the costs
    know operators together. It loads and copies on the fastest way when a reader is appended; so `exact`, which also sends
    parameters through neighbours and reads them directly, has most of the time where there are parameters to load. The
    schedule's notes say what was tried. Never worse than any of the heuristics.

    Raises
    ------
    InfeasibleError
        No method found a schedule within the devices' memory.
    """
    search = _Portfolio(problem, options)
    for name in STARTS:
        search.call(name, {"window": options.stage} if name.startswith("hios") else {})
    search.anneal()
    if search.loads and options.time_limit > 0:
        left = max(0.0, search.deadline - time.monotonic())
        search.call("exact", {"time_limit": left, "improve_time_limit": left * WORK_SHARE, "seed": options.seed})
    return search.answer()


class _Portfolio:
    """The best schedule so far, and what was tried."""

    def __init__(self, problem: Problem, options: AutoOptions) -> None:
        self.problem, self.options = problem, options
        self.deadline = time.monotonic() + options.time_limit
        self.best: ScheduleIndex | None = None
        self.latency = FORBIDDEN
        self.tried: dict[str, Any] = {}
        # Bounds are rounded down by a margin; what is as near is optimal.
        self.goal = int(lower_bound(problem).ns * (1 + 2 * MARGIN)) + 1
        topology, index = problem.topology, problem.graph.index
        self.loads = any(index.host_inputs) and not all(device.shares_host_memory for device in topology.devices)

    @property
    def done(self) -> bool:
        """Whether nothing better can be found."""
        return self.latency <= self.goal

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

    def anneal(self) -> None:
        """Try annealing from the best that is known."""
        if self.best is None or self.done or any(self.best.direct):
            return  # annealing has direct host access only where there is no other way
        share = 1 - EXACT_SHARE if self.loads else 1.0
        queued = self.loads or bool(self.problem.topology.channels)
        speed = QUEUED_PER_SECOND if queued else FREE_PER_SECOND
        seconds = share * self.options.time_limit
        stage = self.options.stage if self.problem.costs.concurrency is not None else 1
        left = seconds - (self.options.time_limit - (self.deadline - time.monotonic()))
        work = int(WORK_SHARE * seconds * speed)
        effort = native.Effort(work, self.options.seed, self.goal, stage, left)
        try:
            self.take("annealing", native.fit(self.problem, native.anneal(self.problem, self.best, effort)))
        except InfeasibleError as error:
            self.tried["annealing"] = str(error)

    def take(self, name: str, index: ScheduleIndex) -> None:
        """Keep a schedule where it is better than all before."""
        latency = price(self.problem, index).latency_ns
        self.tried[name] = latency / 1e9
        if latency < self.latency:
            self.best, self.latency = index, latency

    def answer(self) -> Schedule:
        """The best schedule."""
        if self.best is None:
            raise InfeasibleError("; ".join(f"{name}: {why}" for name, why in self.tried.items()))
        return self.best.to_schedule(self.problem, notes={"tried": self.tried})
