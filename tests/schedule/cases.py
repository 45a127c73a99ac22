"""Small problems and schedules written by hand, in nanoseconds and bytes."""

from itertools import combinations

from tvm_sched_runtime.problem import FORBIDDEN, Bus, Costs, Device, Link, Operator, OpGraph, Problem, Tensor, Topology
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


def wired(reads, sizes=1):
    """Operators by name with what each reads; each makes a tensor of its own name, of this size or of one of these sizes.

    What nobody reads is an output.
    """
    sizes = sizes if isinstance(sizes, dict) else dict.fromkeys(reads, sizes)
    read = {name for names in reads.values() for name in names.split()}
    operators = tuple(Operator(name, "", tuple(names.split()), (name,)) for name, names in reads.items())
    tensors = tuple(Tensor(name, sizes[name]) for name in reads)
    return OpGraph("case", operators, tensors, tuple(name for name in reads if name not in read))


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


def gpus(count=2, bus="", **options):
    """Equal devices, gpu0, gpu1, ..., each two joined by a link of a byte a nanosecond; on a bus, if it is named."""
    devices = [device(f"gpu{i}", bus) for i in range(count)]
    links = [Link((a.name, b.name), 1e9) for a, b in combinations(devices, 2)]
    return topology(*devices, buses=[Bus(bus, 1e9)] if bus else (), links=links, **options)


def topology(*devices, buses=(), links=(), switches=(), peer_access=True):
    return Topology("case", devices, tuple(buses), tuple(links), tuple(switches), peer_access)
