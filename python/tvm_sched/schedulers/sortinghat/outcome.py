"""How each submodel was decided (start, solver, bound, status), for the schedule's notes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from ...schedule import ScheduleIndex


class Outcome(msgspec.Struct):
    """How a submodel's program went; times are nanoseconds from the start of the run, by the program's equations."""

    operators: int
    start_ns: int
    """TotalLatency (equation 23) of the assignment from which the solver started: the heuristic's, or that of an equal
    submodel before."""
    objective_ns: int | None = None
    bound_ns: int | None = None
    """The solver's best solution, and below what no solution is; None where it has none."""
    status: str = "not asked"
    """``optimal``, ``limit`` (a solution, not proved within the limits), ``no solution`` (none within them), ``alike``
    (the optimum of a program that is not quite this one), what else the solver said, ``failed`` (by a fault of its
    own), ``interrupted``, or ``not asked`` (no time was left)."""
    seconds: float = 0.0
    """Of the solver."""
    decided_by: str = "start"
    """``solver`` where its solution was better than the start and is taken, else ``start``."""
    same_as: int | None = None
    """The submodel before, counted from 0 among those that have operators, whose program is alike (`Repeats`): its
    answer is taken and the solver is not asked again. Start and bound are those of there, later by what devices and
    buses are free later, and the objective is that of its answer here."""
    total_ns: int = 0
    """TotalLatency of what was taken, after the improvement of a solver's solution by single moves."""
    simulated_ns: int = 0
    """The end of the submodel's last kernel by the simulator, in the merged schedule."""


def notes_of(outcomes: Sequence[Outcome], groups: Sequence[Sequence[int]], index: ScheduleIndex) -> dict[str, Any]:
    """Return the notes of a schedule whose submodels are ``groups``: an outcome for each that has operators.

    ``total_latency_ns`` is TotalLatency of the last program: what the method itself takes for the latency; ``programs`` are
    those that differ, each solved once.
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
