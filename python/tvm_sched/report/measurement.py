"""Measure runs of an artifact: latencies, the fastest run, the plan's timeline, and a summary of them."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
import numpy.typing as npt
from rich.markup import escape
from rich.table import Table

from tvm_sched_runtime.files import convert
from tvm_sched_runtime.runtime import LatencyStatistics, ScheduledModule
from tvm_sched_runtime.schedule import Event, Timeline

from ..progress import Progress
from .figures import time_by_kind
from .tables import table
from .units import format_ns, format_percent, format_spread, format_time

Array = npt.NDArray[Any]


@dataclass(frozen=True)
class Measured:
    """Results of some runs of one plan."""

    plan: dict[str, Any]
    """The plan for these inputs."""
    outputs: list[Array]
    """Outputs of the last run, or for emulated devices of a run that is not measured. Empty with ``times_only``."""
    statistics: LatencyStatistics
    """Latencies in seconds; for emulated devices in the plan's time."""
    wall_seconds: float
    """Time of all runs together, warm-up included."""
    predicted: Timeline
    timeline: Timeline
    """The plan's timeline, and that of the fastest run."""


def measure(
    module: ScheduledModule,
    values: Sequence[Array],
    warm_up: int = 2,
    repeat: int = 10,
    progress: Progress | None = None,
    trace_apart: bool = False,
    times_only: bool = False,
) -> Measured:
    """Run ``module`` with the inputs ``values``.

    Emulated devices compute values once, after the measured runs, and with ``times_only`` not at all. With
    ``trace_apart`` the timeline is of one more run, since measured runs that replay a graph cannot be traced. After
    Ctrl-C the measured runs until then are summarised, if there are any.
    """
    module.configure(trace=not trace_apart)
    begin = time.monotonic()
    seconds: list[float] = []
    outputs: list[Array] = []
    fastest: dict[str, Any] = {}
    try:
        for n in range(warm_up + repeat):
            if progress:
                progress("warm-up" if n < warm_up else "measured runs", n, warm_up + repeat)
            if module.emulated:
                module.run_times(*values)
            else:
                outputs = module.run(*values)
            if n < warm_up:
                continue
            latency = module.latency()
            if not trace_apart and latency < min(seconds, default=math.inf):
                fastest = module.timeline()
            seconds.append(latency)
    except KeyboardInterrupt:
        if not seconds:
            raise
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
    plan = module.plan_of_run(fastest["plan"])
    if "symbols" in plan:
        own = [{**each, "shape": list(value.shape)} for each, value in zip(plan["arguments"], values, strict=True)]
        plan = {**plan, "arguments": own}
    problem = next((noted["problem"] for noted in module.info().get("plans", ()) if noted["name"] == plan["name"]), "")
    return Measured(
        plan=plan,
        outputs=outputs,
        statistics=LatencyStatistics.of(seconds),
        wall_seconds=wall_seconds,
        predicted=planned_timeline(plan, problem),
        timeline=measured_timeline(fastest, problem),
    )


class OutputType(msgspec.Struct, frozen=True):
    """Name, shape and number format of an output of a model."""

    name: str
    shape: tuple[int, ...]
    dtype: str

    @staticmethod
    def of_all(outputs: Sequence[Array], names: Sequence[str] = ()) -> list[OutputType]:
        """Return the types of arrays, with the names of a model's outputs; without these ``output_0``, ..."""
        if not outputs:  # the run was for its times only
            return []
        labels = names or [f"output_{k}" for k in range(len(outputs))]
        return [OutputType(name, value.shape, value.dtype.name) for name, value in zip(labels, outputs, strict=True)]


class StartStage(msgspec.Struct, frozen=True):
    """Something that the process did up to its first output, see `ScheduledModule.stages`."""

    name: str
    start_s: float
    end_s: float
    """Seconds from the start of the process."""
    bytes: int
    """That were moved; 0: none."""
    model: str
    """Whether the predicted latency counts it: ``"counted"``, ``"not counted"`` or ``"partly"``."""


