"""Cases of `test_variants.py` that other tests use, too."""

from random import Random

import numpy as np

from checker.cases import certified
from tvm_sched_bench.testing import random_schedule
from tvm_sched_runtime.problem import (
    FORBIDDEN,
    Alternative,
    Bus,
    Costs,
    Device,
    Group,
    Operator,
    OpGraph,
    Problem,
    Tensor,
    Topology,
    Variants,
)  # fmt: skip
from tvm_sched_runtime.schedule import with_choice


def with_any_choice(problem, seed):
    """A random schedule of a random choice, certified with the bound of all."""
    random = Random(seed)
    choice = {group.name: random.choice(group.alternative_names) for group in problem.variants.groups}
    choice = {
        group.name: choice[group.name]
        for group in problem.variants.groups
        if choice[group.name] != group.graph_alternative
    }
    return certified(problem, with_choice(problem, random_schedule(problem.resolve(choice), seed), choice))


def halved():
    """An operator of 100 ns whose parameter of 100 bytes takes 100 ns of the one bus, or its halves, and a tail of 10 ns.

    Two others make what it reads and read what it makes.
    """
    devices = tuple(Device(f"gpu{i}", 10**6, 1e12, {"float32": 1e12}, bus="pcie") for i in range(2))
    topology = Topology("two", devices, (Bus("pcie", 1e9),))
    reads = {"first": ("x",), "whole": ("first:0", "w"), "next": ("whole:0",)}
    operators = tuple(Operator(name, "", read, (f"{name}:0",)) for name, read in reads.items())
    sizes = {"first:0": 40, "whole:0": 20, "next:0": 1}
    tensors = (Tensor("x", 10, "input"), Tensor("w", 100, "parameter"), *(Tensor(*each) for each in sizes.items()))
    heads = tuple(Operator(f"head{i}", "", ("first:0", f"w{i}"), (f"h{i}",)) for i in range(2))
    own = (*(Tensor(f"w{i}", 50, "parameter") for i in range(2)), *(Tensor(f"h{i}", 10) for i in range(2)))
    halves = Alternative("halves", (*heads, Operator("tail", "", ("h0", "h1"), ("whole:0",))), own)
    direct = np.full((3, 2), FORBIDDEN)
    direct[1] = 150
    variants = Variants([Group("whole", ("whole",), (halves,))], Costs(np.array([[55, 55], [55, 55], [10, 10]])))
    graph = OpGraph("halved", operators, tensors, ("next:0",))
    return Problem(graph, topology, Costs(np.full((3, 2), 100), direct), variants)
