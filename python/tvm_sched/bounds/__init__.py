"""Lower bounds: latencies below which no schedule of a problem can get, whatever scheduler makes it.

Each bound has a file named as certificates name it, and a page with its proof under ``docs/proofs/``. `partitions` has the
bounds of pipelines.
"""

from __future__ import annotations

import math
import weakref
from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import cached_property
from typing import NamedTuple, Protocol

import numpy as np

from tvm_sched_runtime.errors import InfeasibleError
from tvm_sched_runtime.problem import Problem, Scenario, as_scenario
from tvm_sched_runtime.search_budget import OutOfTime, check_time, seconds_left

from .assignment import assignment_bound
from .bisection import bisection_bound
from .bus import bus_bound
from .critical_path import critical_path_bound
from .device_work import device_work_bound
from .enumeration import enumeration_bound
from .group_delays import as_delays, group_delays
from .joined_loads import joined_loads_bound
from .path_and_bus import path_and_bus_bound
from .region_placement import Delay
from .relaxation import Relaxation
from .resident_relaxation import of_run
from .variant_relaxation import relaxed

MARGIN = 1e-9
"""Relative slack for floating-point sums, so that rounding never lifts a bound above the truth."""


def whole_ns(value: float) -> int:
    """Return the least integer latency that a floating-point bound allows, if rounding has added at most `MARGIN`.

    Examples
    --------
    >>> from tvm_sched.bounds import whole_ns
    >>> whole_ns(3749.2)
    3750
    """
    return math.ceil(value * (1 - MARGIN))


class Bound(NamedTuple):
    """A lower bound in nanoseconds and the argument that gave it.

    Examples
    --------
    >>> from tvm_sched.bounds import Bound
    >>> Bound(3750, "critical path").seconds
    3.75e-06
    """

    ns: int
    name: str

    @property
    def seconds(self) -> float:
        """The bound in seconds."""
        return self.ns / 1e9


def optimality_threshold(bound_ns: int) -> int:
    """Return the latency up to which a schedule counts as optimal: the bound and its allowance for rounding.

    Examples
    --------
    >>> from tvm_sched.bounds import optimality_threshold
    >>> optimality_threshold(3750)
    3750
    """
    return int(bound_ns * (1 + 2 * MARGIN))


_known: weakref.WeakKeyDictionary[Problem, dict[frozenset[str], Bound]] = weakref.WeakKeyDictionary()
_cut_off: weakref.WeakKeyDictionary[Problem, dict[frozenset[str], tuple[float, Bound]]] = weakref.WeakKeyDictionary()
"""By problem and resident parameters: seconds in which the bounds were not done, and the quick bound."""


def lower_bound(problem: Problem | Scenario) -> Bound:
    """Return the strongest of all bounds of a problem; computed on the first call for each problem.

    If the problem has variants, the bound holds for every choice (``docs/proofs/variants.md``). If parameters are
    resident, it is the bound of the problem without them (``docs/proofs/resident_parameters.md``). If they are joinable, it
    holds for all ways to join them (``docs/proofs/joined.md``).

    If the deadline of the search around passes meanwhile (`search_budget.ending_at`), it is the `quick_bound`.
    A later call with more time computes the strongest.

    Parameters
    ----------
    problem : Problem or Scenario
        A problem in one run; a `Problem` is a cold run. Lags do not count.

    Returns
    -------
    Bound
        ``name`` is ``"critical path"``, ``"device work"``, ``"bus"``, ``"joined loads"``, ``"path and bus"``,
        ``"assignment"``, ``"bisection"`` or ``"enumeration"``; ``docs/proofs/index.md`` says where each is proved.

    Raises
    ------
    InfeasibleError
        The bound is infinite: no schedule exists.

    Examples
    --------
    >>> from tvm_sched.bounds import lower_bound
    >>> lower_bound(problem)
    Bound(ns=3750, name='critical path')
    """
    scenario = as_scenario(problem)
    known = _known.setdefault(scenario.problem, {})
    bound = known.get(scenario.resident)
    if bound is None:
        cut_off, seconds = _cut_off.setdefault(scenario.problem, {}), seconds_left()
        not_enough, quick = cut_off.get(scenario.resident, (0.0, None))
        try:
            if seconds <= not_enough:
                raise OutOfTime
            bound = _single_device_bound(scenario.problem) or max(all_bounds(scenario), key=lambda each: each.ns)
        except OutOfTime:
            quick = quick or quick_bound(scenario)
            cut_off[scenario.resident] = max(seconds, not_enough), quick
            return quick
        known[scenario.resident] = bound
    return bound


QUICK_PLACES = 4_000
"""Largest product of operators and devices for which `quick_bound` weighs heads and tails past the deadline, too."""


def quick_bound(problem: Problem | Scenario) -> Bound:
    """Bound the latency in milliseconds: by the longest path, all work, and all loads, without regions and programs.

    It is at most `lower_bound`. Past the deadline of the search around, the bounds of large problems, and of those with
    variants, are the longest path and the work of the operators that belong to no group, without heads and tails.

    Examples
    --------
    >>> from tvm_sched.bounds import quick_bound
    >>> quick_bound(problem)
    Bound(ns=3750, name='critical path')
    """
    scenario = as_scenario(problem)
    bounds = _plain_bounds(scenario.problem)
    if not scenario.graph.operators:
        return bounds[0]
    small = scenario.variants is None and scenario.problem.places <= QUICK_PLACES
    try:
        if not small:
            check_time()
        cold = of_run(scenario)
        basis = cold if cold.variants is None else relaxed(cold).problem
        bounds += _bounds(_WithoutDelays(basis, own_copies=basis is cold), QUICK_BOUNDS)
    except OutOfTime:
        pass
    return max(bounds, key=lambda each: each.ns)


