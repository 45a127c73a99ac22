"""Parts of a large machine on which `anytime` searches: a schedule for some of its devices is one for the machine.

It takes the same time on both, since a part keeps the routes of its devices and has the same rule for turns on a storage.

A model that gains nothing from the 100th GPU is searched faster and better without it: list scheduling looks at each
operator on each device, and most moves of a search on the whole machine would go to devices that no good schedule uses.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import suppress

import numpy as np
import numpy.typing as npt

from tvm_sched_runtime.errors import InfeasibleError
from tvm_sched_runtime.problem import FORBIDDEN, Costs, Problem, Scenario, Variants
from tvm_sched_runtime.problem.topology_changes import part_of
from tvm_sched_runtime.schedule import ScheduleIndex
from tvm_sched_runtime.search_budget import Budget

from ...progress import report_progress
from ..common.native_methods import fit_into_memory, list_order
from ..common.search import Searches
from ..single import SingleOptions, single
from .improvers import PLACES_PER_SECOND
from .list_rules import device_groups, rules

LEAST_PART = 8
"""Number of devices of the smallest part. A machine of up to twice as many has no parts."""

NEARLY = 1.05
"""A second part is searched, too, if its quick schedule takes at most this factor longer than the best."""


QUICK_SCHEDULES = 3
"""Schedules that price a part: a list schedule, HEFT and PEFT."""


def promising_machines(scenario: Scenario, budget: Budget) -> list[Scenario]:
    """Return one or two parts of the machine, the whole perhaps among them, the more promising first.

    Parts have 8, 16, 32, ... devices: fast ones first, neighbours together, those on buses of their own before those that
    share one. Quick schedules price them, small parts first, until the deadline; they count as work. A problem with
    concurrency, or of a small machine, stays whole.
    """
    devices = len(scenario.topology.devices)
    if devices <= 2 * LEAST_PART or scenario.costs.concurrency is not None:
        return [scenario]
    parts = [*_parts(scenario), scenario]
    prices = []
    for number, part in enumerate(parts):
        report_progress("parts of the machine", number, len(parts))
        prices.append(_price(part, budget))
        if part is scenario:  # the search on a part considers each of its own devices alone
            prices[-1] = min(prices[-1], _alone(scenario))
        if budget.late:
            break
    best = sorted((price, k) for k, price in enumerate(prices) if price < math.inf)[:2]
    return [parts[k] for price, k in best if price <= NEARLY * best[0][0]] or [scenario]


def _parts(scenario: Scenario) -> Iterator[Scenario]:
    """Yield parts of growing size, without the whole; those on which the problem cannot run are left out."""
    groups = _by_speed(scenario)
    ends = {sum(map(len, groups[: k + 1])) for k in range(len(groups))}
    order = [d for group in groups for d in group]
    size, last = LEAST_PART, 0
    while size < len(order):
        end = min((e for e in ends if size <= e < 2 * size), default=size)  # a small group is not cut
        if last < end < len(order):
            part = _on(scenario, sorted(order[:end]))
            if part is not None:
                yield part
        size, last = 2 * size, end


def _by_speed(scenario: Scenario) -> list[list[int]]:
    """Return groups of neighbours, the one with the fastest device first; in each, the first device of each bus leads."""
    total = scenario.costs.operator_ns.astype(float).sum(axis=0).tolist()
    devices = scenario.topology.devices

    def in_order(group: Sequence[int]) -> list[int]:
        seen: dict[str, int] = {}
        place = {}
        for d in sorted(group, key=lambda d: (total[d], d)):
            place[d] = seen[devices[d].bus] = seen.get(devices[d].bus, -1) + 1
        return sorted(group, key=lambda d: (place[d], total[d], d))

    groups = device_groups(scenario)
    return [in_order(group) for group in sorted(groups, key=lambda group: (min(total[d] for d in group), group))]


def _on(scenario: Scenario, devices: list[int]) -> Scenario | None:
    """Return the same run on some devices; None if an operator runs on none of them, or if loads take other times there."""
    problem, topology, variants = scenario.problem, scenario.topology, scenario.variants
    costs = problem.costs.columns(devices)
    of_variants = variants.costs.columns(devices) if variants else costs
    if not (_runnable(costs).all() and _runnable(of_variants).all()):
        return None
    machine = part_of(topology, [topology.devices[d].name for d in devices])
    if machine.shares_storage != topology.shares_storage:  # a storage that feeds fewer buses may feed all at once
        return None
    # Parameters that a schedule of the part joins are joined on the whole machine, too.
    machine.__dict__["most_joined"] = topology.most_joined
    reduced = Variants(variants.groups, of_variants) if variants else None
    return scenario.with_problem(Problem.derive(problem.graph, machine, costs, reduced, problem.joinable))


def _runnable(costs: Costs) -> npt.NDArray[np.bool_]:
    return (np.minimum(costs.operator_ns, costs.direct_ns) != FORBIDDEN).any(axis=1)


def _alone(scenario: Scenario) -> float:
    """Return nanoseconds of the method `single`, with all groups as in the graph."""
    one = scenario.resolve({})
    try:
        schedule = single(one.problem, one.workload, SingleOptions())
    except InfeasibleError:
        return math.inf
    return float(ScheduleIndex.of(one, schedule).objective_ns)


def _price(scenario: Scenario, budget: Budget) -> float:
    """Return nanoseconds of the best quick schedule: with all groups as in the graph, and with their last alternatives."""
    groups = scenario.variants.groups if scenario.variants else ()
    latencies = []
    for choice in [{}, {group.name: group.alternative_names[-1] for group in groups}][: 2 if groups else 1]:
        one = scenario.resolve(choice)
        places = len(one.graph.operators) * len(one.topology.devices)
        budget.spend(QUICK_SCHEDULES * places / PLACES_PER_SECOND)
        rule = next(rules(one))
        listed = Searches(one).construct(rule.choices, rule.choice, home=rule.home)
        latencies += [] if listed is None else [float(listed[1])]
        for method in ("heft", "peft"):
            with suppress(InfeasibleError):
                latencies.append(float(fit_into_memory(list_order(one, method)).objective_ns))
    return min(latencies, default=math.inf)
