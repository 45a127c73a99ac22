"""Cases of `test_anytime.py` that other tests use, too."""

from tvm_sched_runtime.problem import (
    Bus,
    Device,
    Link,
    Operator,
    OpGraph,
    Tensor,
    Topology,
)


def diamonds(count: int) -> OpGraph:
    """A chain of diamonds: top, two branches, top, ...; each branch reads a parameter."""
    operators, tensors = [], [Tensor("t0", 8, "input")]
    for i in range(count):
        tensors += [Tensor(f"w{i}{side}", 1000, "parameter") for side in "ab"]
        tensors += [Tensor(f"{side}{i}", 8) for side in "ab"] + [Tensor(f"t{i + 1}", 8)]
        operators += [Operator(f"{side}{i}", "", (f"t{i}", f"w{i}{side}"), (f"{side}{i}",)) for side in "ab"]
        operators.append(Operator(f"join{i}", "", (f"a{i}", f"b{i}"), (f"t{i + 1}",)))
    return OpGraph("diamonds", tuple(operators), tuple(tensors), (f"t{count}",))


def two_gpus(memory: int = 10**6) -> Topology:
    devices = tuple(Device(f"gpu{i}", memory, 1e12, {"float32": 1e12}, bus=f"pcie{i}") for i in range(2))
    return Topology("two", devices, (Bus("pcie0", 1e9), Bus("pcie1", 1e9)), (Link(("gpu0", "gpu1"), 1e9),))
