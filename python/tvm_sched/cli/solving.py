"""Scheduling in commands: with progress, and with the best schedule so far after Ctrl-C."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .interrupt import stoppable
from .output import Output

if TYPE_CHECKING:
    from ..problem import Problem
    from ..schedule import Request, Schedule


def solve_with_progress(
    out: Output,
    made: Problem,
    scheduler: str,
    options: dict[str, Any],
    requests: tuple[Request, ...] | None = None,
) -> Schedule:
    """Schedule a problem with progress on standard error; after Ctrl-C, return the best schedule so far."""
    from ..schedulers import get, solve

    with stoppable(out, get(scheduler).answers_interrupt), out.step(f"Scheduling with {scheduler}") as step:
        return solve(made, scheduler, options, progress=step, requests=requests)