class _WithoutDelays(Relaxation):
    """Least times without delays of regions, whose searches take nearly all of the time of the bounds."""

    @cached_property
    def delays(self) -> list[Delay]:
        """None."""
        return []


def _plain_bounds(problem: Problem) -> list[Bound]:
    """Bound the latency by the longest path and the work of the operators of no group, by their least times alone.

    Paths end at groups, since an alternative may not need all that the group's operators read.
    """
    index, relaxation = problem.graph.index, Relaxation(problem)
    groups = problem.variants.groups if problem.variants else ()
    varied = [index.operator_id[name] for group in groups for name in group.operators]
    shortest = relaxation.shortest.copy()
    shortest[varied] = 0.0
    inside, end = set(varied), [0.0] * len(shortest)
    for o in index.order:
        if o not in inside:
            end[o] = shortest[o] + max((end[p] for p in index.predecessors[o]), default=0.0)
    work = [each.min(axis=1) for each in relaxation.busy]
    for each in work:
        each[varied] = 0.0
    least = max((float(each.sum()) for each in work), default=0.0) / len(problem.topology.devices)
    path, shared = whole_ns(max(end, default=0.0)), whole_ns(least)
    return [Bound(path, "critical path"), Bound(shared, "device work")]


def _single_device_bound(problem: Problem) -> Bound | None:
    """Bound the latency by all work, if one device loads nothing and runs one operator at a time; None for other problems.

    No other bound is above it (``docs/proofs/device_work.md``, "One device"). The others would take seconds for thousands of
    operators.
    """
    costs = problem.costs
    if len(problem.topology.devices) > 1 or not problem.reads_host_in_place(0):
        return None
    if costs.concurrency is not None or problem.variants or not problem.graph.operators:
        return None
    shortest = np.minimum(costs.operator_ns, costs.direct_ns)
    return Bound(whole_ns(float(shortest.sum(dtype=np.float64))), "device work")


def all_bounds(relaxation: Relaxation | Problem | Scenario) -> list[Bound]:
    """Return the bounds critical path, device work and bus, and the others of `BOUNDS` where they may help.

    Raises
    ------
    InfeasibleError
        As `lower_bound`.

    Examples
    --------
    >>> from tvm_sched.bounds import all_bounds
    >>> [(bound.name, bound.ns) for bound in all_bounds(problem)]
    [('critical path', 3750), ('device work', 3250), ('bus', 3750)]
    """
    if not isinstance(relaxation, Relaxation):
        relaxation = relaxation_of(relaxation)
        if not relaxation.problem.graph.operators:
            return [Bound(0, "critical path")]
    return _bounds(relaxation, BOUNDS)


class _HasLatency(Protocol):
    @property
    def ns(self) -> float: ...


def _latency_of(weighed: Callable[[Relaxation], _HasLatency | None]) -> Callable[[Relaxation], float | None]:
    """Return the bound without the weights that prove it."""

    def bound(relaxation: Relaxation) -> float | None:
        found = weighed(relaxation)
        return None if found is None else found.ns

    return bound


BOUNDS: dict[str, Callable[[Relaxation], float | None]] = {
    "critical path": critical_path_bound,
    "device work": device_work_bound,
    "bus": _latency_of(bus_bound),
    "joined loads": _latency_of(joined_loads_bound),
    "path and bus": _latency_of(path_and_bus_bound),
    "assignment": _latency_of(assignment_bound),
    "bisection": _latency_of(bisection_bound),
    "enumeration": _latency_of(enumeration_bound),
}
"""By name: nanoseconds that no schedule undercuts, infinite where there is none; None where the bound can't help."""

QUICK_BOUNDS = ("critical path", "device work", "bus", "joined loads")
"""Those that take milliseconds."""


def _bounds(relaxation: Relaxation, names: Iterable[str]) -> list[Bound]:
    bounds = []
    for name in names:
        least = BOUNDS[name](relaxation)
        if least == math.inf:
            raise InfeasibleError(
                "every placement of the operators needs a copy between devices without a route: connect more of the devices"
            )
        if least is not None:
            bounds.append(Bound(whole_ns(least), name))
    return bounds


def relaxation_of(problem: Problem | Scenario) -> Relaxation:
    """Return the least times of the relaxed problem: without variants and without resident parameters.

    Examples
    --------
    >>> from tvm_sched.bounds import all_bounds, relaxation_of
    >>> [(bound.name, bound.ns) for bound in all_bounds(relaxation_of(varied))]
    [('critical path', 3250), ('device work', 3000), ('bus', 3250)]
    """
    scenario = as_scenario(problem)
    cold = of_run(scenario)
    if cold.variants is None:
        return Relaxation(cold)
    no_harder = relaxed(cold)
    through = group_delays(cold, no_harder, strongest)
    return Relaxation(no_harder.problem, *as_delays(through), of_schedules=False, own_copies=False)


def strongest(problem: Problem) -> int:
    """Return the strongest bound of a part of a run in nanoseconds; 0 if no schedule exists.

    Group delays use it for an alternative that may have no schedule: 0 claims nothing.

    Examples
    --------
    >>> from tvm_sched.bounds import strongest
    >>> strongest(problem), strongest(varied)
    (3750, 3250)
    """
    try:
        part = replace(relaxation_of(problem), of_schedules=False)
        return max(bound.ns for bound in all_bounds(part)) if problem.graph.operators else 0
    except InfeasibleError:
        return 0
