"""`plan_pipeline`: make a verified `PipelinePlan` with its certificate for a `Problem`."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal, NamedTuple

import msgspec
import numpy as np

from tvm_sched_runtime.errors import InfeasibleError, InputError
from tvm_sched_runtime.pipeline.pipeline_plan import PipelineCertificate, PipelinePlan
from tvm_sched_runtime.pipeline.pipeline_verifier import assignment_of, verify
from tvm_sched_runtime.pipeline.stage_pricing import activations_of, price
from tvm_sched_runtime.problem import Problem
from tvm_sched_runtime.problem.partition_problem import Integers, PartitionProblem
from tvm_sched_runtime.search_budget import Status, ending_at

from ..certify import Proof, answer_of, final_status, run_method
from ..progress import Progress
from .device_search import Candidate, DeviceSearch, Goal
from .least_peak import IDEALS, PeakOrder, least_peak, order_of_stage
from .partition_relaxation import are_equal, relax
from .partitioner_registry import PROVED, Partition, PartitionerFunction, get, partition

_DEVICE_SECONDS = 10.0
"""Longest search for a sequence of unequal devices, unless the partitioner's time limit comes first."""

_DEVICE_SHARE = 0.2
"""Part of a time limit that is kept for this search."""


def plan_pipeline(
    problem: Problem,
    stages: int | Literal["auto"] = "auto",
    partitioner: str = "anytime",
    options: Mapping[str, Any] | msgspec.Struct | None = None,
    *,
    devices: Sequence[str] | None = None,
    latency_ceiling: float | None = None,
    throughput_floor: float | None = None,
    place: bool = True,
    progress: Progress | None = None,
) -> PipelinePlan:
    """Cut a model into stages on the devices of a problem.

    Parameters
    ----------
    stages : int or "auto"
        At most this many stages, each on a device of its own; "auto": as many as there are devices.
    partitioner, options
        Name of a registered partitioner, and its options.
    devices : sequence of str, optional
        Allowed devices; default: all.
    latency_ceiling : float, optional
        Seconds. The plan has the best throughput among plans with at most this latency of a single batch. The bound is
        that of the throughput without the ceiling.
    throughput_floor : float, optional
        Batches a second. The plan has the least latency among plans with at least this throughput.
    place : bool
        Whether stages may be cut again, reordered and put on other devices if devices or links are unequal or there is a
        limit. Otherwise the partitioner's stages go to the devices in order, to compare partitioners.

    Raises
    ------
    InputError
        More stages than devices, an unknown device, partitioner or option, both limits at once.
    InfeasibleError
        No plan of the search fits into memory and meets the limit.

    Examples
    --------
    >>> from tvm_sched.pipeline import plan_pipeline
    >>> plan = plan_pipeline(problem, stages=2)
    >>> [stage.operators for stage in plan.stages], plan.certificate.lower_bound_ns
    ([('left',), ('right', 'join')], 2600)
    """
    chosen = _devices(problem, devices)
    count = len(chosen) if stages == "auto" else stages
    if not 1 <= count <= len(chosen):
        raise InputError(f"stages is {count}; 1 to {len(chosen)} are allowed, one for each device")
    goal = _goal(latency_ceiling, throughput_floor)
    method, relaxed = get(partitioner), relax(problem, chosen)

    def plan_with(_: PartitionerFunction, options: msgspec.Struct) -> _Planned:
        limit = _time_limit(options)
        deadline = time.monotonic() + limit
        kept = min(_DEVICE_SECONDS, _DEVICE_SHARE * limit) if place and not are_equal(problem, chosen) else 0.0
        with ending_at(deadline - kept):
            parts = partition(relaxed, count, method.name, options, progress)
        return _on_devices(problem, relaxed, parts, chosen, count, goal, deadline, place)

    run = run_method(method, options, _Planned, plan_with, progress)
    with answer_of(method):
        plan = PipelinePlan(
            problem=problem.digest,
            stages=tuple(run.answer.candidate.stages),
            partitioner=run.method,
            options=_shown(run.options),
            seconds=run.seconds,
            certificate=_certificate(run.answer),
        )
        verify(problem, plan)
    return plan


class _Planned(NamedTuple):
    """A partition, and its stages on devices."""

    partition: Partition
    candidate: Candidate


def _devices(problem: Problem, names: Sequence[str] | None) -> list[int]:
    known = problem.topology.device_id
    for name in names or ():
        if name not in known:
            raise InputError(f"there is no device {name!r}; there are {', '.join(known)}")
    return list(range(len(known))) if names is None else [known[name] for name in dict.fromkeys(names)]


