"""Throughput workloads of Tarnawski et al. (NeurIPS 2020, msr-fiddle/dnn-partitioning) as partitioning problems."""

from __future__ import annotations

import os

import msgspec
import numpy as np

from tvm_sched.schedulers.efficient_mip.workload_files import Edge
from tvm_sched_runtime.errors import FormatError, GraphError
from tvm_sched_runtime.files import UNREADABLE, read_bytes, why_unreadable
from tvm_sched_runtime.pipeline import PartitionProblem, StageTensor


class _Node(msgspec.Struct, rename="camel"):
    id: int
    supported_on_fpga: bool | int
    fpga_latency: float
    size: float
    is_backward_node: bool | int = False


class _Workload(msgspec.Struct):
    memory: float = msgspec.field(name="maxSizePerFPGA")
    nodes: list[_Node]
    edges: list[Edge]


def read_throughput(path: str | os.PathLike[str]) -> PartitionProblem:
    """Read an inference workload on accelerators alone, in the file's unit of time, without the CPU core that it allows.

    A stage's nodes are to fit into its accelerator: each byte beyond its memory costs a unit of time, more than a stage is
    worth.

    Raises
    ------
    FormatError
        The file is no such workload, one of training, or has an operator that no accelerator runs.
    """
    where = os.fspath(path)
    try:
        workload = msgspec.json.decode(read_bytes(path), type=_Workload)
    except UNREADABLE as error:
        raise FormatError(f"{where}: not a placement workload ({why_unreadable(error)})") from None
    if any(node.is_backward_node for node in workload.nodes):
        raise FormatError(f"{where}: a workload of training; only those of inference are cut into stages")
    if wrong := [node.id for node in workload.nodes if not node.supported_on_fpga]:
        raise FormatError(f"{where}: no accelerator runs node {wrong[0]}")
    number = {node.id: v for v, node in enumerate(workload.nodes)}
    transfer, readers = [0.0] * len(number), [set[int]() for _ in number]
    for edge in workload.edges:
        if edge.source_id not in number or edge.dest_id not in number:
            raise FormatError(f"{where}: an edge names node {edge.source_id} or {edge.dest_id}, which is not there")
        u = number[edge.source_id]
        transfer[u] = max(transfer[u], edge.cost)
        readers[u].add(number[edge.dest_id])
    try:
        return PartitionProblem(
            [str(node.id) for node in workload.nodes],
            np.array([node.fpga_latency for node in workload.nodes], dtype=np.float64),
            np.array([node.size for node in workload.nodes], dtype=np.float64),
            [StageTensor(u, tuple(sorted(readers[u])), transfer[u]) for u in range(len(number)) if readers[u]],
            workload.memory,
            overflow_time=1.0,
        )
    except GraphError as error:
        raise FormatError(f"{where}: {error}") from None
