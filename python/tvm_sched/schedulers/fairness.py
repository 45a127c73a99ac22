"""Fair schedules of several models: minimise the largest slowdown, the latency of a model relative to its latency alone."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

from tvm_sched_runtime.errors import InputError
from tvm_sched_runtime.problem import (
    Problem,
    Request,
    Scenario,
    Workload,
    merge_problems,
    merge_scenarios,
    problems_of_models,
)
from tvm_sched_runtime.schedule import Schedule, model_latencies, requests_of_part
from tvm_sched_runtime.schedule.schedule import weighted_mean
from tvm_sched_runtime.search_budget import SearchLimits, TimedOptions, ending_at

from ..bounds import lower_bound
from ..progress import Progress
from .scheduler_registry import get
from .solve_latency import Options, minimise_latency

SCHEDULERS = ("anytime", "heft", "peft")
"""Schedulers that take lags."""

ROUNDS = 3
"""Number of schedules of all models together."""

WEIGHTS = (1e-100, 1e100)
"""Least and greatest weight. Their products with slowdowns (below 1e19) do not overflow double precision."""

FAR = 10
"""Largest lag, relative to the end of the last model; larger lags change nothing."""


@dataclass(frozen=True)
class Fairness:
    """How the models of a schedule share the machine."""

    models: list[str]
    weights: list[float]
    """How much each model's slowdown counts."""
    alone_ns: list[int]
    """The least known latency of each model alone on the machine."""
    latency_ns: list[int]
    """Latency of each model in the schedule."""
    lower_bound: float
    """Lower bound of `largest` over all schedules, for these ``alone_ns``."""

    @property
    def largest(self) -> float:
        """The largest weighted slowdown, the objective."""
        return float(_largest_slowdown(self.latency_ns, self.alone_ns, self.weights))


def solve_fairly(
    problem: Problem,
    workload: Workload,
    method: str = "anytime",
    options: Options = None,
    budget: SearchLimits | None = None,
    progress: Progress | None = None,
) -> tuple[Schedule, Fairness]:
    """Minimise the largest weighted slowdown of several models.

    Each model is scheduled alone, then all together `ROUNDS` times. Lags (`Workload.lags_ns`) make the search shorten the
    largest slowdown: a model with a shorter weighted time alone gets a larger lag. All searches get equal shares of the
    method's time. After Ctrl-C each model that was not scheduled yet gets the first schedule that is found.

    Parameters
    ----------
    problem : Problem
        Of several models (`merge_problems`).
    workload : Workload
        Its requests and `Workload.model_weights`, which are within `WEIGHTS`.
    method : {"anytime", "heft", "peft"}
    options, budget, progress
        As of `tvm_sched.schedulers.solve`.

    Raises
    ------
    InputError
        The problem has one model, or models that follow each other; the method takes no lags; a weight is missing or
        outside of `WEIGHTS`; or the workload has lags or submodels, which this search sets itself.
    InfeasibleError
        As `tvm_sched.schedulers.solve`.
    """
    weights = workload.model_weights
    if method not in SCHEDULERS:
        raise InputError(
            f"the objective slowdown is for the schedulers {', '.join(SCHEDULERS)}, and not for {method!r}"
        )
    if not problem.graph.models:
        raise InputError(f"{problem.graph.name!r} is one model; the objective slowdown needs several models")
    parts = problems_of_models(problem)
    least, greatest = WEIGHTS
    if len(weights or parts) != len(parts) or not all(least <= weight <= greatest for weight in weights):
        raise InputError(
            f"weights are {list(weights)}; a number from {least} to {greatest} for each of {len(parts)} models is allowed"
        )
    if workload.lags_ns or workload.submodels is not None:
        raise InputError("the workload has lags or submodels; with the objective slowdown leave them out")
    workload.check(problem)
    chosen, deadline = get(method).read_options(options), math.inf
    if isinstance(chosen, TimedOptions):
        limited = chosen if budget is None else chosen.within(budget)
        deadline = time.monotonic() + limited.seconds
        chosen = limited.scaled(problem.places * (len(parts) + ROUNDS)).part(len(parts) + ROUNDS)
    counts = list(weights or [1.0] * len(parts))
    interrupted = False

    def searched(part: Problem, own: Workload) -> Schedule:
        nonlocal interrupted
        with ending_at(time.monotonic() if interrupted else deadline):
            found = minimise_latency(part, own, method, chosen, progress=progress)
        interrupted |= found.certificate is not None and found.certificate.status == "interrupted"
        return found

    alone = [_latency(searched(part, Workload(requests_of_part(part, workload.requests)))) for part in parts]
    tried: list[tuple[Schedule, list[int]]] = []
    lags = [0] * len(parts)
    for _ in range(ROUNDS):
        schedule = searched(problem, Workload(workload.requests, tuple(lags)))
        ends = [each.latency_ns for each in model_latencies(problem, schedule, workload)]
        alone = [
            min(before, end) for before, end in zip(alone, ends, strict=True)
        ]  # a schedule of the model alone can do the same
        tried.append((schedule, ends))
        lags = aimed_lags(alone, counts, [each for _, each in tried])
        if interrupted:
            break
    try:
        with ending_at(time.monotonic() if interrupted else deadline):
            bound = slowdown_bound(problem, alone, counts, workload.requests)
    except KeyboardInterrupt:
        with ending_at(time.monotonic()):
            bound = slowdown_bound(problem, alone, counts, workload.requests)
    best, ends = min(tried, key=lambda each: _largest_slowdown(each[1], alone, counts))
    fairness = Fairness(list(problem.graph.models), counts, alone, ends, bound)
    return best.replace(workload=workload.digest), fairness


