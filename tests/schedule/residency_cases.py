"""Cases of `test_residency.py` that other tests use, too."""

from tvm_sched_runtime.problem import (
    Link,
)

from . import cases


def chain(memory=cases.ROOM):
    """Operators p and q, each with a parameter of 100 bytes; two devices on a bus and a link, kernels of 50 ns."""
    graph = cases.graph(
        {"w1": 100, "w2": 100, "a": 10, "b": 10}, [("p", "w1", "a"), ("q", "w2 a", "b")], outputs=("b",)
    )
    devices = cases.device("d0", "bus", memory), cases.device("d1", "bus", memory)
    topology = cases.topology(*devices, buses=(cases.bus("bus"),), links=(Link(("d0", "d1"), 1e9),))
    return cases.problem(graph, topology, [[50, 50], [50, 50]], [[130, 130], [130, 130]])
