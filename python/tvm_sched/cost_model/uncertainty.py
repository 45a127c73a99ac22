"""Uncertainty of a schedule's latency by errors of operator latencies, and which measurements would reduce it most."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ..errors import InputError
from ..problem import FORBIDDEN, Concurrency, Costs, Problem, Uncertainty, Workload
from ..schedule import Schedule, evaluate
from .features import family_of
from .signature import signatures

_DEVIATIONS = 1.6448536  # standard deviations to either side that contain 90 % of a normal distribution


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


def sample_latencies(
    problem: Problem,
    schedule: Schedule,
    samples: int = 200,
    seed: int = 0,
    progress: Callable[[str, int, int], None] | None = None,
    workload: Workload | None = None,
) -> npt.NDArray[np.int64]:
    """Sample the latency of a schedule, in nanoseconds, with operator times drawn from their intervals.

    Latencies are means over the requests of the workload, by default those of the schedule's certificate.

    One error is drawn for each kernel on each model of device, so equal kernels have equal errors. A part of the error is
    common to all kernels of a family (`Uncertainty.shared`), so that errors do not cancel out. A factor on the times of
    operators that run together is drawn from its own interval (`Concurrency.interval`), once for all sets. Measured pairs
    scale with their operators.

    Raises
    ------
    InputError
        The problem's costs do not estimate their errors.
    """
    costs = problem.costs
    intervals, together = costs.uncertainty, costs.concurrency
    if intervals is None and (together is None or together.interval == (1.0, 1.0)):
        raise InputError(
            f"the latencies of the problem are from {costs.source or 'an unknown source'!r}, which does not estimate their "
            "errors; make the problem with the cost model 'learned', 'measured' or 'contention'"
        )
    if intervals is None:
        exact = costs.operator_ns
        intervals = Uncertainty(exact, exact, np.zeros(exact.shape), np.zeros(exact.shape, bool))
    models = [device.model or device.name for device in problem.topology.devices]
    own = _codes(signatures(problem.graph), models)
    common = _codes([family_of(operator.kind)[0] for operator in problem.graph.operators], models)
    up, down = (
        np.log(np.where(intervals.high_ns == FORBIDDEN, 1, end / begin)) / _DEVIATIONS
        for begin, end in ((costs.operator_ns, intervals.high_ns), (intervals.low_ns, costs.operator_ns))
    )
    if workload is None:
        workload = Workload(schedule.certificate.requests if schedule.certificate else ())
    rng = np.random.default_rng(seed)
    result = np.empty(samples, dtype=np.int64)
    for n in range(samples):
        if progress:
            progress("", n, samples)
        z = np.sqrt(intervals.shared) * rng.standard_normal(common.max(initial=0) + 1)[common]
        z += np.sqrt(1 - intervals.shared) * rng.standard_normal(own.max(initial=0) + 1)[own]
        factor = _contention_factor(together, rng)
        drawn = _scaled(problem, np.exp(z * np.where(z > 0, up, down)), factor)
        result[n] = evaluate(drawn, schedule, workload)[0]
    return result


def _contention_factor(together: Concurrency | None, rng: np.random.Generator) -> float:
    """Draw a factor on the times of sets of operators; 90 % of the draws lie in the interval."""
    if together is None or together.interval == (1.0, 1.0):
        return 1.0
    z = float(rng.standard_normal()) / _DEVIATIONS
    low, high = together.interval
    return float(high**z if z > 0 else low**-z)


def _codes(names: list[str], models: list[str]) -> npt.NDArray[np.int64]:
    """Number the pairs of a name and a device's model; equal pairs have equal numbers, shape (names, models)."""
    _, rows = np.unique(names, return_inverse=True)
    distinct, columns = np.unique(models, return_inverse=True)
    return np.asarray(rows[:, None] * len(distinct) + columns[None])


def _scaled(problem: Problem, factor: npt.NDArray[np.float64], of_sets: float) -> Problem:
    costs = problem.costs

    def scale(matrix: npt.NDArray[np.int64], least: npt.NDArray[np.int64] | int) -> npt.NDArray[np.int64]:
        allowed = matrix != FORBIDDEN
        return np.where(allowed, np.maximum(np.where(allowed, matrix, 1) * factor, least).astype(np.int64), FORBIDDEN)

    devices = range(len(problem.topology.devices))
    reads = np.array([[problem.host_read_ns(o, d) for d in devices] for o in range(len(problem.graph.operators))])
    reads = reads.reshape(costs.operator_ns.shape)
    together = costs.concurrency and costs.concurrency.times(of_sets, factor)
    drawn = Costs(scale(costs.operator_ns, 1), scale(costs.direct_ns, reads), concurrency=together)
    return Problem(problem.graph, problem.topology, drawn)


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
