"""Run an artifact several times and collect latencies, the fastest run and the plan."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy.typing as npt

from ..report.measured import measured_timeline, planned_timeline
from ..schedule import Timeline
from .progress import Step

if TYPE_CHECKING:
    from ..runtime import LatencyStatistics, ScheduledModule

Array = npt.NDArray[Any]


@dataclass(frozen=True)
class Measured:
    """Results of some runs of one plan.

    Attributes
    ----------
    plan : dict
        The plan that took the inputs.
    outputs : list of array
        Of the last run; of emulated devices, of one that was not measured. Empty where only times were asked for.
    statistics : LatencyStatistics
        Seconds; of emulated devices, in the plan's time.
    wall_seconds : float
        Of all runs together, warm-up included.
    predicted, timeline : Timeline
        What the plan promises; the fastest run.
    """

    plan: dict[str, Any]
    outputs: list[Array]
    statistics: LatencyStatistics
    wall_seconds: float
    predicted: Timeline
    timeline: Timeline


def measure(
    module: ScheduledModule,
    values: Sequence[Array],
    warm_up: int = 2,
    repeat: int = 10,
    progress: Step | None = None,
    trace_apart: bool = False,
    times_only: bool = False,
) -> Measured:
    """Run ``module`` with the inputs ``values``.

    Emulated devices compute values once, after the measured runs, and with ``times_only`` not at all.
    ``trace_apart``: the timeline is of one more run, since those that are measured cannot be traced (they replay a graph).
    """
    from ..runtime import LatencyStatistics

    module.configure(trace=not trace_apart)
    begin = time.monotonic()
    seconds: list[float] = []
    outputs: list[Array] = []
    fastest: dict[str, Any] = {}
    for n in range(warm_up + repeat):
        if progress:
            progress("warm-up" if n < warm_up else "measured runs", n, warm_up + repeat)
        if module.emulated:
            module.run_times(*values)
        else:
            outputs = module.run(*values)
        if n < warm_up:
            continue
        seconds.append(module.latency())
        if seconds[-1] == min(seconds) and not trace_apart:
            fastest = module.timeline()
    if trace_apart:
        module.configure(trace=True)
        if module.emulated:
            module.run_times(*values)
        else:
            module.run(*values)
        fastest = module.timeline()
    wall_seconds = time.monotonic() - begin
    if module.emulated and not times_only:
        outputs = module.run(*values)
    plan = next(plan for plan in module.plans() if plan["name"] == fastest["plan"])
    problem = next((noted["problem"] for noted in module.info().get("plans", ()) if noted["name"] == plan["name"]), "")
    return Measured(
        plan=plan,
        outputs=outputs,
        statistics=LatencyStatistics.of(seconds),
        wall_seconds=wall_seconds,
        predicted=planned_timeline(plan, problem),
        timeline=measured_timeline(fastest, problem),
    )