def _goal(latency_ceiling: float | None, throughput_floor: float | None) -> Goal:
    if latency_ceiling is not None and throughput_floor is not None:
        raise InputError("a latency ceiling and a throughput floor exclude each other; one of them is allowed")
    for name, value in (("latency ceiling", latency_ceiling), ("throughput floor", throughput_floor)):
        if value is not None and not 0 < value < math.inf:
            raise InputError(f"{name} is {value}; a number above 0 is allowed")
    return Goal(
        None if latency_ceiling is None else math.floor(latency_ceiling * 1e9),
        None if throughput_floor is None else math.floor(1e9 / throughput_floor),
    )


def _on_devices(
    problem: Problem,
    relaxed: PartitionProblem,
    parts: Partition,
    devices: list[int],
    count: int,
    goal: Goal,
    deadline: float,
    place: bool,
) -> _Planned:
    """Give the stages devices; cut again if these are unequal or there is a limit."""
    search = DeviceSearch(problem, relaxed, devices, count, goal)
    lists = relaxed.stage_lists(parts.stage_of, parts.order)
    search.offer(list(zip(devices, lists, strict=False)))
    equal = are_equal(problem, devices)
    if place and (goal != Goal() or not equal or search.best is None):
        end = time.monotonic() + (0.0 if parts.status == "interrupted" else _DEVICE_SECONDS)
        try:
            search.run(_orders(relaxed, lists), min(end, deadline), equal)
        except KeyboardInterrupt:
            if search.best is None:
                raise
            parts = replace(parts, status="interrupted")
    if search.best is None:  # orders of less memory
        orders = [[nodes[i] for i in order_of_stage(relaxed, nodes).order] for nodes in lists]
        search.offer(list(zip(devices, orders, strict=False)))
    if search.best is None:
        raise InfeasibleError(
            "the search has no pipeline whose stages can run on their devices, with routes between them and memory for the "
            "activations; give other devices (`devices`), or a problem with smaller batches"
        )
    if (over := goal.key(search.best)[0]) > 0:
        best = search.best
        raise InfeasibleError(
            f"no plan of the search meets the limit; it is missed by {over} ns; the best has a bottleneck of {best.cost_ns} "
            f"ns and a latency of {best.latency_ns} ns"
        )
    return _Planned(parts, search.best)


def _orders(relaxed: PartitionProblem, lists: list[list[int]]) -> list[Integers]:
    """Return the partition's own order and Kahn's."""
    own = np.array([v for nodes in lists for v in nodes], dtype=np.int64)
    return [own, relaxed.kahn(np.zeros(relaxed.size))]


def _time_limit(options: msgspec.Struct) -> float:
    limit = getattr(options, "time_limit", None)
    return math.inf if limit is None else float(limit)


def _shown(options: msgspec.Struct) -> dict[str, Any]:
    shown = msgspec.to_builtins(options)
    return {key: None if value == math.inf else value for key, value in shown.items()}


def _certificate(planned: _Planned) -> PipelineCertificate:
    """Certify a plan; costs are whole nanoseconds, so the bound, less the solvers' tolerance, is rounded up."""
    parts = planned.partition
    bound = math.ceil(parts.bound * (1 - 1e-9))
    return _certified(planned.candidate.cost_ns, bound, parts.bound_name, parts.status)


def _certified(cost: int, bound: int, name: str, status: Status) -> PipelineCertificate:
    return PipelineCertificate(cost, bound, name, final_status(status, cost, Proof(bound, name, bound / (1 - PROVED))))


def order_plan(problem: Problem, plan: PipelinePlan, *, ideals: int = IDEALS) -> tuple[PipelinePlan, list[PeakOrder]]:
    """Put the operators of each stage into an order with the least peak of activations, and price the plan again.

    Parameters
    ----------
    plan : PipelinePlan
        A plan that `verify` accepts for this problem.
    ideals : int
        Most ideals that the exact search of each stage visits.

    Returns
    -------
    (PipelinePlan, list of PeakOrder)
        The verified plan with its costs and certificate, and the order of each stage.

    Examples
    --------
    >>> from tvm_sched.pipeline import order_plan, plan_pipeline
    >>> plan, orders = order_plan(problem, plan_pipeline(problem, stages=2))
    >>> [(order.given_peak, order.peak, order.bound) for order in orders]
    [(8000.0, 8000.0, 8000.0), (12000.0, 12000.0, 12000.0)]
    """
    assignment = assignment_of(problem, plan)
    orders = [least_peak(activations_of(problem, stage), len(stage), ideals=ideals) for _, stage in assignment]
    ordered = [
        (device, [stage[i] for i in best.order]) for (device, stage), best in zip(assignment, orders, strict=True)
    ]
    plan = msgspec.structs.replace(plan, stages=tuple(price(problem, ordered)))
    if (old := plan.certificate) is not None:
        new = _certified(plan.cost_ns, old.lower_bound_ns, old.bound, old.status)
        plan = msgspec.structs.replace(plan, certificate=new)
    verify(problem, plan)
    return plan, orders
