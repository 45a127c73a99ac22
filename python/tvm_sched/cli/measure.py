"""Run an artifact several times and keep what people ask for: latencies, the fastest run, the plan."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from ..errors import InputError
from ..report.measured import measured_timeline, planned_timeline
from ..schedule import Timeline
from .progress import Step

if TYPE_CHECKING:
    from ..runtime import LatencyStatistics, ScheduledModule

Array = npt.NDArray[Any]


@dataclass(frozen=True)
class Measured:
    """What some runs of one plan gave.

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


def choose_inputs(plans: Sequence[dict[str, Any]], given: Mapping[str, Array], seed: int) -> list[Array]:
    """Inputs for the first plan that takes those given; the others are random.

    Raises
    ------
    InputError
        A name that no plan knows, or shapes or dtypes that no plan takes.
    """
    from ..runtime.tensors import random_value

    names = list(dict.fromkeys(argument["name"] for plan in plans for argument in plan["arguments"]))
    for name in given:
        if name not in names:
            raise InputError(f"--input {name}: the artifact has no such input; it has {', '.join(names) or 'none'}")
    for plan in plans:
        if all(_takes(argument, given) for argument in plan["arguments"]):
            rng = np.random.default_rng(seed)
            return [random_value(rng, argument) if argument["name"] not in given else given[argument["name"]]
                    for argument in plan["arguments"]]  # fmt: skip
    found = ", ".join(f"{name}: {list(value.shape)} {value.dtype}" for name, value in given.items())
    allowed = "; or ".join(
        ", ".join(f"{a['name']}: {list(a['shape'])} {a['dtype']}" for a in plan["arguments"]) for plan in plans
    )
    raise InputError(f"the artifact takes no inputs {found}; allowed are {allowed}")


def _takes(argument: Mapping[str, Any], given: Mapping[str, Array]) -> bool:
    value = given.get(argument["name"])
    return value is None or (list(value.shape) == list(argument["shape"]) and value.dtype.name == argument["dtype"])
