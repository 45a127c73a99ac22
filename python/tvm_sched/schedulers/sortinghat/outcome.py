"""Outcome of each submodel's program (start, solver, bound, status), for the schedule's notes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from tvm_sched_runtime.schedule import ScheduleIndex


class Outcome(msgspec.Struct):
    """Outcome of a submodel's program; times are nanoseconds from the start of the run, by the program's equations."""

    operators: int
    start_ns: int
    """TotalLatency (equation 23) of the solver's start: the heuristic's assignment, or that of an equal earlier submodel."""
    objective_ns: int | None = None
    bound_ns: int | None = None
    """Objective of the solver's best solution, and its lower bound; None without one."""
    status: str = "not asked"
    """``optimal``, ``limit`` (a solution, not proved within the limits), ``no solution`` (none within them), ``alike``
    (the optimum of a similar program), another status of the solver, ``failed`` (an internal error of the solver),
    ``interrupted``, or ``not asked`` (no time was left)."""
    seconds: float = 0.0
    """Seconds of the solver."""
    decided_by: str = "start"
    """``solver`` if its solution was better than the start, else ``start``."""
    same_as: int | None = None
    """The earlier submodel, counted from 0 among the non-empty ones, with a similar program (`Repeats`), whose answer is
    reused without the solver. Start and bound are shifted by the delay of devices and buses; the objective is that of
    the reused answer here."""
    total_ns: int = 0
    """TotalLatency of the final assignment, after single moves improved a solver's solution."""
    simulated_ns: int = 0
    """The end of the submodel's last kernel by the simulator, in the merged schedule."""


def notes_of(outcomes: Sequence[Outcome], groups: Sequence[Sequence[int]], index: ScheduleIndex) -> dict[str, Any]:
    """Return the notes of a schedule whose submodels are ``groups``: an outcome for each that has operators.

    ``total_latency_ns`` is TotalLatency of the last program, the method's own estimate of the latency; ``programs`` is the
    number of different programs, each solved once.
    """
    end = dict(zip(index.operator, index.times.end_ns.tolist(), strict=True))
    filled = [group for group in groups if group]
    for outcome, group in zip(outcomes, filled, strict=True):
        outcome.simulated_ns = max(end[o] for o in group)
    return {
        "total_latency_ns": max((outcome.total_ns for outcome in outcomes), default=0),
        "decided_by_solver": sum(outcome.decided_by == "solver" for outcome in outcomes),
        "proved": sum(outcome.status == "optimal" for outcome in outcomes),
        "programs": sum(outcome.same_as is None for outcome in outcomes),
        "submodels": msgspec.to_builtins(outcomes),
    }
