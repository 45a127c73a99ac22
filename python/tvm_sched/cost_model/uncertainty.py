"""Uncertainty of a schedule's latency by errors of operator latencies, and which measurements would reduce it most."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from tvm_sched_runtime.errors import InputError
from tvm_sched_runtime.pipeline import PipelinePlan
from tvm_sched_runtime.problem import FORBIDDEN, Concurrency, Costs, OpGraph, Problem, Topology, Uncertainty, Workload
from tvm_sched_runtime.problem.costs import concatenate_costs
from tvm_sched_runtime.problem.variants import Variants, all_alternatives
from tvm_sched_runtime.schedule import Schedule, evaluate, resolved

from .features import family_of
from .signature import signatures

_DEVIATIONS = 1.2815516  # standard deviations to either side that contain 80 % of a normal distribution
_PAIRS_DEVIATIONS = 1.6448536  # 90 %, as `Concurrency.interval` has it
DRAWS = 64
"""Draws that decide a schedule's interval."""


@dataclass(frozen=True)
class Useful:
    """A kernel whose measurement would make the latency of a schedule more certain."""

    signature: str
    """Signature of the kernel, see `signatures`."""
    device: str
    """Model of the device."""
    operators: tuple[str, ...]
    """Operators of the schedule that this kernel computes."""
    uncertain_ns: int
    """Sum of the widths of their intervals."""
    far: bool
    """Whether it is far from all measured kernels."""


def draws(problem: Problem, count: int, seed: int = 0) -> Iterator[Problem]:
    """Yield problems whose latencies are drawn from their intervals, the same ones for the same seed.

    A drawn problem differs in its costs alone, those of alternatives included, and has no intervals. Draw i depends on the
    seed and i only. 10 % of the draws of a latency lie below its interval, 10 % above. One error is drawn for each kernel
    on each model of device, so equal kernels have equal errors. A part of the error is common to all kernels of a family
    (`Uncertainty.shared`), so that errors do not cancel out. A factor on the times of operators that run together is drawn
    from its own interval (`Concurrency.interval`), once for all sets. Measured pairs scale with their operators. The
    time that direct host access waits for the bus is not drawn.

    Raises
    ------
    InputError
        The problem's costs do not estimate their errors.
    """
    if not has_intervals(problem):
        raise InputError(
            f"the latencies of the problem are from {problem.costs.source or 'an unknown source'!r}, which does not "
            "estimate their errors; make the problem with the cost model 'learned', 'measured' or 'contention'"
        )
    groups = problem.variants.groups if problem.variants else ()
    graph = all_alternatives(problem.graph, groups) if groups else problem.graph
    costs = concatenate_costs([problem.costs, problem.variants.costs]) if problem.variants else problem.costs
    together, intervals = problem.costs.concurrency, costs.uncertainty
    if intervals is None:
        exact = costs.operator_ns
        intervals = Uncertainty(exact, exact, np.zeros(exact.shape), np.zeros(exact.shape, bool))
    models = [device.model or device.name for device in problem.topology.devices]
    own = _codes(signatures(graph), models)
    common = _codes([family_of(operator.kind)[0] for operator in graph.operators], models)
    up, down = (
        np.log(np.where(intervals.high_ns == FORBIDDEN, 1, end / begin)) / _DEVIATIONS
        for begin, end in ((costs.operator_ns, intervals.high_ns), (intervals.low_ns, costs.operator_ns))
    )
    least = _host_reads(graph, problem.topology, costs)
    for n in range(count):
        rng = np.random.default_rng((seed, n))
        z = np.sqrt(intervals.shared) * rng.standard_normal(common.max(initial=0) + 1)[common]
        z += np.sqrt(1 - intervals.shared) * rng.standard_normal(own.max(initial=0) + 1)[own]
        factor, of_sets = np.exp(z * np.where(z > 0, up, down)), _contention_factor(together, rng)
        times = _scaled(costs.operator_ns, factor, 1)
        direct = _with_bus(costs, times, least, bool(problem.topology.storage))
        drawn = costs.replace(operator_ns=times, direct_ns=direct, concurrency=None, uncertainty=None)
        variants = None
        if groups:
            drawn, variants = Variants.split(groups, len(problem.graph.operators), drawn)
        elif together is not None:
            sets = together.times(of_sets, factor)
            drawn = drawn.replace(concurrency=sets)
        yield Problem.derive(problem.graph, problem.topology, drawn, variants, problem.joinable)


def has_intervals(problem: Problem) -> bool:
    """Return whether a problem's costs estimate their errors."""
    together = problem.costs.concurrency
    return problem.costs.uncertainty is not None or (together is not None and together.interval != (1.0, 1.0))


def sample_latencies(
    problem: Problem,
    schedule: Schedule,
    samples: int = 200,
    seed: int = 0,
    progress: Callable[[str, int, int], None] | None = None,
    workload: Workload | None = None,
) -> npt.NDArray[np.int64]:
    """Sample the latency of a schedule, in nanoseconds, over `draws` of the problem.

    Latencies are means over the requests of the workload, by default those of the schedule's certificate.

    Raises
    ------
    InputError
        The problem's costs do not estimate their errors.
    """
    if workload is None:
        workload = Workload(schedule.certificate.requests if schedule.certificate else ())
    result = np.empty(samples, dtype=np.int64)
    for n, drawn in enumerate(draws(problem, samples, seed)):
        if progress:
            progress("", n, samples)
        result[n] = evaluate(drawn, schedule, workload)[0]
    return result


