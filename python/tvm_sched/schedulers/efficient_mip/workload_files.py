"""Read workloads for latency minimisation in the format of Tarnawski et al. (msr-fiddle/dnn-partitioning)."""

from __future__ import annotations

import os
from math import inf

import msgspec

from tvm_sched_runtime.errors import FormatError, InputError
from tvm_sched_runtime.files import UNREADABLE, read_bytes, why_unreadable

from .instance import Instance


class _Node(msgspec.Struct, rename="camel"):
    id: int
    supported_on_fpga: bool | int
    cpu_latency: float
    fpga_latency: float
    size: float
    color_class: int | None = None


class Edge(msgspec.Struct, rename="camel"):
    """A tensor from one operator to another, and the time to copy it."""

    source_id: int
    dest_id: int
    cost: float


class _Workload(msgspec.Struct):
    accelerators: int = msgspec.field(name="maxFPGAs")
    memory: float = msgspec.field(name="maxSizePerFPGA")
    nodes: list[_Node]
    edges: list[Edge]


def read_workload(path: str | os.PathLike[str], q: int = 1) -> Instance:
    """Read a workload's JSON file; times in milliseconds, sizes in bytes, operators in the order of the file.

    Parameters
    ----------
    q : int
        Contiguous subgraphs of an accelerator, which the file does not contain.

    Raises
    ------
    FormatError
        The file cannot be read or is no workload, an edge names a node that is not there, or the edges make a cycle.
    """
    where = os.fspath(path)
    try:
        document = msgspec.json.decode(read_bytes(path), type=_Workload)
    except UNREADABLE as error:
        raise FormatError(f"{where}: not a placement workload ({why_unreadable(error)})") from None
    number = {node.id: v for v, node in enumerate(document.nodes)}
    transfer = [0.0] * len(document.nodes)
    for edge in document.edges:
        if edge.source_id not in number or edge.dest_id not in number:
            raise FormatError(f"{where}: an edge names node {edge.source_id} or {edge.dest_id}, which is not there")
        u = number[edge.source_id]
        transfer[u] = max(transfer[u], edge.cost)
    try:
        return Instance(
            accelerator=[
                [n.fpga_latency if n.supported_on_fpga else inf] * document.accelerators for n in document.nodes
            ],
            cpu=[node.cpu_latency for node in document.nodes],
            size=[node.size for node in document.nodes],
            transfer=transfer,
            edges=sorted({(number[edge.source_id], number[edge.dest_id]) for edge in document.edges}),
            capacity=[document.memory] * document.accelerators,
            q=q,
            together=_together(document.nodes),
        )
    except InputError as error:
        raise FormatError(f"{where}: {error}") from None


def _together(nodes: list[_Node]) -> list[int]:
    """Return a number for each node: equal colours have equal numbers, nodes without a colour their own."""
    numbers: dict[tuple[str, int], int] = {}
    keys = [("node", v) if n.color_class is None else ("colour", n.color_class) for v, n in enumerate(nodes)]
    return [numbers.setdefault(key, len(numbers)) for key in keys]
