"""A problem with variants that is worked out by hand, and groups with which nothing is right."""

import numpy as np

from tvm_sched.problem import (
    Alternative,
    Costs,
    Device,
    Group,
    Link,
    Operator,
    OpGraph,
    Problem,
    Tensor,
    Topology,
    Variants,
)

CHOICE = {"gate": "apart"}


def gated() -> Problem:
    """Two products of one input, ``up`` (100 ns) and ``gate``, which multiplies its own with that of ``up`` (100 ns).

    Apart, the gate is a product of 95 ns, which needs nothing of ``up``, and a multiplication of 10 ns. Copies take 10
    ns; the two devices share host memory. Fused, one waits for the other: 200 ns. Apart, both products run at once, and
    the gate's is copied while ``up`` ends: 95 + 10 + 10 = 115 ns.
    """
    names = ("cpu0", "cpu1")
    devices = tuple(
        Device(name, memory=1000, memory_bandwidth=1e9, peak_flops={"float32": 1e9}, kind="cpu") for name in names
    )
    topology = Topology("two", devices, links=(Link(names, 1e9),))
    tensors = (Tensor("x", 10, "input"), Tensor("a", 10), Tensor("y", 10))
    operators = (Operator("up", "matmul", ("x",), ("a",)), Operator("gate", "matmul_multiply", ("x", "a"), ("y",)))
    apart = Alternative(
        "apart",
        (Operator("product", "matmul", ("x",), ("b",)), Operator("multiply", "multiply", ("b", "a"), ("y",))),
        (Tensor("b", 10),),
    )
    costs, others = Costs(np.full((2, 2), 100)), Costs(np.array([[95, 95], [10, 10]]))
    graph = OpGraph("gated", operators, tensors, ("y",))
    return Problem(graph, topology, costs, Variants([Group("gate", ("gate",), (apart,))], others))
