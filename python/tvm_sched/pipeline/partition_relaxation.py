"""Make a `PartitionProblem` of a `Problem`: exact if devices and links are equal, else a relaxation."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tvm_sched_runtime.errors import InputError
from tvm_sched_runtime.pipeline.stage_pricing import is_parameter
from tvm_sched_runtime.problem import FORBIDDEN, HOST, Problem
from tvm_sched_runtime.problem.partition_problem import PartitionProblem, StageTensor


def relax(problem: Problem, devices: Sequence[int]) -> PartitionProblem:
    """Return the partition problem on some devices, with times in nanoseconds.

    Each number is the least over the devices, or over the routes between them, so a bound of partitions is a bound of plans.
    Proof: Lemma 1 of ``docs/proofs/partition_simple.md``.

    Raises
    ------
    InputError
        There is no device, an operator can run on none of them, or the topology has storage.
    """
    if not devices:
        raise InputError("a pipeline needs at least one device")
    if problem.topology.storage:
        raise InputError(
            f"topology {problem.topology.name!r} has storage, and the parameters of a pipeline are in memory from the "
            "start: leave it out of the topology"
        )
    index = problem.graph.index
    work = problem.costs.operator_ns[:, list(devices)].min(axis=1)
    for o in np.flatnonzero(work == FORBIDDEN):
        names = ", ".join(problem.topology.devices[d].name for d in devices)
        raise InputError(f"operator {problem.graph.operators[o].name!r} can run on none of {names}")
    parameters = np.zeros(len(work))
    tensors = []
    for t, size in enumerate(index.size):
        if is_parameter(problem, t):
            if len(index.consumers[t]) == 1:
                parameters[index.consumers[t][0]] += size
        elif index.consumers[t] or t in index.graph_outputs:
            tensors.append(_tensor(problem, devices, t, size))
    return PartitionProblem(
        names=[operator.name for operator in problem.graph.operators],
        work=work.astype(np.float64),
        parameters=parameters,
        tensors=[tensor for tensor in tensors if tensor.producer >= 0 or tensor.readers],
        memory=float(max(problem.topology.devices[d].memory for d in devices)),
        overflow_time=min(_overflow_time(problem, d) for d in devices),
    )


def _overflow_time(problem: Problem, device: int) -> float:
    route = problem.topology.route(HOST, device)
    return 0.0 if route is None else 1e9 / route.bandwidth


def _tensor(problem: Problem, devices: Sequence[int], t: int, size: int) -> StageTensor:
    index = problem.graph.index
    producer, leaves = index.producer[t], t in index.graph_outputs
    times = []
    if producer < 0:
        times = [problem.load_ns(t, d) for d in devices]
    elif index.consumers[t] and len(devices) > 1:
        pairs = ((a, b) for a in devices for b in devices if a != b)
        times = [route.nanoseconds(size) for a, b in pairs if (route := problem.topology.route(a, b))]
    if producer >= 0 and leaves:
        routes = [problem.topology.route(d, HOST) for d in devices]
        times += [0 if route is None else route.nanoseconds(size) for route in routes]
    readers = tuple(sorted(index.consumers[t]))
    return StageTensor(producer, readers, float(min(times, default=0)), float(size), leaves and producer >= 0)


def are_equal(problem: Problem, devices: Sequence[int]) -> bool:
    """Return whether the devices, the routes between them and their routes to host memory are equal."""
    topology = problem.topology
    columns = problem.costs.operator_ns[:, list(devices)]
    pairs = [(a, b) for a in devices for b in devices if a != b]
    return (
        bool((columns == columns[:, :1]).all())
        and len({topology.devices[d].memory for d in devices}) == 1
        and len({_speed(problem, a, b) for a, b in pairs}) <= 1
        and len({(_speed(problem, HOST, d), _speed(problem, d, HOST)) for d in devices}) == 1
    )


def _speed(problem: Problem, source: int, target: int) -> tuple[float, float] | None:
    route = problem.topology.route(source, target)
    return None if route is None else (route.bandwidth, route.latency)
