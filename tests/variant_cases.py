"""Problems with variants that are worked out by hand, and groups with which nothing is right."""

import numpy as np

from tvm_sched_runtime.problem import (
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
)  # fmt: skip

CHOICE = {"gate": "apart"}


def two_devices(kind: str) -> Topology:
    """Joined by a link over which a byte takes a nanosecond; CPUs share host memory."""
    names = (f"{kind}0", f"{kind}1")
    devices = tuple(
        Device(name, memory=1000, memory_bandwidth=1e9, peak_flops={"float32": 1e9}, kind=kind) for name in names
    )
    return Topology("two", devices, links=(Link(names, 1e9),))


def gated() -> Problem:
    """Two products of one input, ``up`` (100 ns) and ``gate``, which multiplies its own with that of ``up`` (100 ns).

    Apart, the gate is a product of 95 ns, which needs nothing of ``up``, and a multiplication of 10 ns. Copies take 10
    ns; the two devices share host memory. Fused, one waits for the other: 200 ns. Apart, both products run at once, and
    the gate's is copied while ``up`` ends: 95 + 10 + 10 = 115 ns.
    """
    topology = two_devices("cpu")
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


def blocks_in_halves(blocks: int = 1, copy_ns: int = 20, cut: bool = False) -> Problem:
    """Blocks of 120 ns one after another, between two operators of 10 ns; or each as two heads of 60 ns and a tail of 10.

    Copies take ``copy_ns``, and there are two devices. On one, heads and tail take 130 ns. On two, one head waits for a copy
    of what is read, and the tail runs after it on its device, where the result of the other head has arrived: with copies of
    20 ns, 20 + 60 + 10 = 90. With ``cut``, a head reads what an operator of 1 ns cuts out of what the block reads.
    """
    operators, tensors, groups = [Operator("first", outputs=("y",))], [Tensor("y", copy_ns)], []
    for k in range(blocks):
        read, made = operators[-1].outputs[0], f"y{k}"
        operators.append(Operator(f"block{k}", inputs=(read,), outputs=(made,)))
        tensors.append(Tensor(made, copy_ns))
        heads = [Operator(f"head{k}{i}", inputs=(read,), outputs=(f"h{k}{i}",)) for i in range(2)]
        tail = Operator(f"tail{k}", inputs=(f"h{k}0", f"h{k}1"), outputs=(made,))
        own = tuple(Tensor(f"h{k}{i}", copy_ns) for i in range(2))
        if cut:
            cuts = [Operator(f"cut{k}{i}", inputs=(read,), outputs=(f"c{k}{i}",)) for i in range(2)]
            heads = [
                *cuts,
                *(Operator(o.name, inputs=c.outputs, outputs=o.outputs) for c, o in zip(cuts, heads, strict=True)),
            ]
            own += tuple(Tensor(f"c{k}{i}", copy_ns) for i in range(2))
        groups.append(Group(f"block{k}", (f"block{k}",), (Alternative("halves", (*heads, tail), own),)))
    operators.append(Operator("last", inputs=operators[-1].outputs, outputs=("z",)))
    tensors.append(Tensor("z", 1))
    apart = [[1, 1]] * 2 * cut + [[60, 60], [60, 60], [10, 10]]
    variants = Variants(groups, Costs(np.array(apart * blocks)))
    times = Costs(np.array([[10, 10], *[[120, 120]] * blocks, [10, 10]]))
    return Problem(OpGraph("blocks", tuple(operators), tuple(tensors), ("z",)), two_devices("cuda"), times, variants)
