"""Scheduling in commands: with progress, and with the best schedule so far after Ctrl-C."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from .interrupt import stoppable
from .output import Output

if TYPE_CHECKING:
    from ..problem import Problem, Request
    from ..schedule import Schedule


def solve_with_progress(
    out: Output,
    made: Problem,
    scheduler: str,
    options: Mapping[str, Any],
    requests: tuple[Request, ...] = (),
) -> Schedule:
    """Schedule a problem with progress on standard error; after Ctrl-C, return the best schedule so far."""
    from ..problem import Workload
    from ..schedulers import get, solve

    with stoppable(out, get(scheduler).answers_interrupt), out.step(f"Scheduling with {scheduler}") as step:
        return solve(made, Workload(requests), scheduler, options, progress=step)
