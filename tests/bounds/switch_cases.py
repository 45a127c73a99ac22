"""Problems on devices behind a switch."""

from schedule.cases import device, problem, topology, wired
from tvm_sched_runtime.problem import Switch


def on_a_switch(reads, times, sizes, devices, contention=True):
    """Operators by name with what each reads; a byte takes a nanosecond from device to device."""
    names = tuple(f"gpu{i}" for i in range(devices))
    places = topology(*map(device, names), switches=[Switch("switch", names, 1e9, contention=contention)])
    graph = wired({name: " ".join(read) for name, read in reads.items()}, dict(zip(reads, sizes, strict=True)))
    return problem(graph, places, [[time] * devices for time in times])


def fan(copy, contention=True):
    """Three branches between two operators, each of 100; two devices."""
    reads = {"u": (), "a": ("u",), "b": ("u",), "c": ("u",), "v": ("a", "b", "c")}
    return on_a_switch(reads, [100] * 5, [copy] * 5, 2, contention)