def slowdown_bound(
    problem: Problem, alone_ns: Sequence[int], weights: Sequence[float], requests: Sequence[Request] = ()
) -> float:
    """Bound the largest weighted slowdown of any schedule from below.

    The last model of a set ends no earlier than the set's lower bound. So the slowdown of one of them is at least this bound
    over the longest of their weighted times alone. The sets are each single model, and the 2, 3, ... models with the
    shortest weighted times alone.

    Parameters
    ----------
    problem : Problem
        Of several models.
    alone_ns : sequence of int
        Latency of each model alone, relative to which its slowdown is defined.
    requests : sequence of Request
        The runs over which latencies are means.
    """
    parts = problems_of_models(problem)
    paces = _unit_slowdowns(alone_ns, weights)
    order = sorted(range(len(parts)), key=paces.__getitem__)
    bounds = [Fraction(_bound([part], requests)) / pace for part, pace in zip(parts, paces, strict=True)]
    if len(requests) < 2:  # which model is the last may differ from run to run
        for count in range(2, len(parts) + 1):
            bounds.append(_bound([parts[m] for m in order[:count]], requests) / paces[order[count - 1]])
    return float(max(bounds))


def _bound(parts: Sequence[Problem], requests: Sequence[Request]) -> int:
    """Return the lower bound of some models (ns), the mean over the requests."""
    if not requests:
        return lower_bound(merge_problems(parts)).ns
    kinds = [requests_of_part(part, requests) for part in parts]
    runs = [
        [Scenario(part, frozenset(kind[r].resident)) for part, kind in zip(parts, kinds, strict=True)]
        for r in range(len(requests))
    ]
    return weighted_mean(requests, [lower_bound(merge_scenarios(run)).ns for run in runs])


def _unit_slowdowns(alone_ns: Sequence[int], weights: Sequence[float]) -> list[Fraction]:
    """Return for each model the nanoseconds of a weighted slowdown of 1, exactly, for weights of any size."""
    return [max(alone, 1) / Fraction(weight) for alone, weight in zip(alone_ns, weights, strict=True)]


def aimed_lags(alone_ns: Sequence[int], weights: Sequence[float], ends_ns: Sequence[Sequence[int]]) -> list[int]:
    """Compute lags with which an earlier latest end means a smaller largest slowdown than in all schedules so far.

    ``ends_ns`` are the ends of the models in each schedule. Lags are at most `FAR` times the latest of them: times have 64
    bits.
    """
    paces = _unit_slowdowns(alone_ns, weights)
    aimed = min(_largest_slowdown(ends, alone_ns, weights) for ends in ends_ns)
    lags = [round(aimed * (max(paces) - pace)) for pace in paces]
    too_far = max(lags) - FAR * max(max(ends) for ends in ends_ns)
    return [max(0, lag - max(0, too_far)) for lag in lags]


def _largest_slowdown(ends_ns: Sequence[int], alone_ns: Sequence[int], weights: Sequence[float]) -> Fraction:
    """Return the largest weighted slowdown."""
    return max(end / pace for end, pace in zip(ends_ns, _unit_slowdowns(alone_ns, weights), strict=True))


def _latency(schedule: Schedule) -> int:
    assert schedule.certificate is not None
    return schedule.certificate.latency_ns
