"""Lower bounds: latencies below which no schedule of a problem can get, whatever scheduler makes it.

Every bound is a relaxation of the rules in ``docs/model.md``, so it holds for all feasible schedules. Peer copies are
taken as free, but for those next to an operator, between branches of one region, and on the way to devices that run neither
the first nor the last operators; a bus may carry any part of a tensor at any moment.
"""

from __future__ import annotations

import math
import weakref
from typing import NamedTuple

import numpy as np

from ..errors import InfeasibleError
from ..problem import Problem
from .bus import bus_bound
from .critical_path import critical_path_bound
from .device_work import device_work_bound
from .group_delays import group_delays
from .path_and_bus import path_and_bus_bound
from .region_placement import Delay
from .relaxation import Relaxation
from .resident_relaxation import without_resident
from .variant_relaxation import relaxed

MARGIN = 1e-9
"""Relative slack for floating-point sums, so that rounding never lifts a bound above the truth."""


def whole_ns(value: float) -> int:
    """The least integer latency that a floating-point bound allows, if rounding has added at most `MARGIN`."""
    return math.ceil(value * (1 - MARGIN))


class Bound(NamedTuple):
    """A lower bound in nanoseconds and the argument that gave it."""

    ns: int
    name: str

    @property
    def seconds(self) -> float:
        """The bound in seconds."""
        return self.ns / 1e9


def optimality_threshold(bound_ns: int) -> int:
    """The latency up to which a schedule counts as optimal: the bound and its allowance for rounding."""
    return int(bound_ns * (1 + 2 * MARGIN))


_known: weakref.WeakKeyDictionary[Problem, Bound] = weakref.WeakKeyDictionary()


def lower_bound(problem: Problem) -> Bound:
    """The strongest of all bounds, computed on the first call for a problem.

    Of a problem with variants it holds for all choices: it is that of a problem that is no harder than any of them
    (`tvm_sched.bounds.variant_relaxation`). Where parameters are resident it is that of a problem without them.

    Parameters
    ----------
    problem : Problem

    Returns
    -------
    Bound
        ``name`` is ``"critical path"``, ``"device work"``, ``"bus"`` or ``"path and bus"``.

    Raises
    ------
    InfeasibleError
        The bound is infinite: no schedule exists.

    Notes
    -----
    *Critical path*: each operator on its best device, its parameters over the fastest bus, copies free; in addition an
    operator ends no earlier than all buses together can carry the parameters of its ancestors; the predecessors of an
    operator, its successors, and branches between it and one that it dominates (`tvm_sched.bounds.region_placement`, and
    `shared_regions` where operators may run together or there are more than `regions.MOST_DEVICES` devices) share a device
    or pay for copies, and all work between the two fills the devices (`region_work`). The times of such regions add up along
    the model, and what follows the last byte of a prefix of the parameters is counted by them too.
    *Device work*: the operators that must be followed by at least ``t`` and preceded by at least ``r`` of other work fill
    the devices in between, each of which has another first and another last operator; where few operators begin the model,
    the other devices wait for copies from theirs, and so at its end (`tvm_sched.bounds.ramp`). Unequal devices
    are weighted by multipliers (Lagrangian dual of the fractional assignment).
    Where operators may run together, each counts for the part of a resource that it needs (`Concurrency`), for each
    resource in turn.
    *Bus*: the parameters whose readers must be followed by at least ``t`` of work cross the buses first; bytes read by
    direct host access cross them too.
    *Path and bus*: where operators may read directly, paths, devices and buses weighed together, each operator in the way
    that is cheapest by all weights (`tvm_sched.bounds.path_and_bus`).
    """
    found = _known.get(problem)
    if found is None:
        found = _known[problem] = _single_device_bound(problem) or max(all_bounds(problem), key=lambda bound: bound.ns)
    return found


def _single_device_bound(problem: Problem) -> Bound | None:
    """What every schedule takes of a device alone that loads nothing and runs one operator at a time; None of others.

    No other bound is above it, and all of them take seconds for thousands of operators.
    """
    costs = problem.costs
    if len(problem.topology.devices) > 1 or not problem.reads_host_in_place(0):
        return None
    if costs.concurrency is not None or problem.variants or not problem.graph.operators:
        return None
    shortest = np.minimum(costs.operator_ns, costs.direct_ns)
    return Bound(whole_ns(float(shortest.sum(dtype=np.float64))), "device work")


def all_bounds(relaxation: Relaxation | Problem) -> list[Bound]:
    """Each bound, in order of `lower_bound`'s notes; the last one where it is stronger than those of path or bus.

    Raises
    ------
    InfeasibleError
        As `lower_bound`.
    """
    if isinstance(relaxation, Problem):
        relaxation = relaxation_of(relaxation)
        if not relaxation.problem.graph.operators:
            return [Bound(0, "critical path")]
    path = critical_path_bound(relaxation)
    if path == math.inf:
        raise InfeasibleError(
            "every placement of the operators needs a copy between devices without a route: connect more of the devices"
        )
    found = [
        Bound(whole_ns(path), "critical path"),
        Bound(whole_ns(device_work_bound(relaxation)), "device work"),
        Bound(whole_ns(bus_bound(relaxation).ns), "bus"),
    ]
    weighed = path_and_bus_bound(relaxation)
    return found if weighed is None else [*found, Bound(whole_ns(weighed.ns), "path and bus")]


def relaxation_of(problem: Problem) -> Relaxation:
    """What all bounds of a problem look at, which has neither variants nor resident parameters."""
    cold = without_resident(problem)
    if cold.variants is None:
        return Relaxation(cold)
    no_harder = relaxed(cold)
    through = group_delays(cold, no_harder, strongest)
    return Relaxation(no_harder.problem, tuple(Delay(each.first, each.last, float(each.ns)) for each in through))


def strongest(problem: Problem) -> int:
    """The best of all bounds of a problem that no schedule is asked for; 0 where it has none."""
    try:
        return max(bound.ns for bound in all_bounds(problem))
    except InfeasibleError:
        return 0
