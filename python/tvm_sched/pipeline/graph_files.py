"""Read graphs for partitioning from files: JSON with ``nodes`` and ``edges``, the fields that the MTPP paper uses."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from tvm_sched_runtime.errors import FormatError, GraphError
from tvm_sched_runtime.files import UNREADABLE, convert, read_bytes, why_unreadable
from tvm_sched_runtime.problem.partition_problem import PartitionProblem, StageTensor

from .cost_graph import read_cost_graph

COST_GRAPH = (".pbtxt", ".pbtxt.gz")
"""Endings of the names of files with a ``CostGraphDef``."""


class _Node(msgspec.Struct):
    id: str | int
    work: float
    size_out: float
    size_param: float = 0.0


class _Edge(msgspec.Struct):
    source: str | int
    target: str | int


class _Instance(msgspec.Struct):
    nodes: list[_Node]
    edges: list[_Edge]
    bandwidth: float = 1.0
    memory: float | None = None


class _Head(msgspec.Struct):
    """Fields that problem files and saved Relax modules do not have."""

    nodes: Any = None
    edges: Any = None


def is_graph(path: Path) -> bool:
    """Return whether a file is a graph: a CostGraphDef, or a JSON object with ``nodes`` or ``edges``."""
    if path.is_file() and path.name.endswith(COST_GRAPH):
        return True
    if path.suffix.lower() != ".json" or not path.is_file():
        return False
    try:
        head = msgspec.json.decode(path.read_bytes(), type=_Head)
    except (*UNREADABLE, OSError):
        return False  # the reader of problem files reports it
    return head.nodes is not None or head.edges is not None


def load_graph(path: str | os.PathLike[str]) -> PartitionProblem:
    """Read a graph: TensorFlow's ``CostGraphDef`` as text (``.pbtxt``), or the JSON of `load_instance`."""
    return read_cost_graph(path) if os.fspath(path).endswith(COST_GRAPH) else load_instance(path)


def load_instance(path: str | os.PathLike[str]) -> PartitionProblem:
    """Read an instance: ``nodes`` of ``id, work, size_param, size_out`` and ``edges`` of ``source, target``.

    Optional fields are ``bandwidth`` (bytes per unit of time, default 1) and ``memory`` (bytes of a stage, default
    unlimited). Other fields are ignored.

    Raises
    ------
    FormatError
        The file cannot be read, or a field is missing, wrong or names no node.
    """
    where = os.fspath(path)
    try:
        instance = convert(msgspec.json.decode(read_bytes(path)), _Instance, where)
    except UNREADABLE as error:
        raise FormatError(f"{where}: not a JSON document ({why_unreadable(error)})") from None
    number = {node.id: v for v, node in enumerate(instance.nodes)}
    if len(number) < len(instance.nodes):
        raise FormatError(f"{where}: `$.nodes` has an id twice; ids are unique")
    if not instance.bandwidth > 0:
        raise FormatError(f"{where}: `$.bandwidth` is {instance.bandwidth}; above 0 is allowed")
    readers: list[set[int]] = [set() for _ in instance.nodes]
    for e, edge in enumerate(instance.edges):
        for end in (edge.source, edge.target):
            if end not in number:
                raise FormatError(f"{where}: `$.edges[{e}]` names node {end!r}, which `$.nodes` does not list")
        readers[number[edge.source]].add(number[edge.target])
    try:
        return PartitionProblem(
            [str(node.id) for node in instance.nodes],
            np.array([node.work for node in instance.nodes], dtype=np.float64),
            np.array([node.size_param for node in instance.nodes], dtype=np.float64),
            [
                StageTensor(v, tuple(sorted(readers[v])), node.size_out / instance.bandwidth, node.size_out)
                for v, node in enumerate(instance.nodes)
            ],
            float("inf") if instance.memory is None else instance.memory,
            1 / instance.bandwidth,
        )
    except GraphError as error:
        raise GraphError(f"{where}: {error}") from None
