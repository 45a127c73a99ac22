"""Random problems that have a feasible schedule."""

from __future__ import annotations

from random import Random
from typing import Literal

import msgspec
import numpy as np

from tvm_sched_runtime.problem import FORBIDDEN, HOST, Costs, OpGraph, Problem, Topology, graph_on
from tvm_sched_runtime.schedule.indexed import ScheduleIndex

from .graphs import random_graph
from .schedules import random_schedule
from .topologies import Style, random_topology


def random_problem(
    seed: int,
    operators: int = 8,
    devices: int = 3,
    memory: Literal["tight", "generous"] | None = None,
    style: Style | None = None,
    all_joined: bool = True,
    longest_ns: int = 1000,
) -> Problem:
    """Return a random problem.

    Parameters
    ----------
    seed : int
        The same seed and sizes give the same problem.
    memory : {"tight", "generous"}, optional
        ``"generous"``: more than all tensors together. ``"tight"``: just what one random schedule needs, which
        therefore is feasible, while most others are not. Drawn where not given, mostly generous.
    style, all_joined
        See `random_topology`.
    longest_ns : int
        Longest operator.

    Notes
    -----
    Devices are unequal, operators are forbidden on some of them, direct host access is possible for some. No operator
    takes 0 ns: by the model it would hold no memory.

    Examples
    --------
    >>> from tvm_sched_bench.testing import random_problem
    >>> made = random_problem(seed=1, operators=5, devices=2)
    >>> len(made.graph.operators), len(made.topology.devices)
    (5, 2)
    """
    random = Random(f"{seed} {operators} {devices}")
    graph = random_graph(random, operators)
    topology = random_topology(random, devices, style, all_joined=all_joined)
    once = _random_costs(random, graph, topology, longest_ns)
    costs = _with_rereads(Random(f"rereads {seed}"), graph, topology, once)
    memory = memory or random.choice(["generous", "generous", "tight"])
    problem = Problem(graph, topology, costs)
    if memory == "tight":
        used = ScheduleIndex.of(problem, random_schedule(problem, random.randrange(2**32))).times.peak_memory
        slack = random.choice([1.0, 1.0, 1.3])
        room = [max(1, int(peak * slack)) for peak in used.tolist()]
        members = [msgspec.structs.replace(d, memory=m) for d, m in zip(topology.devices, room, strict=True)]
        problem = Problem(graph, msgspec.structs.replace(topology, devices=tuple(members)), costs)
    return problem


def _random_costs(random: Random, graph: OpGraph, topology: Topology, longest_ns: int) -> Costs:
    shape = (len(graph.operators), len(topology.devices))
    operator_ns = np.full(shape, FORBIDDEN, dtype=np.int64)
    direct_ns = np.full(shape, FORBIDDEN, dtype=np.int64)
    slowness = [random.choice([1.0, 1.0, 1.5, 4.0]) for _ in topology.devices]
    strict = random.random() < 0.4  # whether operators are forbidden on some devices
    index = graph_on(graph, topology).index
    for o in range(shape[0]):
        work = 1 if random.random() < 0.05 else random.randint(1, longest_ns)
        host_bytes = sum(index.host_bytes[o])
        for d in range(shape[1]):
            route = topology.route(HOST, d)
            read = route.nanoseconds(host_bytes) if route and index.host_inputs[o] else 0
            ns = max(1, int(work * slowness[d] * random.uniform(0.8, 1.2)))
            reads_pages = not topology.storage or topology.maps_storage
            if route and index.host_inputs[o] and random.random() < 0.6 and reads_pages:
                direct_ns[o, d] = random.choice([max(ns, read), max(1, read), ns + read])
            if not (strict and random.random() < 0.3):
                operator_ns[o, d] = ns
        if (operator_ns[o] == FORBIDDEN).all() and (direct_ns[o] == FORBIDDEN).all():
            operator_ns[o, random.randrange(shape[1])] = work
    return Costs(operator_ns, direct_ns, "random")


def _with_rereads(random: Random, graph: OpGraph, topology: Topology, costs: Costs) -> Costs:
    """Return the costs, in a third of all cases with kernels that occupy the bus for more than one reading."""
    direct = costs.direct_ns != FORBIDDEN
    if random.random() > 1 / 3:
        return costs
    once = Problem.derive(graph, topology, costs).host_reads_ns
    reads = np.full_like(once, FORBIDDEN)
    for o, d in np.argwhere(direct).tolist():
        reads[o, d] = random.choice([FORBIDDEN, random.randint(max(1, once[o, d]), costs.direct_ns[o, d])])
    return costs.replace(host_read_ns=reads)
