"""Small problems and schedules written by hand, in nanoseconds and bytes."""

from tvm_sched_runtime.problem import FORBIDDEN, Bus, Costs, Device, Operator, OpGraph, Problem, Tensor, Topology
from tvm_sched_runtime.schedule import Placement, Schedule, Transfer

ROOM = 10**9


def device(name, bus="", memory=ROOM):
    return Device(name, memory, 1e9, {"float32": 1e12}, bus=bus)


def bus(name, bandwidth=1e9, latency=0.0, duplex=True):
    """A byte a nanosecond, where not said otherwise."""
    return Bus(name, bandwidth, latency, duplex)


def graph(tensors, operators, outputs=()):
    """Tensors by name as sizes ("w" parameters, "x" inputs, others activations), operators as (name, reads, writes)."""
    kinds = {"w": "parameter", "x": "input"}
    return OpGraph(
        "case",
        tuple(
            Operator(name, inputs=tuple(reads.split()), outputs=tuple(writes.split()))
            for name, reads, writes in operators
        ),
        tuple(Tensor(name, size, kinds.get(name[0], "activation")) for name, size in tensors.items()),
        tuple(outputs),
    )


def problem(graph, topology, operator_ns, direct_ns=None):
    """Rows of costs by operator; None stands for "cannot run there"."""

    def table(rows):
        return [[FORBIDDEN if value is None else value for value in row] for row in rows]

    return Problem(graph, topology, Costs(table(operator_ns), None if direct_ns is None else table(direct_ns)))


def schedule(problem, placements, transfers=(), **fields):
    """Placements as "operator device" (with " direct"), transfers as "load t d", "copy t a d" or "host_read o d"."""
    return Schedule(problem.digest, tuple(map(_placement, placements)), tuple(map(_transfer, transfers)), **fields)


def _placement(text):
    operator, device, *direct = text.split()
    return Placement(operator, device, direct_host_access=direct == ["direct"])


def _transfer(text):
    kind, what, *places = text.split()
    if kind == "copy":
        return Transfer("copy", places[1], what, places[0])
    return Transfer("load", places[0], what) if kind == "load" else Transfer("host_read", places[0], operator=what)


def topology(*devices, buses=(), links=(), switches=(), peer_access=True):
    return Topology("case", devices, tuple(buses), tuple(links), tuple(switches), peer_access)
