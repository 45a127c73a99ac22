"""Summaries of problems, schedules and simulations: what commands print with ``--json``."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from tvm_sched_runtime.problem import Problem
from tvm_sched_runtime.schedule import ModelLatency, Schedule, Timeline
from tvm_sched_runtime.schedule.rules import Violation
from tvm_sched_runtime.schedule.schedule import RequestLatency

from ..cost_model.uncertainty import Useful
from .figures import LaneFigures, lane_figures, ordered_lanes
from .units import format_ns


class ProblemSummary(msgspec.Struct, frozen=True):
    """Size of a problem."""

    problem: str
    model: str
    topology: str
    operators: int
    tensors: int
    parameter_bytes: int
    flops: int

    @classmethod
    def of(cls, problem: Problem) -> ProblemSummary:
        """Summarise a problem."""
        graph = problem.graph
        parameter_bytes = sum(tensor.size for tensor in graph.tensors if tensor.kind == "parameter")
        flops = sum(operator.flops for operator in graph.operators)
        operators, tensors = len(graph.operators), len(graph.tensors)
        return cls(problem.digest, graph.name, problem.topology.name, operators, tensors, parameter_bytes, flops)


class ScheduleSummary(msgspec.Struct, frozen=True, kw_only=True):
    """A schedule with its certificate and the use of each lane.

    Attributes
    ----------
    choice : dict
        Chosen variant of each group of operators, except groups that run as in the graph.
    latency_ns, lower_bound_ns : int
        Figures of a cold run, or weighted means over ``requests``.
    interval_ns : tuple of int, optional
        Nanoseconds between which 80 % of the latencies lie by the errors of the prices; None if these have none.
    gap : float
        ``1 - lower_bound_ns / latency_ns``.
    notes : dict
        Notes of the scheduler: for `sortinghat`, the method that decided each submodel.
    lanes : list of LaneFigures
        Lanes in the run of the first request.
    """

    problem: str
    model: str
    topology: str
    scheduler: str
    options: dict[str, Any]
    choice: dict[str, str]
    latency_ns: int
    interval_ns: tuple[int, int] | None = None
    requests: tuple[RequestLatency, ...]
    lower_bound_ns: int | None
    gap: float | None
    bound: str | None
    status: str | None
    seconds: float | None
    notes: dict[str, Any]
    lanes: list[LaneFigures]

    @classmethod
    def of(cls, problem: Problem, schedule: Schedule, predicted: Timeline, **more: Any) -> Any:
        """Summarise a schedule whose first run is ``predicted``; ``more`` are fields of a subclass."""
        certificate = schedule.certificate
        known = {name: getattr(certificate, name, None) for name in ("lower_bound_ns", "gap", "bound", "status")}
        return cls(
            problem=problem.digest,
            model=problem.graph.name,
            topology=problem.topology.name,
            scheduler=schedule.scheduler,
            options=schedule.options,
            choice=schedule.choice or schedule.notes.get("choice", {}),
            latency_ns=certificate.latency_ns if certificate else predicted.latency_ns,
            requests=certificate.requests if certificate else (),
            seconds=schedule.seconds,
            notes=schedule.notes,
            lanes=lane_figures(predicted, ordered_lanes(problem.topology, [predicted])),
            **known,
            **more,
        )


class ModelEnd(msgspec.Struct, frozen=True):
    """End of one of several models."""

    model: str
    latency_ns: int
    alone_ns: int | None = None
    slowdown: float | None = None
    """Latency alone on the machine, and the slowdown among the others."""
    takes_ns: int | None = None
    """Time since the end of the previous model, if the models run in turn."""

    @staticmethod
    def of_all(known: Sequence[ModelLatency], in_turn: bool) -> list[ModelEnd]:
        """Return the ends of models that run at once or ``in_turn``."""
        starts = [0, *(each.latency_ns for each in known)]
        return [
            ModelEnd(
                each.model, each.latency_ns, each.alone_ns, each.slowdown, each.latency_ns - start if in_turn else None
            )
            for each, start in zip(known, starts, strict=False)
        ]


class ScheduledModels(ScheduleSummary, frozen=True, kw_only=True):
    """A schedule of one model or several."""

    models: list[ModelEnd] | None = None
    """Ends of several models."""
    largest_slowdown: float | None = None
    """Largest slowdown, if the latencies alone are known."""
    weights: list[float] | None = None
    objective: float | None = None
    objective_lower_bound: float | None = None
    """If the objective was the largest weighted slowdown: the weights, that slowdown, and its lower bound."""


class LatencySample(msgspec.Struct, frozen=True):
    """Percentiles of the latency over random draws of uncertain operator times, in nanoseconds."""

    percentiles_ns: dict[str, int]
    samples: int
    seed: int

    @classmethod
    def of(cls, latencies: npt.NDArray[np.int64], seed: int) -> LatencySample:
        """Return the percentiles of latencies that were drawn with a seed."""
        levels = {"5 %": 5, "25 %": 25, "median": 50, "75 %": 75, "95 %": 95}
        return cls({name: int(np.percentile(latencies, at)) for name, at in levels.items()}, len(latencies), seed)


class SimulatedSchedule(ScheduleSummary, frozen=True, kw_only=True):
    """A schedule with the kernels whose measurement would make its latency more certain."""

    useful_measurements: list[Useful]
    blocks_latency_ns: int | None = None
    """Latency of the first run by the blocks of kernels."""
    percentiles_ns: dict[str, int] | None = None
    samples: int | None = None
    seed: int | None = None
    """As in `LatencySample`."""


class Verdict(msgspec.Struct, frozen=True):
    """Whether a schedule obeys every rule of ``docs/model.md``, and its violations."""

    feasible: bool
    violations: list[Violation]


class Explanation(msgspec.Struct, frozen=True):
    """Sentences on the argument of a lower bound."""

    lines: list[str]


def remarks(problem: Problem, schedule: Schedule) -> list[str]:
    """Return sentences on the choice among variants, and on the scheduler's notes."""
    sentences, notes = [], schedule.notes
    if problem.variants is not None:
        groups = problem.variants.groups
        chosen = Counter(schedule.choice.get(group.name, group.graph_alternative) for group in groups)
        counts = ", ".join(f"{count} {name}" for name, count in chosen.items())
        sentences.append(f"{len(groups)} groups of operators have alternatives; chosen: {counts}")
    if "instead" in notes:
        sentences.append(f"the schedule is not that of {schedule.scheduler}: {notes['instead']}")
    elif "submodels" in notes:
        sentences.append(
            f"the solver improved {notes['decided_by_solver']} of {len(notes['submodels'])} submodels, and proved "
            f"{notes['proved']}; what decided each is in --json"
        )
    if "robust" in notes:
        sentences.append(_robustness(notes["robust"]))
    return sentences


def _robustness(notes: dict[str, Any]) -> str:
    """Say what a robust schedule gains over draws of the latencies, and what it costs at the central ones."""
    if not notes["draws"]:
        return (
            "the schedule is the best at the central latencies alone: they have no intervals (--costs learned has them), or "
            "the time ended before draws could judge"
        )
    rows = {row["candidate"]: row for row in notes["candidates"]}
    chosen, central = rows[notes["chosen"]], min(notes["candidates"], key=lambda row: row["central_ns"])
    statistic = {"mean": "the mean", "p80": "the 80th percentile"}[notes["statistic"]]
    return (
        f"over {notes['draws']} draws of the latencies, {statistic} of this schedule ({notes['chosen']}) is "
        f"{format_ns(chosen['value_ns'])}, and {format_ns(central['value_ns'])} that of the best at the central latencies "
        f"({central['candidate']}); there they take {format_ns(chosen['central_ns'])} and {format_ns(central['central_ns'])}"
    )
