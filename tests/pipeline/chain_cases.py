"""Chains of operators to cut into stages."""

import itertools

import numpy as np

from tvm_sched_runtime.problem import Bus, Costs, Device, Link, Operator, OpGraph, Problem, Tensor, Topology


def chain_problem(work=(1000, 2000, 3000), devices=3, memory=10_000, speeds=None):
    """Operators in a chain; each reads a parameter of 2000 bytes; tensors of 500 bytes; all routes 1 byte/ns."""
    count = len(work)
    tensors = [Tensor("x", 500, "input")]
    tensors += [Tensor(f"w{i}", 2000, "parameter") for i in range(count)]
    tensors += [Tensor(f"a{i}", 500) for i in range(count)]
    operators = tuple(
        Operator(f"op{i}", inputs=(f"a{i - 1}" if i else "x", f"w{i}"), outputs=(f"a{i}",)) for i in range(count)
    )
    graph = OpGraph("chain", operators, tuple(tensors), (f"a{count - 1}",))
    members = tuple(Device(f"gpu{d}", memory, 1e9, {"float32": 1e12}, bus=f"pcie{d}") for d in range(devices))
    links = tuple(Link((f"gpu{a}", f"gpu{b}"), 1e9) for a, b in itertools.combinations(range(devices), 2))
    topology = Topology("machine", members, tuple(Bus(f"pcie{d}", 1e9) for d in range(devices)), links)
    speeds = speeds or [1] * devices
    return Problem(graph, topology, Costs(np.array([[w * s for s in speeds] for w in work])))
