"""Problems on devices behind a switch."""

import numpy as np

from tvm_sched_runtime.problem import Costs, Device, Operator, OpGraph, Problem, Switch, Tensor, Topology


def on_a_switch(reads, times, sizes, devices, contention=True):
    """Operators by name with what each reads; a byte takes a nanosecond from device to device."""
    names = tuple(f"gpu{i}" for i in range(devices))
    of = tuple(Device(name, 10**6, 1e12, {"float32": 1e12}) for name in names)
    topology = Topology("switched", of, switches=(Switch("switch", names, 1e9, contention=contention),))
    operators = tuple(Operator(name, "", tuple(read), (name,)) for name, read in reads.items())
    tensors = tuple(Tensor(name, size) for name, size in zip(reads, sizes, strict=True))
    graph = OpGraph("graph", operators, tensors, (operators[-1].name,))
    return Problem(graph, topology, Costs(np.array([[time] * devices for time in times])))


def fan(copy, contention=True):
    """Three branches between two operators, each of 100; two devices."""
    reads = {"u": (), "a": ("u",), "b": ("u",), "c": ("u",), "v": ("a", "b", "c")}
    return on_a_switch(reads, [100] * 5, [copy] * 5, 2, contention)