class RunSummary(msgspec.Struct, frozen=True, kw_only=True):
    """Runs of an artifact of one schedule, compared with its plan."""

    source: str
    """``"measured"`` or ``"emulated"``."""
    plan: str
    repeat: int
    latency_seconds: LatencyStatistics
    predicted_latency_ns: int
    interval_ns: tuple[int, int] | None = None
    """Nanoseconds between which 80 % of the latencies lie by the errors of the plan's prices, if it has any."""
    lower_bound_ns: int | None
    gap: float | None
    """Figures of a cold run."""
    time_ns: dict[str, dict[str, int]]
    """Time of loading, computing and copying over all lanes: predicted, and in the fastest run."""
    wall_seconds: float
    processor: str
    compiled_with: dict[str, Any]
    """Processor of the kernels that ran, and the artifact's metadata."""
    outputs: list[OutputType]
    stages: list[StartStage]
    """From the start of the process to its first output."""

    @classmethod
    def of(cls, module: ScheduledModule, measured: Measured) -> RunSummary:
        """Summarise measured runs of a loaded artifact."""
        info, source = module.info(), measured.timeline.source
        predicted = measured.predicted.latency_ns
        entry: dict[str, Any] = next(
            (each for each in info.get("plans", ()) if each.get("name") == measured.plan["name"]), {}
        )
        bound, interval = entry.get("lower_bound_ns"), entry.get("interval_ns")
        times = {"predicted": time_by_kind(measured.predicted), source: time_by_kind(measured.timeline)}
        kinds = {"loading": ("load", "host_read"), "computing": ("kernel",), "copying": ("copy",)}
        return cls(
            source=source,
            plan=measured.plan["name"],
            repeat=measured.statistics.repeat,
            latency_seconds=measured.statistics,
            predicted_latency_ns=predicted,
            interval_ns=interval and tuple(interval),
            lower_bound_ns=bound,
            gap=1 - bound / predicted if bound is not None and predicted else None,
            time_ns={
                name: {of: sum(time.get(kind, 0) for kind in of_kinds) for of, time in times.items()}
                for name, of_kinds in kinds.items()
            },
            wall_seconds=measured.wall_seconds,
            processor=module.processor(),
            compiled_with=info,
            outputs=OutputType.of_all(measured.outputs, [output["name"] for output in module.outputs()]),
            stages=[StartStage(**stage) for stage in module.stages()],
        )

    def tables(self, module: ScheduledModule, plan: dict[str, Any], warm: bool) -> list[Table]:
        """Return tables of latencies, plan and time; the plan is of a cold run, even if the runs were ``warm``."""
        # A template's times are those of the size for which it was scheduled.
        of = (", cold" if warm else "") + (", at another size" if "symbols" in plan else "")
        latencies = [
            (name, format_time(getattr(self.latency_seconds, name)))
            for name in ("min", "median", "mean", "p90", "p99", "max")
        ]
        rows = [*_plan_rows(module, plan), *_output_rows(self.outputs)]
        rows += [(f"predicted latency{of}", format_spread(self.predicted_latency_ns, self.interval_ns))]
        if self.lower_bound_ns is not None and self.gap is not None:
            rows += [
                (f"lower bound{of}", f"{format_ns(self.lower_bound_ns)} at the plan's prices"),
                ("gap", format_percent(self.gap)),
            ]
        split = [(name, *map(format_ns, times.values())) for name, times in self.time_ns.items()]
        return [
            table((f"{self.source} latency", f"{self.repeat} runs"), latencies),
            table(("plan", escape(self.plan)), rows, text_columns=2),  # the text on emulation has several lines
            table(("time over all lanes", f"predicted{of}", f"{self.source}, fastest run"), split),
        ]


def _plan_rows(module: ScheduledModule, plan: dict[str, Any]) -> list[tuple[str, str]]:
    """Return rows on topology, scheduler, kernels and inputs of a plan."""
    info = module.info()
    others = len(info.get("plans", ())) - 1
    rows = [(what, str(info[what])) for what in ("topology", "scheduler", "emulated") if info.get(what)]
    rows += [("kernels for", kernels_for(module))] if module.processor() else []
    rows += [("plans for other shapes", str(others))] if others > 0 else []
    rows += [("later segments", later_text(info))] if later_text(info) else []
    return rows + [("input", f"{a['name']} {list(a['shape'])} {a['dtype']}") for a in plan["arguments"]]


def _output_rows(outputs: Sequence[OutputType]) -> list[tuple[str, str]]:
    return [("output", f"{value.name} {list(value.shape)} {value.dtype}") for value in outputs]


def kernels_for(module: ScheduledModule) -> str:
    """Return the processor whose kernels run here, and the other processors of the artifact."""
    levels = module.info().get("needs", {}).get("processor", {}).get("levels", ())
    others = [level["name"] for level in levels if level["name"] != module.processor()]
    return f"{module.processor()} (and, elsewhere, {', '.join(others)})" if others else module.processor()


def later_text(info: dict[str, Any]) -> str:
    """Return a text on the operators whose sizes data decide; empty if there are none."""
    if tail := info.get("tail"):
        return f"{sum(tail.values())} operators in TVM's virtual machine, not scheduled, not in the latency"
    segments = info.get("segments", ())
    count = sum(segment["operators"] for segment in segments)
    return f"{len(segments)}, of {count} operators that data decide; not in the prediction" if segments else ""


def planned_timeline(plan: dict[str, Any], problem: str = "") -> Timeline:
    """Return the predicted timeline of a plan (``docs/formats/plan.md``).

    Each step starts when the previous step on its queue and all steps that it waits for have ended, so the result equals
    that of `simulate` for the plan's schedule.
    """
    ends: list[int] = []
    free: dict[int, int] = {}
    events = []
    for step in plan["steps"]:
        start = max([free.get(step["queue"], 0), *(ends[before] for before in step.get("waits", ()))])
        ends.append(start + step.get("duration_ns", 0))
        free[step["queue"]] = ends[-1]
        events += _events(step.get("event"), start, ends[-1])
    return _timeline("simulated", problem, events)


def measured_timeline(raw: dict[str, Any], problem: str = "") -> Timeline:
    """Return the timeline of the last run from `ScheduledModule.timeline`; emulated times are the plan's."""
    events = [event for row in raw["events"] for event in _events(row["event"], row["start_ns"], row["end_ns"])]
    source = "emulated" if raw["backend"] == "emulated" else "measured"
    return _timeline(source, problem, events)


def _events(entry: dict[str, Any] | None, start: int, end: int) -> list[Event]:
    """Return the event of a step; none if the plan names none, such as for a copy to an output."""
    if not entry or "kind" not in entry:
        return []
    return [convert({**entry, "start_ns": start, "end_ns": max(start, end)}, Event, "event of a plan")]


def _timeline(source: Any, problem: str, events: list[Event]) -> Timeline:
    kernels = [event.end_ns for event in events if event.kind == "kernel"]
    return Timeline(source, problem, tuple(events), max(kernels, default=0))
