"""Latencies of several models on one machine, and their slowdowns."""

from __future__ import annotations

from typing import NamedTuple

from ..problem import COLD, Problem, Workload
from .resolve import in_scenarios
from .schedule import Schedule, weighted_mean


class ModelLatency(NamedTuple):
    """End of one of several models.

    Examples
    --------
    >>> from tvm_sched_runtime.schedule import ModelLatency
    >>> ModelLatency("bert", latency_ns=3000, alone_ns=2000).slowdown
    1.5
    """

    model: str
    latency_ns: int
    """The end of its last kernel."""
    alone_ns: int | None = None
    """Its latency alone on the machine, if known."""

    @property
    def slowdown(self) -> float | None:
        """Latency divided by its latency alone."""
        return self.latency_ns / self.alone_ns if self.alone_ns else None


def model_latencies(problem: Problem, schedule: Schedule, workload: Workload = COLD) -> list[ModelLatency]:
    """Return the end of each of the graph's models: the mean over the requests.

    Empty if the graph is one model.

    Raises
    ------
    InputError, ScheduleError
        As `tvm_sched_runtime.schedule.evaluate`.

    Examples
    --------
    >>> from tvm_sched_runtime.problem import merge_problems
    >>> from tvm_sched_runtime.schedule import model_latencies
    >>> both = merge_problems([problem, problem])
    >>> [latency.latency_ns for latency in model_latencies(both, solve(both, method="single"))]
    [5500, 9500]
    """
    if not problem.graph.models:
        return []
    runs = in_scenarios(workload.scenarios(problem), schedule)
    ends = [dict(zip(run.operator, run.times.end_ns.tolist(), strict=True)) for run in runs]
    graph = runs[0].problem.graph
    return [
        ModelLatency(
            model, weighted_mean(workload.requests, [max((end[o] for o in members), default=0) for end in ends])
        )
        for model, members in zip(graph.models, graph.operators_of_models, strict=True)
    ]