def latency_interval(problem: Problem, schedule: Schedule, workload: Workload | None = None) -> tuple[int, int] | None:
    """Return the nanoseconds between which 80 % of a schedule's drawn latencies lie; None if the costs have no intervals."""
    problem, schedule = resolved(problem, schedule)  # draws would differ with latencies of forms that are not chosen
    if not has_intervals(problem):
        return None
    low, high = np.quantile(sample_latencies(problem, schedule, DRAWS, workload=workload), (0.1, 0.9))
    return int(low), int(high)


class PipelineIntervals(NamedTuple):
    """Nanoseconds between which 80 % of a pipeline's times lie by the errors of its operators' prices."""

    cost: tuple[int, int]
    """Time between batches, transfers and kernels in turn."""
    latency: tuple[int, int]
    """Time of a batch alone."""


def pipeline_intervals(problem: Problem, plan: PipelinePlan) -> PipelineIntervals | None:
    """Return the intervals of a pipeline's times over `draws` of the problem; None if the costs have no intervals."""
    if not has_intervals(problem):
        return None
    operators, devices = problem.graph.index.operator_id, problem.topology.device_id
    rows = [[operators[name] for name in stage.operators] for stage in plan.stages]
    moved = np.array([stage.cost_ns - stage.work_ns for stage in plan.stages])
    costs = np.empty((DRAWS, len(plan.stages)))
    for n, drawn in enumerate(draws(problem, DRAWS)):
        times = np.where(drawn.costs.operator_ns == FORBIDDEN, 0, drawn.costs.operator_ns)
        work = [times[row, devices[stage.device]].sum() for row, stage in zip(rows, plan.stages, strict=True)]
        costs[n] = moved + work
    (low, high), (first, last) = (np.quantile(each, (0.1, 0.9)) for each in (costs.max(1), costs.sum(1)))
    return PipelineIntervals((int(low), int(high)), (int(first), int(last)))


def _contention_factor(together: Concurrency | None, rng: np.random.Generator) -> float:
    """Draw a factor on the times of sets of operators; 90 % of the draws lie in the interval."""
    if together is None or together.interval == (1.0, 1.0):
        return 1.0
    z = float(rng.standard_normal()) / _PAIRS_DEVIATIONS
    low, high = together.interval
    return float(high**z if z > 0 else low**-z)


def _codes(names: list[str], models: list[str]) -> npt.NDArray[np.int64]:
    """Number the pairs of a name and a device's model; equal pairs have equal numbers, shape (names, models)."""
    _, rows = np.unique(names, return_inverse=True)
    distinct, columns = np.unique(models, return_inverse=True)
    return np.asarray(rows[:, None] * len(distinct) + columns[None])


def _scaled(
    matrix: npt.NDArray[np.int64], factor: npt.NDArray[np.float64], least: npt.NDArray[np.int64] | int
) -> npt.NDArray[np.int64]:
    allowed = matrix != FORBIDDEN
    return np.where(allowed, np.maximum(np.where(allowed, matrix, 1) * factor, least).astype(np.int64), FORBIDDEN)


def _with_bus(
    costs: Costs, times: npt.NDArray[np.int64], least: npt.NDArray[np.int64], adds_up: bool
) -> npt.NDArray[np.int64]:
    """Return the latencies with direct host access for drawn times without it: what the bus takes is not uncertain.

    ``adds_up``: whether a kernel waits for the bus, as where pages come from storage; else the longer of both decides.
    """
    waits = costs.direct_ns > costs.operator_ns
    if adds_up:
        result = times + (costs.direct_ns - costs.operator_ns)
    else:
        result = np.where(waits, np.maximum(costs.direct_ns, times), np.maximum(times, least))
    return np.where(costs.direct_ns == FORBIDDEN, FORBIDDEN, np.maximum(result, least))


def _host_reads(graph: OpGraph, topology: Topology, costs: Costs) -> npt.NDArray[np.int64]:
    """Return `Problem.host_read_ns` where direct host access is possible, else 0."""
    problem = Problem.derive(graph, topology, costs)
    result = np.zeros(costs.direct_ns.shape, np.int64)
    for o, d in np.argwhere(costs.direct_ns != FORBIDDEN).tolist():
        result[o, d] = problem.host_read_ns(o, d)
    return result


def most_useful(problem: Problem, schedule: Schedule, count: int = 10) -> list[Useful]:
    """Return the kernels of a schedule whose times are least certain, in nanoseconds of the whole run."""
    intervals = problem.costs.uncertainty
    if intervals is None:
        return []
    names, operators = signatures(problem.graph), problem.graph.index.operator_id
    together: dict[tuple[str, str], list[tuple[str, int, bool]]] = {}
    for placement in schedule.placements:
        o, d = operators[placement.operator], problem.topology.device_id[placement.device]
        device = problem.topology.devices[d]
        if intervals.high_ns[o, d] != FORBIDDEN:
            width = int(intervals.high_ns[o, d] - intervals.low_ns[o, d])
            entry = placement.operator, width, bool(intervals.far[o, d])
            together.setdefault((names[o], device.model or device.name), []).append(entry)
    candidates = [
        Useful(name, device, tuple(e[0] for e in entries), sum(e[1] for e in entries), any(e[2] for e in entries))
        for (name, device), entries in together.items()
    ]
    return sorted((each for each in candidates if each.uncertain_ns > 0), key=lambda u: -u.uncertain_ns)[:count]
